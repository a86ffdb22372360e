"""What is decided of one build: target, task, quantization, data, provider options, and the config of each stage.

Everything is decided from a :class:`ResolveContext`: a recipe with the options of this run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonValue
from winml_dag.engine.stage import Skip, Source, SourceFile
from winml_dag.ep.availability import resolve_target
from winml_dag.ep.provider import complete_options
from winml_dag.ep.providers.qnn import NPU_SETTINGS, option_of, with_npu_settings
from winml_dag.ep.registry import CPU, QNN, Target
from winml_dag.ep.support import rule_folder, table_paths
from winml_dag.errors import InputError, RecipeError, UsageError, known_instead
from winml_dag.file_reading import before_reading
from winml_dag.pipeline.data import Data, data_of, find_calibration, find_validation_data, not_validated
from winml_dag.pipeline.model import Model, OnnxFile, task_for
from winml_dag.pipeline.plan import Search, chosen
from winml_dag.pipeline.quantization import quant_for, quant_section, refuse_other_quantize
from winml_dag.pipeline.request import Overrides
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.recipe.fields import resolve_path
from winml_dag.recipe.precision import precision_name
from winml_dag.recipe.schema import Compile, Export, Loader, Quant, RandomWeights, Recipe, Validate
from winml_dag.stages import artifact_types
from winml_dag.stages.builtin import DECIDED_BY
from winml_dag.stages.compile import CompileConfig
from winml_dag.stages.optimize import FILE, NOTHING

if TYPE_CHECKING:
    from winml_dag.ep.qairt import QairtSdk
    from winml_dag.recipe.load import LoadedRecipe

# The name appears in reasons.
BEGIN = Source("no capabilities", artifact_types.OPTIMIZATIONS, (SourceFile(FILE, NOTHING),))
# Each round adds two nodes to the graph, even if it discovers nothing.
MOST_ROUNDS = 20


_CHIP = {"soc_model", "htp_arch"}


@dataclass(frozen=True)
class ResolveContext:
    """What a build is resolved from.

    Attributes:
        recipe: that of the file *loaded* as it applies to this build, or an empty one.
        output_dir: the folder for its results.
        only: the stages that are wanted, whose prerequisites have to be there; None for all.
        runs: whether the build is to run; if it is only planned, its prerequisites may be missing here.
        download: whether a model or data may be fetched from the hub.
        describes: whether the frozen recipe is needed, which is a file of a finished build.
    """

    recipe: Recipe
    loaded: LoadedRecipe | None
    overrides: Overrides
    output_dir: Path
    only: frozenset[str] | None = None
    runs: bool = True
    download: bool = False
    describes: bool = True

    @classmethod
    def of(cls, loaded: LoadedRecipe | None, overrides: Overrides, output_dir: Path, **settings: Any) -> ResolveContext:
        return cls(Recipe() if loaded is None else loaded.recipe, loaded, overrides, output_dir, **settings)

    @property
    def base(self) -> Path:
        """The folder that paths are relative to."""
        return Path.cwd() if self.loaded is None else self.loaded.path.parent

    def wants(self, stage: str) -> bool:
        return self.only is None or stage in self.only

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

    def with_settings(self) -> ResolveContext:
        """Return the context with the recipe's sections overridden by this run, except ``quant`` and ``compile``.

        Those two need the target.

        Raises:
            RecipeError: for an unknown field or invalid value.
        """
        recipe, given = self.recipe, self.overrides.section
        update: dict[str, object] = {}
        if given("export"):
            update["export"] = Export.merged(recipe.export, given("export"))
        if given("optim"):
            update["optim"] = {**recipe.optim, **_flags(given("optim"))}
        if given("validate"):
            update["validation"] = Validate.merged(recipe.validation, given("validate"))
        return self.with_loader()._updated(update)

    def with_loader(self) -> ResolveContext:
        """Return the context with the section loader overridden: it decides the model and its components."""
        given = self.overrides.section("loader")
        return self._updated({"loader": Loader.merged(self.recipe.loader, given)} if given else {})

    def with_compile_settings(self, target: Target) -> ResolveContext:
        """Return the context with the fields of ``compile`` overridden by this run.

        Provider options are merged one by one. This run's choice of chip overrides both forms in which the recipe can
        give it. Paths of this run are relative to the current folder.

        Raises:
            RecipeError: for an unknown field or invalid value.
        """
        settings = self.overrides.section("compile")
        if not settings:
            return self
        section = self.recipe.compile
        if section is None:
            # Null disables compiling, whatever the session options; a missing section does not.
            section = Compile(enable_ep_context=False) if self.wrote("compile") else Compile()
        given = Compile.from_dict(settings)
        given_names = _given_names(given)
        written = {name: value for name, value in section.to_dict().items() if option_of(name) not in given_names}
        kept = {name: value for name, value in section.provider_options.items() if name not in given_names}
        options = {
            name: str(Path(value).absolute()) if name in target.ep.file_options else value
            for name, value in given.provider_options.items()
        }
        changed = {**written, **settings, "provider_options": {**kept, **options}}
        if given.qnn_sdk_root is not None:
            changed["qnn_sdk_root"] = str(Path(given.qnn_sdk_root).absolute())
        return self._updated({"compile": Compile.from_dict(changed)})

    def _updated(self, sections: Mapping[str, object]) -> ResolveContext:
        return replace(self, recipe=self.recipe.model_copy(update=sections)) if sections else self


def _flags(given: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    for name, value in given.items():
        if name not in CATALOG:
            raise RecipeError(f"optim: {name!r} is not an optimization{known_instead(name, CATALOG)}")
        if not isinstance(value, bool):
            raise RecipeError(f"optim.{name}: expected true or false, got {value!r}")
    return given


def _given_names(section: Compile) -> frozenset[str]:
    """Return the NPU options that *section* sets in either form; a chip and its architecture count as both."""
    fields = {option_of(name) for name in NPU_SETTINGS if getattr(section, name) is not None}
    given_names = fields | section.provider_options.keys()
    return frozenset(given_names | _CHIP if given_names & _CHIP else given_names)


class Decisions:
    """The decisions on one build, each made when another one first needs it.

    Attributes:
        context: with all options of this run merged into its recipe.
        model, onnx: the model that the build starts from; ``onnx`` is None if it has to be exported.
        task: None for an ONNX model whose task nobody named.
        quant: the recipe's section with every type set, or why nothing is quantized.
        notices: what the user should know of the configs made so far.
    """

    def __init__(self, context: ResolveContext, model: Model) -> None:
        self.model, self.onnx = model, model.onnx
        self.target = _target(context, model.onnx)
        self.context = context.with_compile_settings(self.target)
        self.recipe, self.overrides = self.context.recipe, self.context.overrides
        self.task = task_for(self.context, model)
        self.quant: Quant | Skip = quant_for(self.context, self.target, model.onnx)
        self.notices: list[str] = []
        self._configs: dict[str, Any] = {}
        refuse_other_quantize(self.context, self.quant, model.onnx)

    def config(self, stage: str) -> Any:
        """Return the config of *stage*, a stage of the line, or a Skip: what the function in its row returns."""
        if stage not in self._configs:
            self._configs[stage] = _decider(stage)(self)
        return self._configs[stage]

    def runs(self, stage: str) -> bool:
        return not isinstance(self.config(stage), Skip)

    @property
    def compiled(self) -> CompileConfig | None:
        """The config of compile if it is wanted here; stages before it are the same in either case."""
        return chosen(self.config("compile")) if self.context.wants("compile") else None

    def quantizes(self, *modes: str) -> bool:
        """Whether the build quantizes in one of *modes*."""
        return not isinstance(self.quant, Skip) and self.quant.mode in modes

    @property
    def model_kind(self) -> str:
        """The artifact type of the model before any stage but export."""
        return artifact_types.FLOAT_MODEL if self.onnx is None else self.onnx.kind

    @cached_property
    def precision(self) -> str:
        if self.model_kind != artifact_types.FLOAT_MODEL and isinstance(self.quant, Skip):
            return "as it is"
        return precision_name(chosen(self.quant))

    @property
    def standard_only(self) -> bool:
        """Whether optimize has to use only standard ONNX operators.

        Other operators break ahead-of-time compilation into partitions, and static quantization leaves them in float.
        Which of onnxruntime's own operators a provider supports is only certain for its CPU.
        """
        return self.quantizes("static") or self.runs("compile") or self.target.ep != CPU

    @property
    def data_section(self) -> Quant | None:
        """The section that names data: also without quantization, if the build validates on that data."""
        if not isinstance(self.quant, Skip):
            return self.quant
        unused = not_validated(self.context) is not None or self.recipe.validation.input_data is not None
        return None if unused or not self.context.wants("validate") else data_of(quant_section(self.context))

    @cached_property
    def calibration(self) -> Data:
        section = self.data_section
        return Data() if section is None else find_calibration(self.context, self.model, section, self.task)

    @cached_property
    def validation(self) -> Data:
        """The data to validate on, if that is not the data for calibration."""
        if not self.context.wants("validate"):
            return Data()
        return find_validation_data(self.context, self.model, chosen(self.quant), self.task)

    # The search for optimize capabilities that help on the target is a fixed line of stages:
    #
    #     optimize.0 -> analyze.0 -> optimize.1 -> analyze.1 -> ... -> optimize.N -> analyze.N
    #
    # Every optimize reads the same model and, from the analyze before it, all capabilities discovered so far. If there
    # are no new ones, it has the same key as the previous optimize, and so do all later stages: a search that has
    # converged is a cache hit. The rest of the build reads the last optimize, and the last analyze judges it.

    @property
    def rounds(self) -> int:
        """How many optimizations may follow the first, if analyze proposes any."""
        now = self.overrides.max_optim_iterations
        if now is not None and not 0 <= now <= MOST_ROUNDS:
            raise UsageError(f"max_optim_iterations is a number from 0 to {MOST_ROUNDS}, not {now}.")
        return self.recipe.max_optim_iterations if now is None else now

    @cached_property
    def search(self) -> Search:
        """The search for the target. Raises UsageError when the folder for the user's own tables is not a folder."""
        config = self.config("analyze")
        if isinstance(config, Skip):
            return Search(BEGIN)
        tables = table_paths(self.target, asks=config.target.asks)
        # The file names in it decide which tables exist.
        folder = None if config.target.asks else rule_folder(self.target)
        looked_at = (*tables, *([] if folder is None else [folder]))
        for path in looked_at:
            before_reading(path)
        there = tuple(path for path in looked_at if path.exists())
        return Search(
            begin=BEGIN,
            rounds=self.rounds if config.analyze.propose else 0,
            refuses_unsupported=not (self.overrides.allow_unsupported_nodes or self.recipe.allow_unsupported_nodes),
            tables=support_of(tuple(path for path in there if path in tables and path.is_file())),
            looked_at=there,
            absent=tuple(path for path in looked_at if path not in there),
        )


