"""The config of each stage of the line: the fields that the stage reads, including defaults, or why it is skipped.

Each function is named in a row of :mod:`winml_dag.stages.builtin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args

from winml_dag.engine.stage import Skip
from winml_dag.ep.availability import RunTarget, can_be_asked, is_at_hand
from winml_dag.ep.provider import compile_options, complete_options
from winml_dag.ep.registry import CPU, Target
from winml_dag.errors import RecipeError, UsageError, known_instead
from winml_dag.pipeline.data import not_validated
from winml_dag.pipeline.decisions import Decisions, ResolveContext, file_option_names, provider_options
from winml_dag.pipeline.quantization import notices_of, quantize_configs
from winml_dag.recipe.fields import InputDimension
from winml_dag.recipe.schema import Compile, Export, Validate
from winml_dag.stages import artifact_types
from winml_dag.stages.analyze import ASKED_ABOUT, AnalyzeConfig, AnalyzeFields, AnalyzeTarget, QuantizedTo
from winml_dag.stages.calibrate import CalibrateConfig, CalibrateFields, KeptBack
from winml_dag.stages.compile import CompileConfig, CompileFields
from winml_dag.stages.export import ExportConfig, ExportFields, InputTensor, LoaderFields, RandomWeights
from winml_dag.stages.finalize import FinalizeConfig, OffloadFields
from winml_dag.stages.normalize import NormalizeConfig
from winml_dag.stages.optimize import OptimizeConfig, OptimizeTarget, select
from winml_dag.stages.quality import Bounds, rounding
from winml_dag.stages.quantize import QuantizeConfig
from winml_dag.stages.samples import Columns
from winml_dag.stages.validate import CLASSIFYING_TASKS, ValidateConfig, ValidateFields

# From 21 on, uint16 QDQ is plain ONNX; 23 adds an Attention operator that QNN leaves on the CPU (1 graph became 4).
DEFAULT_OPSET = 21

# Options that take time and do not change which operators a provider takes.
SPEED_OPTIONS = frozenset({"htp_graph_finalization_optimization_mode"})
# Fields that have no effect in a mode without ranges.
_OF_RANGES = ("calibration_load_path", "calibration_save_path", "save_calibration")


def export(build: Decisions) -> ExportConfig | Skip:
    if build.onnx is not None:
        return Skip("the model is ONNX already")
    return export_config(build.context, build.task, build.model.model_type)


def export_config(context: ResolveContext, task: str | None, model_type: str | None) -> ExportConfig:
    loader, random = context.recipe.loader, context.random_weights
    fields = context.recipe.export or Export()
    if fields.module_arguments and loader.module_path is None:
        # Ignoring them would give a wrong result.
        raise RecipeError(
            "export.module_arguments are what a module is called with, but the recipe is for a whole model.",
            advice="Name the module in loader.module_path, or leave them out.",
        )
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
        export=_export_fields(fields),
    )


def _export_fields(export: Export) -> ExportFields:
    # Imported here: only an export needs it.
    from winml_dag.stages.export.inputs import BATCH, sized

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


def normalize(build: Decisions) -> NormalizeConfig | Skip:
    if build.onnx is not None:
        # Imported here: only builds from an ONNX model need it.
        from winml_dag.pipeline.normalization import normalization_for, requested_shapes

        found = normalization_for(
            build.onnx,
            requested_shapes(build.context, build.onnx),
            build.target,
            compiles=build.runs("compile"),
            quantizes=build.quantizes("static", "dynamic"),
        )
        build.notices += found.notices
        if found.config is not None:
            return found.config
    return Skip("the model needs none", listed=False)


def optimize(build: Decisions) -> OptimizeConfig | Skip:
    recipe, wanted, onnx = build.recipe, build.overrides.optimize, build.onnx
    if wanted is False:
        return Skip("--no-optimize was given")
    if wanted is None and recipe.skip_optimize:
        return Skip("skip_optimize is set in the recipe")
    if wanted is None and onnx is not None and onnx.kind in artifact_types.INTEGER_MODELS:
        return Skip(f"{onnx.path.name} is quantized already, and optimizing would break its QDQ pairs")
    # Dynamic quantization has one scale for all channels of a Conv, so nothing may scale its weights by channel.
    # PaddleOCR's classifier has an SQNR of 36 dB with a separate BatchNormalization, and of 20 dB with it folded in.
    kept_apart = dict.fromkeys(("conv_bn_fusion", "conv_mul_fusion"), False) if build.quantizes("dynamic") else {}
    selection = select({**kept_apart, **recipe.optim})
    # Only if a capability's result depends on it: otherwise builds for different targets share this stage.
    target = OptimizeTarget(standard_domain_only=selection.form_depends_on_domain and build.standard_only)
    return OptimizeConfig(dict(sorted(selection.essential().items())), target)


def analyze(build: Decisions) -> AnalyzeConfig | Skip:
    """Return the config of analyze, which asks the provider with the options that it compiles with."""
    wanted, target = build.overrides.analyze, build.target
    if wanted is False:
        return Skip("--no-analyze was given")
    if wanted is None and not build.recipe.auto:
        return Skip("auto is false in the recipe")
    # If a stage of the recipe changes the model in between, discoveries do not apply to the model that optimize reads.
    proposes = build.runs("optimize") and build.rounds > 0 and "analyze" not in build.recipe.stages
    compiled = build.config("compile")
    options = complete_options(target, {}) if isinstance(compiled, Skip) else compiled.compile.provider_options
    optim = build.recipe.optim if build.runs("optimize") else {}
    quantized = build.config("quantize")
    return AnalyzeConfig(
        analyze=AnalyzeFields(propose=proposes),
        target=analyze_target(target, options, standard_only=build.standard_only and proposes),
        optim={name: optim[name] for name in ASKED_ABOUT if name in optim},
        quant=None if isinstance(quantized, Skip) else quantized_to(quantized[-1]),
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


def quantized_to(quantize: QuantizeConfig) -> QuantizedTo | None:
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


def calibrate(build: Decisions) -> CalibrateConfig | Skip:
    quant, given = build.quant, build.calibration
    if isinstance(quant, Skip):
        return quant
    if quant.mode != "static":
        unused = [name for name in _OF_RANGES if getattr(quant, name)]
        without = f", so quant.{unused[0]} has no effect" if unused else ""
        return Skip(f"{quant.mode} needs no activation ranges{without}")
    if given.ranges is not None:
        return Skip(f"the activation ranges come from {quant.calibration_load_path}")
    random = given.data is None
    kept_back = _kept_back(build.recipe.validation) if build.runs("validate") else 0
    return CalibrateConfig(
        CalibrateFields(
            samples=quant.samples,
            calibration_method=quant.calibration_method,
            seed=quant.seed or 0 if random else quant.seed,
            distribution=quant.distribution if random else None,
            columns_mapping=given.columns,
        ),
        KeptBack(None if random else kept_back),
    )


def _kept_back(wanted: Validate) -> int:
    """Return how many samples calibration keeps back: as many as validate runs.

    If the build validates on other data, ``samples`` counts that data, so the default applies: with no samples kept
    back, validating on them later would need a new calibration.
    """
    return wanted.samples if wanted.input_data is None else Validate().samples


def quantize(build: Decisions) -> tuple[QuantizeConfig, ...] | Skip:
    return build.quant if isinstance(build.quant, Skip) else quantize_configs(build.quant, build.target)


def compile_(build: Decisions) -> CompileConfig | Skip:
    """Compile for a target that compiles, unless an argument or the recipe disables it."""
    wanted, onnx = build.overrides.compile, build.onnx
    if onnx is not None and onnx.kind == artifact_types.COMPILED_MODEL and not wanted:
        return Skip(f"{onnx.path.name} is compiled already")
    return compile_config(build.context, build.target)


def compile_config(context: ResolveContext, target: Target) -> CompileConfig | Skip:
    section, wanted = context.recipe.compile, context.overrides.compile
    if wanted is False:
        return Skip("--no-compile was given")
    if not target.ep.makes_ep_context:
        provider_options(context, target)
        return Skip(f"there is nothing to compile for {target.ep.name}: it runs the ONNX model as it is")
    if wanted is None:
        if section is not None and not section.enable_ep_context:
            return Skip("compile.enable_ep_context is false")
        if section is None and context.wrote("compile"):
            return Skip("the recipe's compile section is null")
    options = compile_options(target, provider_options(context, target))
    named = file_option_names(context, target)
    section = section or Compile()
    return CompileConfig(
        CompileFields(
            execution_provider=target.ep.name,
            device=target.device,
            # Files are inputs, by content: their names and paths are not part of a key.
            provider_options={name: value for name, value in options.items() if name not in named},
            embed_context=section.embed_context,
            compiler=section.compiler,
        )
    )


def validate(build: Decisions) -> ValidateConfig | Skip:
    context, target, calibration, given = build.context, build.target, build.calibration, build.validation
    if skip := not_validated(context):
        return skip
    came_compiled = build.model_kind == artifact_types.COMPILED_MODEL
    if came_compiled and not is_at_hand(target.ep):
        return Skip(f"{target.ep.name}, which the model is compiled for, is not installed")
    wanted = build.recipe.validation
    # There is nothing to compare a compiled model with.
    bounds = Bounds() if came_compiled else bounds_of(wanted).completed(build.precision)
    is_random = given.data is None and calibration.data is None
    # A model that was given in integers has ranges, too; none apply to validate's random inputs.
    as_given = isinstance(build.quant, Skip) and build.model_kind != artifact_types.FLOAT_MODEL
    fields = validate_fields(
        wanted,
        bounds,
        build.task,
        on_given_data=given.data is not None,
        is_random=is_random,
        calibrated=not is_random and (as_given or build.quantizes("static")),
        rounding=rounding(build.precision, in_half=target.ep != CPU),
    )
    columns = calibration.columns if given.data is None else given.columns
    names = None if columns is None else Columns(columns)
    as_it_is = build.compiled is None and not came_compiled
    if as_it_is and not (target.ep.takes_onnx and is_at_hand(target.ep)):
        # Compiling the model on load, for a provider that it is never shipped to uncompiled, would show nothing about
        # it.
        return ValidateConfig(fields, RunTarget(CPU.name, "cpu"), names)
    # A session gets no options that name files: they control compilation, and their paths are not content.
    named = file_option_names(context, target)
    options = {name: value for name, value in provider_options(context, target).items() if name not in named}
    return ValidateConfig(fields, RunTarget(target.ep.name, target.device, options), names)


def bounds_of(section: Validate) -> Bounds:
    return Bounds(section.min_cosine, section.min_sqnr_db, section.max_abs_error, section.min_top1_agreement)


def validate_fields(
    wanted: Validate,
    bounds: Bounds,
    task: str | None,
    *,
    on_given_data: bool,
    is_random: bool,
    calibrated: bool,
    rounding: float,
) -> ValidateFields:
    """Return the fields that validate reads, in a build and as a command.

    *on_given_data*: whether the section names the data. All of it is used, unless the section also names a number.
    """
    return ValidateFields(
        min_cosine=bounds.min_cosine,
        samples=None if on_given_data and "samples" not in wanted.model_fields_set else wanted.samples,
        seed=wanted.seed if is_random else None,
        classifies=task is not None and task.endswith(CLASSIFYING_TASKS),
        min_sqnr_db=bounds.min_sqnr_db,
        max_abs_error=bounds.max_abs_error,
        min_top1_agreement=bounds.min_top1_agreement,
        calibrated=calibrated,
        rounding=rounding,
    )


def finalize(build: Decisions) -> FinalizeConfig:
    return finalize_config(build.context, build.config("compile"))


def finalize_config(context: ResolveContext, compiled: CompileConfig | Skip) -> FinalizeConfig:
    """Return the config of finalize, which checks a compiled model for ``compile.require_full_offload``.

    The check is in finalize, so enabling it does not compile again.

    Raises:
        UsageError: when a field needs a compiled model, but nothing is compiled and this run did not disable compiling.
    """
    section = context.recipe.compile
    required = section is not None and section.require_full_offload
    if not isinstance(compiled, Skip):
        return FinalizeConfig(compile=OffloadFields(required))
    overridden = sorted(context.overrides.section("compile").keys() - {"provider_options"})
    if (required or overridden) and context.overrides.compile is not False:
        field = overridden[0] if overridden else "require_full_offload"
        raise UsageError(f"compile.{field} is set, but {compiled.reason}.", advice="Remove one of the two.")
    return FinalizeConfig()


def data_notices(build: Decisions) -> Iterator[str]:
    """Yield what the user should know of data and quantization before relying on the result."""
    given = build.calibration
    on_random_data = build.quantizes("static") and given.data is None
    if on_random_data and given.ranges is None:
        yield (
            "Calibrating on random data: activation ranges will not be those of real inputs. "
            "Set quant.calibration_data for a model that you ship."
        )
    if not isinstance(build.quant, Skip):
        yield from notices_of(build.quant)
    if on_random_data and given.ranges is not None:
        yield (
            "Validating on random data, while the activation ranges come from a file: its figures say little. "
            "Set quant.calibration_data to validate on."
        )


def search_notices(build: Decisions) -> Iterator[str]:
    if build.runs("analyze") and not build.config("analyze").target.asks and build.search.tables is None:
        yield (
            f"There is no table of what {build.target.ep.name} ({build.target.device}) takes, and it is not installed"
            " here, so nothing is known about the model's operators, and no optimizations are proposed."
        )
