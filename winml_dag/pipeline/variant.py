"""A build: one fully resolved variant (one model, one precision, one EP and device) and its one output folder.

Every stage has its complete config here, or the reason why it is left out; nothing downstream looks at a recipe again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from winml_dag.engine.stage import Source
from winml_dag.ep.qairt import QairtSdk
from winml_dag.ep.registry import Target
from winml_dag.pipeline.buildgraph import BuildSummary
from winml_dag.pipeline.search import Search
from winml_dag.pipeline.userstages.declared import Declared
from winml_dag.stages.analyze import AnalyzeConfig
from winml_dag.stages.calibrate import CalibrateConfig
from winml_dag.stages.compile import CompileConfig
from winml_dag.stages.export import ComponentsConfig, ExportConfig
from winml_dag.stages.finalize import FinalizeConfig
from winml_dag.stages.normalize import NormalizeConfig
from winml_dag.stages.optimize import OptimizeConfig
from winml_dag.stages.quantize import QuantizeConfig
from winml_dag.stages.sensitivity import SensitivityConfig
from winml_dag.stages.shared import FinalizeSharedConfig
from winml_dag.stages.validate import ValidateConfig

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