@cache
def _decider(stage: str) -> Callable[[Decisions], Any]:
    module, _, function = DECIDED_BY[stage].partition(":")
    decider: Callable[[Decisions], Any] = getattr(import_module(module), function)
    return decider


def support_of(paths: tuple[Path, ...]) -> Source | None:
    """Return the tables in *paths* as one source; None without any."""
    # The index is in the name because the first table that lists an operator wins.
    files = tuple(SourceFile(f"{index:03}_{path.name}", path) for index, path in enumerate(paths))
    return Source("operator support", artifact_types.SUPPORT, files) if files else None


def _target(context: ResolveContext, onnx: OnnxFile | None) -> Target:
    overrides, recipe = context.overrides, context.recipe
    ep, compiled = recipe.ep, recipe.compile
    device: str | None = recipe.device
    if overrides.ep or overrides.device:
        ep, device = overrides.ep, overrides.device
    elif compiled is not None:
        named = compiled.ep_device
        ep = ep or compiled.execution_provider or (named.ep if named else None)
        device = device if device != "auto" else compiled.device
        device = (named.device or device) if named and device == "auto" else device
    return resolve_target(ep, device) if onnx is None else onnx.target_named(ep, device, onnx.target)


# --- The section ``compile``: options of the provider, files that they name, and the compiler's SDK.


