"""A build: one fully resolved variant (one model, one precision, one EP and device) and its one output folder.

It has the complete config of every stage, or the reason why it is skipped; nothing downstream reads a recipe. It also
has the stages that a recipe declares, and what their planning needs about built-in stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from winml_dag.canonical import JsonValue
from winml_dag.engine.stage import Node, Source, SourceFile, Stage
from winml_dag.ep.registry import Target
from winml_dag.errors import InputError, RecipeError, UsageError
from winml_dag.pipeline.buildgraph import BuildSummary
from winml_dag.pipeline.request import Overrides
from winml_dag.pipeline.search import Search
from winml_dag.pipeline.sources import Known, ModelFolder, OnnxFile, find_model_folder
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.recipe.document import Positions, known_instead
from winml_dag.recipe.fields import Section
from winml_dag.recipe.load import resolve_path
from winml_dag.recipe.schema import Export, Loader, RandomWeights, Recipe, StageEntry, Validate
from winml_dag.stages import artifact_types
from winml_dag.stages.analyze import AnalyzeConfig
from winml_dag.stages.calibrate import CalibrateConfig
from winml_dag.stages.compile import CompileConfig
from winml_dag.stages.export import ComponentsConfig, ExportConfig
from winml_dag.stages.export.detect import TASKS, model_type_of, task_of
from winml_dag.stages.finalize import FinalizeConfig
from winml_dag.stages.normalize import NormalizeConfig
from winml_dag.stages.optimize import OptimizeConfig
from winml_dag.stages.quantize import QuantizeConfig
from winml_dag.stages.sensitivity import SensitivityConfig
from winml_dag.stages.validate import ValidateConfig

if TYPE_CHECKING:
    from winml_dag.ep.qairt import QairtSdk
    from winml_dag.stages.shared import FinalizeSharedConfig


S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class ResolveContext:
    """A recipe with the options of this run: the input of all decisions. ``base``: the recipe's folder."""

    recipe: Recipe
    base: Path
    has_recipe: bool
    overrides: Overrides

    def wrote(self, section: str) -> bool:
        """Whether the recipe has *section*, even as null."""
        return section in self.recipe.model_fields_set

    @property
    def random_weights(self) -> RandomWeights | None:
        """None if this run names a model: its weights replace the recipe's random weights."""
        if self.overrides.model is not None or self.overrides.onnx is not None:
            return None
        written = self.recipe.loader.random_weights
        return RandomWeights() if written is None and self.overrides.random_weights else written

    @property
    def task(self) -> str | None:
        return self.overrides.task or self.recipe.loader.task

    @property
    def trusts_code(self) -> bool:
        return self.recipe.loader.trust_remote_code or self.overrides.trust_remote_code


def merged(kind: type[S], written: S | None, given: Mapping[str, JsonValue], name: str = "") -> S:
    """Return the section *written*, called *name* in a recipe, with its fields overridden by *given*.

    Raises:
        RecipeError: for an unknown field or invalid value.
    """
    if written is not None and not given:
        return written
    return kind.from_dict({**(written or kind()).to_dict(), **given}, name)


def with_settings(recipe: Recipe, overrides: Overrides) -> Recipe:
    """Return *recipe* with its sections overridden by this run, except ``quant`` and ``compile``.

    Those two need the target.

    Raises:
        RecipeError: as :func:`merged`.
    """
    update: dict[str, object] = {}
    if given := overrides.section("loader"):
        update["loader"] = merged(Loader, recipe.loader, given)
    if given := overrides.section("export"):
        update["export"] = merged(Export, recipe.export, given)
    if given := overrides.section("optim"):
        update["optim"] = {**recipe.optim, **_flags(given)}
    if given := overrides.section("validate"):
        update["validation"] = merged(Validate, recipe.validation, given)
    return recipe.model_copy(update=update) if update else recipe


