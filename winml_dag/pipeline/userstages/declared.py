"""Stages that a recipe declares, and what their planning needs about built-in stages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.engine.stage import Stage
from winml_dag.recipe.document import Positions
from winml_dag.recipe.schema import StageEntry

# Names of stages and of their inputs and outputs: they are used in `stage.output` and in `{inputs.name}`.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Declared:
    """The ``stages`` of a recipe. *folder* is the recipe's own, absolute: the base of their paths."""

    stages: Mapping[str, StageEntry]
    folder: Path
    recipe: Path
    positions: Callable[[], Positions] = Positions


@dataclass(frozen=True)
class Ours:
    """A built-in stage in this build: the id of its node, or why it is skipped."""

    stage: Stage
    id: str
    left_out: str | None = None


@dataclass(frozen=True)
class Tools:
    """What a stage's output depends on other than inputs: values for its key, and files whose digests belong there."""

    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


def is_ours(entry: StageEntry) -> bool:
    """Whether *entry* does no work of its own, but sets an input of a built-in stage."""
    return entry.command is None and entry.run is None and entry.uses is None
