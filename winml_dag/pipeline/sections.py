"""Turn the sections of a recipe into configs of stages: each gets the fields that it reads, including defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import get_args

from winml_dag.engine.stage import Source, SourceFile
from winml_dag.ep.availability import can_be_asked, is_at_hand
from winml_dag.ep.provider import compile_options, complete_options
from winml_dag.ep.registry import CPU, Target
from winml_dag.ep.support import rule_folder, table_paths
from winml_dag.errors import RecipeError, UsageError
from winml_dag.file_reading import before_reading
from winml_dag.pipeline.compilation import file_option_names, provider_options
from winml_dag.pipeline.data import Data, not_validated
from winml_dag.pipeline.quantization import notices_of
from winml_dag.pipeline.search import Search
from winml_dag.pipeline.sources import OnnxFile
from winml_dag.pipeline.variant import ResolveContext, Skip
from winml_dag.recipe.document import known_instead
from winml_dag.recipe.fields import InputDimension
from winml_dag.recipe.schema import Export, Quant, Recipe, Validate
from winml_dag.stages import artifact_types
from winml_dag.stages.analyze import ASKED_ABOUT, AnalyzeConfig, AnalyzeFields, AnalyzeTarget, QuantizedTo
from winml_dag.stages.calibrate import CalibrateConfig, CalibrateFields, KeptBack
from winml_dag.stages.compile import CompileConfig
from winml_dag.stages.export import ExportConfig, ExportFields, InputTensor, LoaderFields, RandomWeights
from winml_dag.stages.export.inputs import BATCH, sized
from winml_dag.stages.optimize import FILE, NOTHING, OptimizeConfig, OptimizeTarget, select
from winml_dag.stages.quality import Bounds, rounding
from winml_dag.stages.quantize import QuantizeConfig
from winml_dag.stages.samples import Columns
from winml_dag.stages.sensitivity import RankedFields, SamplesFields, SensitivityConfig
from winml_dag.stages.target import RunTarget
from winml_dag.stages.validate import CLASSIFYING_TASKS, ValidateConfig, ValidateFields

# From 21 on, uint16 QDQ is plain ONNX; 23 adds an Attention operator that QNN leaves on the CPU (1 graph became 4).
DEFAULT_OPSET = 21

# The name appears in reasons.
BEGIN = Source("no capabilities", artifact_types.OPTIMIZATIONS, (SourceFile(FILE, NOTHING),))
# Options that take time and do not change which operators a provider takes.
SPEED_OPTIONS = frozenset({"htp_graph_finalization_optimization_mode"})
# Each round adds two nodes to the graph, even if it discovers nothing.
MOST_ROUNDS = 20

# Fields that have no effect in a mode without ranges.
_OF_RANGES = ("calibration_load_path", "calibration_save_path", "save_calibration")


def refuse_unused(recipe: Recipe) -> None:
    """Raise RecipeError for fields that would have no effect: ignoring them would give a wrong result."""
    if recipe.export is not None and recipe.export.module_arguments and recipe.loader.module_path is None:
        raise RecipeError(
            "export.module_arguments are what a module is called with, but the recipe is for a whole model.",
            advice="Name the module in loader.module_path, or leave them out.",
        )


def export_config(context: ResolveContext, task: str | None, model_type: str | None) -> ExportConfig:
    loader, random = context.recipe.loader, context.random_weights
    return ExportConfig(
        loader=LoaderFields(
            task=task or "",
            model_type=model_type,
            model_class=loader.model_class,
            module_path=loader.module_path,
            # A model with random weights has no code of its own.
            trust_remote_code=context.trusts_code and random is None,
            random_weights=None if random is None else RandomWeights(random.seed, random.config),
        ),
        export=_export_fields(context.recipe.export or Export()),
    )


def _export_fields(export: Export) -> ExportFields:
    inputs = export.input_tensors
    outputs = export.output_tensors
    axes = export.dynamic_axes
    sizes = dict(export.shape_config or {})
    if unknown := next((name for name in sizes if name not in get_args(InputDimension)), None):
        raise RecipeError(
            f"export.shape_config.{unknown}: no input of an export has such a dimension"
            f"{known_instead(unknown, get_args(InputDimension))}"
        )
    batch_size = sizes.pop(BATCH, export.batch_size)
    return ExportFields(
        opset_version=export.opset_version or DEFAULT_OPSET,
        batch_size=batch_size,
        dynamo=export.dynamo,
        export_params=export.export_params,
        do_constant_folding=export.do_constant_folding,
        enable_hierarchy_tags=export.enable_hierarchy_tags,
        # Without tags their format has no effect, so it is not part of the key.
        hierarchy_tag_format=export.hierarchy_tag_format if export.enable_hierarchy_tags else "full",
        clean_onnx=export.clean_onnx and export.enable_hierarchy_tags,
        input_tensors=None
        if not inputs
        else tuple(
            InputTensor(
                tensor.name,
                tensor.dtype,
                None if tensor.shape is None else sized(tensor.name, tuple(tensor.shape), sizes, batch_size),
                tensor.value_range,
            )
            for tensor in inputs
        ),
        output_tensors=None if not outputs else tuple(tensor.name for tensor in outputs),
        dynamic_axes=None
        if not axes
        else {name: {str(axis): label for axis, label in by_axis.items()} for name, by_axis in axes.items()},
        module_arguments=export.module_arguments or None,
        shape_config=sizes or None,
    )


def optimize_config(
    context: ResolveContext, onnx: OnnxFile | None, quant: Quant | Skip, *, standard_only: bool
) -> OptimizeConfig | Skip:
    """Return the config of optimize. *standard_only*: the target takes only standard ONNX operators.

    Raises:
        RecipeError: for capabilities that contradict each other.
    """
    recipe, wanted = context.recipe, context.overrides.optimize
    if wanted is False:
        return Skip("--no-optimize was given")
    if wanted is None and recipe.skip_optimize:
        return Skip("skip_optimize is set in the recipe")
    if wanted is None and onnx is not None and onnx.kind in artifact_types.INTEGER_MODELS:
        return Skip(f"{onnx.path.name} is quantized already, and optimizing would break its QDQ pairs")
    selection = select({**_kept_apart(quant), **recipe.optim})
    # Only if a capability's result depends on it: otherwise builds for different targets share this stage.
    target = OptimizeTarget(standard_domain_only=standard_only and selection.form_depends_on_domain)
    return OptimizeConfig(dict(sorted(selection.essential().items())), target)


def _kept_apart(quant: Quant | Skip) -> dict[str, bool]:
    """Return capabilities to disable for dynamic quantization: those that scale a Conv's weights by channel.

    It has one scale for all channels of a Conv. PaddleOCR's classifier has an SQNR of 36 dB with a separate
    BatchNormalization, and of 20 dB with it folded in.
    """
    if isinstance(quant, Skip) or quant.mode != "dynamic":
        return {}
    return {"conv_bn_fusion": False, "conv_mul_fusion": False}


def calibrate_config(
    context: ResolveContext, quant: Quant | Skip, validate: ValidateConfig | Skip, given: Data
) -> CalibrateConfig | Skip:
    if isinstance(quant, Skip):
        return quant
    if quant.mode != "static":
        unused = [name for name in _OF_RANGES if getattr(quant, name)]
        without = f", so quant.{unused[0]} has no effect" if unused else ""
        return Skip(f"{quant.mode} needs no activation ranges{without}")
    if given.ranges is not None:
        return Skip(f"the activation ranges come from {quant.calibration_load_path}")
    random = given.data is None
    return CalibrateConfig(
        CalibrateFields(
            samples=quant.samples,
            calibration_method=quant.calibration_method,
            seed=quant.seed or 0 if random else quant.seed,
            distribution=quant.distribution if random else None,
            columns_mapping=given.columns,
        ),
        KeptBack(None if random else 0 if isinstance(validate, Skip) else _kept_back(context.recipe.validation)),
    )


def _kept_back(wanted: Validate) -> int:
    """Return how many samples calibration keeps back: as many as validate runs.

    If the build validates on other data, ``samples`` counts that data, so the default applies: with no samples kept
    back, validating on them later would need a new calibration.
    """
    return wanted.samples if wanted.input_data is None else Validate().samples


def validate_config(
    context: ResolveContext,
    target: Target,
    precision: str,
    quant: Quant | Skip,
    compiled: CompileConfig | Skip,
    calibration: Data,
    given: Data,
    *,
    model_kind: str,
    task: str | None,
) -> ValidateConfig | Skip:
    """Return the config of validate, or why it is skipped; *model_kind* is that of the build's initial model."""
    if skip := not_validated(context):
        return skip
    came_compiled = model_kind == artifact_types.COMPILED_MODEL
    if came_compiled and not is_at_hand(target.ep):
        return Skip(f"{target.ep.name}, which the model came compiled for, is not installed")
    wanted = context.recipe.validation
    given_bounds = Bounds(wanted.min_cosine, wanted.min_sqnr_db, wanted.max_abs_error, wanted.min_top1_agreement)
    bounds = given_bounds.completed(precision)
    is_random = given.data is None and calibration.data is None
    fields = ValidateFields(
        min_cosine=bounds.min_cosine,
        samples=None if given.data is not None and "samples" not in wanted.model_fields_set else wanted.samples,
        seed=wanted.seed if is_random else None,
        classifies=task is not None and task.endswith(CLASSIFYING_TASKS),
        min_sqnr_db=bounds.min_sqnr_db,
        max_abs_error=bounds.max_abs_error,
        min_top1_agreement=bounds.min_top1_agreement,
        # A model that was given in integers has ranges, too; none apply to validate's random inputs.
        calibrated=not is_random
        and (model_kind != artifact_types.FLOAT_MODEL if isinstance(quant, Skip) else quant.mode == "static"),
        rounding=rounding(precision, in_half=target.ep != CPU),
    )
    if came_compiled:
        # There is nothing to compare with bounds.
        fields = replace(fields, min_cosine=None, min_sqnr_db=None, max_abs_error=None, min_top1_agreement=None)
    columns = calibration.columns if given.data is None else given.columns
    names = None if columns is None else Columns(columns)
    as_it_is = isinstance(compiled, Skip) and not came_compiled
    if as_it_is and not (target.ep.takes_onnx and is_at_hand(target.ep)):
        # Compiling the model on load, for a provider that it is never shipped to uncompiled, would show nothing about
        # it.
        return ValidateConfig(fields, RunTarget(CPU.name, "cpu"), names)
    # A session gets no options that name files: they control compilation, and their paths are not content.
    named = file_option_names(context, target)
    options = {name: value for name, value in provider_options(context, target).items() if name not in named}
    return ValidateConfig(fields, RunTarget(target.ep.name, target.device, options), names)