def _flags(given: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    if unknown := next((name for name in given if name not in CATALOG), None):
        raise RecipeError(f"optim: {unknown!r} is not an optimization{known_instead(unknown, CATALOG)}")
    return given


# Fields of ``export`` that also apply to an ONNX model.
OF_ONNX = ("batch_size", "shape_config", "input_tensors")

# The task of a model without a head: enough to find the modules of an architecture.
_BARE = "feature-extraction"


@dataclass(frozen=True)
class Model:
    """The model that a build starts from: a folder, an ONNX file, or (if neither) random weights."""

    name: str
    folder: ModelFolder | None = None
    onnx: OnnxFile | None = None
    model_type: str | None = None

    @property
    def task(self) -> str | None:
        """The task that it was trained for, according to its folder."""
        return None if self.folder is None else task_of(self.folder.config)

    @property
    def looked_at(self) -> tuple[Path, ...]:
        """Paths other than its own files that influenced which model this is."""
        return () if self.folder is None else self.folder.looked_at


def find_model(context: ResolveContext, known: Known, *, download: bool) -> Model:
    """Find the model that *context* names; *download* allows fetching it from the hub.

    Raises:
        UsageError, RecipeError: when none is named, or the names contradict each other.
        InputError: for a model that is missing or damaged.
    """
    overrides, loader = context.overrides, context.recipe.loader
    if overrides.random_weights and (named := overrides.model or overrides.onnx) is not None:
        raise UsageError(f"--random-weights makes weights up, and {named} has its own.", advice="Give one of them.")
    if overrides.onnx is not None:
        if overrides.model is not None:
            raise UsageError("--model and --onnx name two models.", advice="Give one of them.")
        return _onnx_model(context, str(overrides.onnx), overrides.onnx, known)
    # An argument's path is relative to the current folder, a path in a recipe to the recipe.
    base = Path.cwd() if overrides.model is not None else context.base
    name = overrides.model or loader.path or context.recipe.model
    if context.random_weights is not None:
        return _random_model(context, name)
    if name is not None and name.casefold().endswith(".onnx"):
        return _onnx_model(context, name, resolve_path(base, name), known)
    if name is None and loader.user_script is not None:
        return Model(Path(loader.user_script).name, model_type=loader.model_type)
    if name is None:
        raise UsageError(
            "No model is named.", advice="Give -m/--model, --onnx, `model:` in the recipe, or loader.random_weights."
        )
    if context.recipe.export is None:
        raise RecipeError(f"export is null, which means that the model is ONNX already, but {name!r} is no .onnx file.")
    folder = find_model_folder(name, base, loader.revision, download=download)
    return Model(name, folder=folder, model_type=loader.model_type or model_type_of(folder.config))


def _onnx_model(context: ResolveContext, name: str, path: Path, known: Known) -> Model:
    if other := sorted({*context.overrides.section("export")} - {*OF_ONNX}):
        raise UsageError(
            f"{name} is ONNX already, so nothing is exported, and export.{other[0]} could change nothing.",
            advice="Remove it, or give the PyTorch model. The sizes of inputs can be given.",
        )
    return Model(name, onnx=known.model(path))


def _random_model(context: ResolveContext, named: str | None) -> Model:
    """Return a model with random weights; *named*, the recipe's model, is neither read nor used as a name."""
    is_onnx = named is not None and named.casefold().endswith(".onnx")
    if context.recipe.export is None or is_onnx:
        why = f"{named} is ONNX" if is_onnx else "export is null, which means that the model is ONNX"
        raise RecipeError(f"{why} already, but random weights are for a model that is exported.")
    model_type = context.recipe.loader.model_type
    if model_type is None:
        raise RecipeError(
            "Random weights need loader.model_type, which says what architecture to make.",
            advice="Set it, for example to bert or resnet.",
        )
    return Model(f"{model_type} with random weights", model_type=model_type)


def user_script(context: ResolveContext, model: Model) -> Source | None:
    """Return the Python file that makes the model, if the recipe names one.

    Raises:
        InputError: when it does not exist.
        RecipeError: when the model is already ONNX.
    """
    written = context.recipe.loader.user_script
    if written is None:
        return None
    path = resolve_path(context.base, written)
    if model.onnx is not None:
        raise RecipeError(
            f"loader.user_script is {written!r}, but the model is ONNX already, so nothing is to be made."
        )
    if path.suffix != ".py" or not path.is_file():
        raise InputError(
            f"loader.user_script: {path} is not a Python file.", advice="Paths are relative to the recipe."
        )
    return Source("user script", artifact_types.USER_SCRIPT, (SourceFile(path.name, path),))


def task_for(context: ResolveContext, model: Model) -> str | None:
    """Return the task of *model*, as requested, else as the model declares; None for an ONNX model.

    Raises:
        RecipeError: when neither names a task.
    """
    task = context.task or model.task
    if task is None and context.recipe.loader.model_class is not None and model.onnx is None:
        task = task_of({"architectures": [context.recipe.loader.model_class]})
    if task is None and context.recipe.loader.module_path is not None:
        return _BARE  # enough to load the class that contains the module
    if task is None and model.onnx is None:
        raise RecipeError(
            f"What is {model.name!r} for? Neither the recipe nor the model says.",
            advice=f"Set loader.task or give --task, for example feature-extraction. There are: {', '.join(TASKS)}.",
        )
    return task


T = TypeVar("T")


@dataclass(frozen=True)
class Skip:
    """A stage that is skipped, and why."""

    reason: str


@dataclass(frozen=True)
class Inputs:
    """The sources of a build by role; None if the build has no such input.

    Attributes:
        model: what export reads, or the ONNX model itself without an export.
        script: the user's Python file that makes the model.
        validation_data: what the result runs on, if that is not kept back by calibration; each data has its own
            processor.
        looked_at: the folders and files that decided the choice of these files.
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
    """A path that the user chose: ``path``, with ``/``, in ``folder``, which is absolute and without links."""

    folder: Path
    path: str


@dataclass(frozen=True)
class Build:
    """One resolved variant: its summary, its inputs, and the config of each stage.

    Attributes:
        quantize: at least one quantization, in order; a second one converts what 4-bit weights leave in float32 to
            float16.
        also: further models that compile puts into one binary with the first.
        sdk: compiles instead of onnxruntime.
        sensitivity: ranks nodes by the first quantization, outside of the line.
        normalize: for an ONNX file that needs it; other builds neither have that stage nor list it as skipped.
        save_ranges: an additional path for calibrate's ranges.
        declared: the recipe's own stages, which run next to and between built-in ones.
        search: the number of rounds of optimize and analyze, and their initial input.
        lacks: what this machine lacks to run it, as sentences; only for a build that is only planned.
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
    """A model of several components, which are exported together.

    ``parts``: the builds of the components after the export, by name; their inputs include those of the export.
    ``summary`` is that of the whole model.
    """

    summary: BuildSummary
    export: ComponentsConfig
    parts: Mapping[str, Build]

    @property
    def lacks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(lack for build in self.parts.values() for lack in build.lacks))


@dataclass(frozen=True)
class OnlyDeclared:
    """A build without a model: only stages that the recipe declares."""

    summary: BuildSummary
    declared: Declared


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
    positions: Callable[[], Positions] = Positions


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


@dataclass(frozen=True)
class Tools:
    """What a stage's output depends on other than inputs: values for its key, and files whose digests belong there."""

    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


def rewires_builtin(entry: StageEntry) -> bool:
    """Whether *entry* does no work of its own, but sets an input of a built-in stage."""
    return entry.command is None and entry.run is None and entry.uses is None
