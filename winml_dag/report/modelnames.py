"""Short names for models that are paths: where a recipe names one, the whole path would widen every table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from winml_dag.recipe.paths import is_path_like
from winml_dag.report.row import Row

# A report on Linux may be of builds on Windows.
_SEPARATORS = re.compile(r"[/\\]+")


def with_short_names(rows: Sequence[Row]) -> list[Row]:
    """*rows* with the last parts of each path, as few as tell it from all other models, and without ``.onnx``."""
    ends = {row.model: _ends(row.model) for row in rows}
    uses = Counter(end for each in ends.values() for end in each)
    short = {model: next((end for end in each if uses[end] == 1), model) for model, each in ends.items()}
    return [replace(row, model=short[row.model]) for row in rows]


def _ends(model: str) -> list[str]:
    """What *model* could be called, the shortest first."""
    # What follows a space may be the module of a model that only that was built of.
    if not is_path_like(model.partition(" ")[0]):
        return [model]
    parts = _SEPARATORS.split(re.sub(r"\.onnx$", "", model.rstrip("/\\"), flags=re.IGNORECASE))
    return ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)]