def sensitivity_config(quantize: QuantizeConfig, validate: ValidateConfig) -> SensitivityConfig:
    """Return the config for ranking the nodes that *quantize* quantizes, on the samples of *validate*."""
    same = {field.name: getattr(quantize.quant, field.name) for field in fields_of(quantize.quant)}
    columns = None if validate.quant is None else validate.quant.columns_mapping
    of = validate.validate
    samples = SamplesFields(of.samples, of.seed, of.classifies, of.calibrated)
    return SensitivityConfig(RankedFields(**same, columns_mapping=columns), quantize.target, samples)


def notices(quant: Quant | Skip, given: Data) -> tuple[str, ...]:
    """Return what the user should know before relying on the result."""
    found = []
    static = not isinstance(quant, Skip) and quant.mode == "static"
    if static and given.data is None and given.ranges is None:
        found.append(
            "Calibrating on random data: activation ranges will not be those of real inputs. "
            "Set quant.calibration_data for a model that you ship."
        )
    if not isinstance(quant, Skip):
        found.extend(notices_of(quant))
    if static and given.ranges is not None and given.data is None:
        found.append(
            "Validating on random data, while the activation ranges come from a file: its figures say little. "
            "Set quant.calibration_data to validate on."
        )
    return tuple(found)


# The search for optimize capabilities that help on the target, as a fixed line of stages:
#
#     optimize.0 -> analyze.0 -> optimize.1 -> analyze.1 -> ... -> optimize.N -> analyze.N
#
# Every optimize reads the same model and, from the analyze before it, all capabilities discovered so far. If there are
# no new ones, it has the same key as the previous optimize, and so do all later stages: a search that has converged is
# a cache hit. The rest of the build reads the last optimize, and the last analyze judges it.


