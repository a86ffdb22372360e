"""A build with nothing left to decide, from which a graph is planned; what is in it is decided in ``resolve``.

A :class:`Build` is one resolved variant (one model, one precision, one EP and device) with its one output folder: the
complete config of every stage, or the reason why it is skipped, and the stages that a recipe declares; nothing
downstream reads a recipe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from winml_dag.engine.stage import Node, Skip, Source, Stage
from winml_dag.pipeline.buildgraph import BuildSummary

if TYPE_CHECKING:
    from winml_dag.ep.qairt import QairtSdk
    from winml_dag.ep.registry import Target
    from winml_dag.recipe.document import Positions
    from winml_dag.recipe.schema import StageEntry
    from winml_dag.stages.sensitivity import SensitivityConfig

T = TypeVar("T")


@dataclass(frozen=True)
class Search:
    """How a build searches.

    Attributes:
        begin: a file without discoveries.
        rounds: how many optimizations may follow the first.
        refuses_unsupported: whether an operator that the target cannot run at all fails the build.
        tables: the support tables of the target; None without any.
        looked_at, absent: the paths that decided on the tables.
    """

    begin: Source | None = None
    rounds: int = 0
    refuses_unsupported: bool = True
    tables: Source | None = None
    looked_at: tuple[Path, ...] = ()
    absent: tuple[Path, ...] = ()


@dataclass(frozen=True)
class SavePath:
    """A path that the user chose: ``path``, with ``/``, in ``folder``, which is absolute and without links."""

    folder: Path
    path: str


@dataclass(frozen=True)
class Build:
    """One resolved variant: its summary, its inputs, and the config of each stage.

    Without a model, all stages of the line are skipped, and only those that the recipe declares are left.

    Attributes:
        sources: by the input slot of the stages that read them: ``model`` (what export reads, or the ONNX model
            itself), ``script`` (makes the model), ``data``, ``processor``, ``ranges``, ``option_files``; and
            ``input_data`` with ``input_processor``, what the result runs on if calibration keeps back no data for that.
        looked_at: the folders and files that decided the choice of these.
        configs: for each stage of the line its config, or why it is skipped. quantize has a tuple of configs, in order:
            a second one converts what 4-bit weights leave in float32 to float16.
        search: the number of rounds of optimize and analyze, and their initial input.
        save_ranges: an additional path for calibrate's ranges.
        sensitivity: ranks nodes by the first quantization, outside of the line.
        declared: the recipe's own stages, which run next to and between built-in ones.
        also: further models that compile puts into one binary with the first.
        sdk: compiles instead of onnxruntime.
        lacks: what this machine lacks to run it, as sentences; only for a build that is only planned.
        parts: for a model of several components, the builds of these after one export of all, by name; their inputs
            include those of the export, and ``configs`` has only the export.
    """

    summary: BuildSummary
    target: Target
    sources: Mapping[str, Source]
    configs: Mapping[str, Any]
    search: Search
    looked_at: tuple[Path, ...] = ()
    save_ranges: SavePath | None = None
    sensitivity: SensitivityConfig | None = None
    declared: Declared | None = None
    also: tuple[Source, ...] = ()
    sdk: QairtSdk | None = None
    lacks: tuple[str, ...] = ()
    parts: Mapping[str, Build] = field(default_factory=dict)

    def chosen(self, stage: str) -> Any:
        """Return the config of *stage*, or None if it is skipped."""
        return chosen(self.configs[stage])

    def with_configs(self, **configs: Any) -> Build:
        return replace(self, configs={**self.configs, **configs})


def chosen(config: T | Skip) -> T | None:
    """Return the config of a stage that is not skipped, else None."""
    return None if isinstance(config, Skip) else config


# Names of stages and of their inputs and outputs: they are used in `stage.output` and in `{inputs.name}`.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Declared:
    """The ``stages`` of a recipe. *folder* is the recipe's own, absolute: the base of their paths."""

    stages: Mapping[str, StageEntry]
    folder: Path
    recipe: Path
    positions: Callable[[], Positions]


@dataclass(frozen=True)
class BuiltIn:
    """A built-in stage in this build: the id of its node, or why it is skipped."""

    stage: Stage
    id: str
    skipped: str | None = None


@dataclass(frozen=True)
class UserPlan:
    """The part of a build that a recipe declares.

    Attributes:
        rewired: the artifact that a built-in stage reads instead, by stage and slot.
        looked_at: files and folders other than the sources that influenced this plan.
        absent: missing files that commands seem to name, and missing programs of the same names.
        programs: files that are used as programs, or non-executable files that precede them in the search.
    """

    nodes: tuple[Node, ...] = ()
    sources: tuple[Source, ...] = ()
    rewired: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    looked_at: tuple[Path, ...] = ()
    absent: tuple[Path, ...] = ()
    programs: tuple[Path, ...] = ()


def rewires_builtin(entry: StageEntry) -> bool:
    """Whether *entry* does no work of its own, but sets an input of a built-in stage."""
    return entry.command is None and entry.run is None and entry.uses is None