def sdk_of(context: ResolveContext, compiled: CompileConfig | None) -> QairtSdk | None:
    """Return the SDK of the compiler qairt.

    Raises:
        UsageError: when none is named, the path is not a folder, or the SDK does not support a setting.
        InputError: when the folder does not exist.
    """
    section = context.recipe.compile
    if compiled is None or compiled.compile.compiler != "qairt" or section is None:
        return None
    fields = compiled.compile
    if fields.execution_provider != QNN.name or fields.device != "npu":
        raise UsageError(
            f"The compiler qairt is for {QNN.name} on the npu, not for {fields.execution_provider} on the"
            f" {fields.device}.",
            advice="Leave it to ort.",
        )
    from winml_dag.ep.qairt import OPTIONS, find_sdk

    if section.qnn_sdk_root is None:
        raise UsageError(
            "The compiler qairt is Qualcomm's SDK, and compile.qnn_sdk_root (--qnn-sdk-root) does not say where it is.",
            advice="Name its folder, or leave compiling to ort, which needs no SDK.",
        )
    if unread := sorted((fields.provider_options.keys() | file_option_names(context, Target(QNN, "npu"))) - OPTIONS):
        raise UsageError(
            f"The compiler qairt does not support {unread[0]!r}.", advice=f"It knows: {', '.join(sorted(OPTIONS))}."
        )
    return find_sdk(resolve_path(context.base, section.qnn_sdk_root))