def search_of(context: ResolveContext, target: Target, analyze: AnalyzeConfig | Skip) -> Search:
    """Return the search for *target*.

    Raises:
        UsageError: when the folder for the user's own tables is not a folder.
    """
    if isinstance(analyze, Skip):
        return Search(BEGIN)
    asks = analyze.target.asks
    tables = table_paths(target, asks=asks)
    # The file names in it decide which tables exist.
    folder = None if asks else rule_folder(target)
    looked_at = (*tables, *([] if folder is None else [folder]))
    for path in looked_at:
        before_reading(path)
    there = tuple(path for path in looked_at if path.exists())
    return Search(
        begin=BEGIN,
        rounds=_rounds(context) if analyze.analyze.propose else 0,
        refuses_unsupported=not _allows_unsupported(context),
        tables=support_of(tuple(path for path in there if path in tables and path.is_file())),
        looked_at=there,
        absent=tuple(path for path in looked_at if path not in there),
    )


def analyze_config(
    context: ResolveContext,
    target: Target,
    optimize: OptimizeConfig | Skip,
    quantize: tuple[QuantizeConfig, ...] | Skip,
    *,
    compile_: CompileConfig | Skip,
    standard_only: bool,
) -> AnalyzeConfig | Skip:
    """Return the config of analyze; *standard_only* as for the config of optimize.

    The provider is asked with the options that it compiles with.
    """
    wanted = context.overrides.analyze
    if wanted is False:
        return Skip("--no-analyze was given")
    if wanted is None and not context.recipe.auto:
        return Skip("auto is false in the recipe")
    # If a stage of the recipe changes the model in between, discoveries do not apply to the model that optimize reads.
    proposes = not isinstance(optimize, Skip) and _rounds(context) > 0 and "analyze" not in context.recipe.stages
    return AnalyzeConfig(
        analyze=AnalyzeFields(propose=proposes),
        target=analyze_target(
            target,
            complete_options(target, {}) if isinstance(compile_, Skip) else compile_.compile.provider_options,
            standard_only=standard_only and proposes,
        ),
        optim={}
        if isinstance(optimize, Skip)
        else {name: context.recipe.optim[name] for name in ASKED_ABOUT if name in context.recipe.optim},
        quant=None if isinstance(quantize, Skip) else _quantized_to(quantize[-1]),
    )


