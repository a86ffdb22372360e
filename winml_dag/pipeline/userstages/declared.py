"""The stages that a recipe declares itself, and what they need to know of ours: the ground that their planning stands
on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.engine.stage import Stage
from winml_dag.recipe.document import Positions
from winml_dag.recipe.schema import StageEntry

# Names of stages and of their inputs and outputs: they stand in `stage.output` and in `{inputs.name}`.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Declared:
    """The ``stages`` of a recipe. *folder* is the recipe's own, absolute: what their paths are relative to."""

    stages: Mapping[str, StageEntry]
    folder: Path
    recipe: Path
    positions: Callable[[], Positions] = Positions


@dataclass(frozen=True)
class Ours:
    """One of our stages in this build: the id of its node, or why there is none."""

    stage: Stage
    id: str
    left_out: str | None = None


@dataclass(frozen=True)
class Tools:
    """What a stage's bytes depend on besides its inputs: values for its key, and files whose digests belong there."""

    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


def is_ours(entry: StageEntry) -> bool:
    """Whether *entry* does no work of its own, but says where one of our stages reads from."""
    return entry.command is None and entry.run is None and entry.uses is None