def provider_options(context: ResolveContext, target: Target) -> Mapping[str, str]:
    """Return all provider options, including the target's defaults."""
    section = context.recipe.compile
    if section is None:
        return complete_options(target, {})
    given = with_npu_settings(
        target, section.provider_options, section.soc_model, section.htp_arch, section.htp_optimization_level
    )
    return complete_options(target, given)


def file_option_names(context: ResolveContext, target: Target) -> frozenset[str]:
    """Return the recipe's options whose value is a file path: the built-in ones, and those that the recipe declares."""
    section = context.recipe.compile
    if section is None:
        return frozenset()
    return (target.ep.file_options | {*section.provider_option_file_keys}) & section.provider_options.keys()


def option_files(context: ResolveContext, target: Target) -> Source | None:
    """Return the files that provider options name, each under its option's name: they are ordinary inputs.

    Raises:
        InputError: for a missing file.
        UsageError: for a key in ``provider_option_file_keys`` that is not an option.
    """
    section = context.recipe.compile
    if section is None:
        return None
    named = set(section.provider_option_file_keys)
    if unknown := sorted(named - section.provider_options.keys()):
        raise UsageError(
            f"compile.provider_option_file_keys names {unknown[0]!r}, which is not among provider_options."
        )
    files = []
    for name in sorted(file_option_names(context, target)):
        path = resolve_path(context.base, section.provider_options[name])
        if not path.is_file():
            raise InputError(f"compile.provider_options.{name}: {path} is not a file.")
        files.append(SourceFile(f"{name}/{name}{path.suffix}", path))
    return Source("provider option files", artifact_types.OPTION_FILES, tuple(files)) if files else None