def analyze_target(target: Target, options: Mapping[str, str], *, standard_only: bool) -> AnalyzeTarget:
    """Return the target of an analysis, which asks the provider with *options* if it is installed.

    Raises:
        UsageError: the configuration names an invalid environment for the provider.
    """
    if not can_be_asked(target):
        return AnalyzeTarget(target.ep.name, target.device, standard_domain_only=standard_only)
    kept = {name: value for name, value in compile_options(target, options).items() if name not in SPEED_OPTIONS}
    return AnalyzeTarget(target.ep.name, target.device, kept, standard_domain_only=standard_only, asks=True)


def search_notices(target: Target, analyze: AnalyzeConfig | Skip, search: Search) -> Iterator[str]:
    """Yield what the user should know about the search before it runs."""
    if not isinstance(analyze, Skip) and not analyze.target.asks and search.tables is None:
        yield (
            f"There is no table of what {target.ep.name} ({target.device}) takes, and it is not installed here, so"
            " nothing can be said of the model's operators, and no optimizations are proposed."
        )


def _rounds(context: ResolveContext) -> int:
    now = context.overrides.max_optim_iterations
    if now is not None and not 0 <= now <= MOST_ROUNDS:
        raise UsageError(f"max_optim_iterations is a number from 0 to {MOST_ROUNDS}, not {now}.")
    return context.recipe.max_optim_iterations if now is None else now


def _allows_unsupported(context: ResolveContext) -> bool:
    return context.overrides.allow_unsupported_nodes or context.recipe.allow_unsupported_nodes


def support_of(paths: tuple[Path, ...]) -> Source | None:
    """Return the tables in *paths* as one source; None without any."""
    # The index is in the name because the first table that lists an operator wins.
    files = tuple(SourceFile(f"{index:03}_{path.name}", path) for index, path in enumerate(paths))
    return Source("operator support", artifact_types.SUPPORT, files) if files else None


def _quantized_to(quantize: QuantizeConfig) -> QuantizedTo | None:
    """Return the types after the last quantization; None if activation types, and so the nodes, do not change."""
    fields = quantize.quant
    if fields.mode == "fp16":
        return QuantizedTo("float16", "float16", excluded=fields.nodes_to_exclude or ())
    if fields.mode != "static" or fields.activation_type is None or fields.weight_type is None:
        return None
    return QuantizedTo(
        fields.activation_type,
        fields.weight_type,
        per_channel=bool(fields.per_channel),
        op_types=fields.op_types_to_quantize or quantize.target.op_types,
        excluded_op_types=fields.op_types_to_exclude or (),
        excluded=fields.nodes_to_exclude or (),
    )
