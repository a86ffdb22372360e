"""A build: one fully resolved variant (one model, one precision, one EP and device) and its one output folder.

Every stage has its complete config here, or the reason why it is left out; nothing downstream looks at a recipe again.

The stages that a recipe declares itself are here as it says them, with what their planning needs to know of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from winml_dag.engine.stage import Node, Source, Stage
from winml_dag.ep.registry import Target
from winml_dag.pipeline.buildgraph import BuildSummary
from winml_dag.pipeline.search import Search
from winml_dag.recipe.document import Positions
from winml_dag.recipe.schema import StageEntry
from winml_dag.stages.analyze import AnalyzeConfig
from winml_dag.stages.calibrate import CalibrateConfig
from winml_dag.stages.compile import CompileConfig
from winml_dag.stages.export import ComponentsConfig, ExportConfig
from winml_dag.stages.finalize import FinalizeConfig
from winml_dag.stages.normalize import NormalizeConfig
from winml_dag.stages.optimize import OptimizeConfig
from winml_dag.stages.quantize import QuantizeConfig
from winml_dag.stages.sensitivity import SensitivityConfig
from winml_dag.stages.validate import ValidateConfig

if TYPE_CHECKING:
    from winml_dag.ep.qairt import QairtSdk
    from winml_dag.stages.shared import FinalizeSharedConfig


# The line of stages as people see it.
LINE = ("export", "normalize", "optimize", "analyze", "calibrate", "quantize", "compile", "validate", "finalize")

T = TypeVar("T")


@dataclass(frozen=True)
class Skip:
    """A stage that is left out, and why."""

    reason: str


@dataclass(frozen=True)
class Inputs:
    """The sources of a build by role; None where the build has no such input.

    ``model``: what export reads, or the ONNX model itself when there is no export. ``script``: the user's Python
    file that makes the model. ``validation_data``: what the result
    is run on, when that is not what calibration leaves; each data has its processor. ``looked_at``: the folders and
    files that decided which files these are.
    """

    model: Source | None = None
    script: Source | None = None
    processor: Source | None = None
    calibration_data: Source | None = None
    validation_data: Source | None = None
    validation_processor: Source | None = None
    ranges: Source | None = None
    option_files: Source | None = None
    looked_at: tuple[Path, ...] = ()


@dataclass(frozen=True)
class SavePath:
    """A file of the user's own choice: ``path``, with ``/``, in ``folder``, which is absolute and without links."""

    folder: Path
    path: str


@dataclass(frozen=True)
class Build:
    """One resolved variant: what it is called, where it starts, and the config of each stage.

    ``quantize`` are quantizations one after the other, at least one: float16 of what 4-bit weights leave in float32
    is a second. ``also``: further models that compile puts into one binary with the first. ``sdk``: what
    compiles in place of onnxruntime. ``sensitivity`` ranks nodes
    by the first quantization, beside the line. ``normalize`` is for an ONNX file that needs it; no other build has that
    stage, nor says that it is left out. ``save_ranges``: where calibrate's ranges are put besides. ``declared``:
    stages of the recipe's own, which run beside and between ours. ``search``: in how many rounds optimize and analyze
    come, and what they begin with. ``lacks``: what it takes to run this that is not
    here, as sentences; only of one that is only looked at.
    """

    summary: BuildSummary
    target: Target
    inputs: Inputs
    export: ExportConfig | Skip
    optimize: OptimizeConfig | Skip
    calibrate: CalibrateConfig | Skip
    quantize: tuple[QuantizeConfig, ...] | Skip
    compile: CompileConfig | Skip
    validate: ValidateConfig | Skip
    analyze: AnalyzeConfig | Skip
    search: Search
    finalize: FinalizeConfig | FinalizeSharedConfig | Skip = field(default_factory=FinalizeConfig)
    save_ranges: SavePath | None = None
    sensitivity: SensitivityConfig | None = None
    normalize: NormalizeConfig | None = None
    declared: Declared | None = None
    also: tuple[Source, ...] = ()
    sdk: QairtSdk | None = None
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompositeBuild:
    """A model in several components, which are exported together. ``parts`` are, by name, their builds from there on,
    whose inputs have what the export reads; ``summary`` is about all.
    """

    summary: BuildSummary
    export: ComponentsConfig
    parts: Mapping[str, Build]

    @property
    def lacks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(lack for build in self.parts.values() for lack in build.lacks))


@dataclass(frozen=True)
class OnlyDeclared:
    """A build without a model: of stages that the recipe declares itself, and nothing else."""

    summary: BuildSummary
    declared: Declared


def chosen(config: T | Skip) -> T | None:
    """The config of a stage that is not left out."""
    return None if isinstance(config, Skip) else config


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
class UserPlan:
    """The part of a build that a recipe declares itself.

    Attributes:
        rewired: artifact by stage of ours and slot: where it reads from instead.
        looked_at: files and folders that had a say in this plan, besides the sources.
        absent: where files that commands seem to name, or programs of the same names, are not.
        programs: files that are programs in use, or are none yet, be they found before those.
    """

    nodes: tuple[Node, ...] = ()
    sources: tuple[Source, ...] = ()
    rewired: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    looked_at: tuple[Path, ...] = ()
    absent: tuple[Path, ...] = ()
    programs: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Tools:
    """What a stage's bytes depend on besides its inputs: values for its key, and files whose digests belong there."""

    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


def is_ours(entry: StageEntry) -> bool:
    """Whether *entry* does no work of its own, but says where one of our stages reads from."""
    return entry.command is None and entry.run is None and entry.uses is None
