"""Turn the sections of a recipe into configs of stages: each gets the fields that it reads, including defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import get_args

from winml_dag.ep.availability import is_at_hand
from winml_dag.ep.registry import CPU, Target
from winml_dag.errors import RecipeError
from winml_dag.pipeline.compilation import file_option_names, provider_options
from winml_dag.pipeline.data import Data, not_validated
from winml_dag.pipeline.precisions import notices_of
from winml_dag.pipeline.sources import OnnxFile
from winml_dag.pipeline.variant import ResolveContext, Skip
from winml_dag.recipe.document import known_instead
from winml_dag.recipe.fields import InputDimension
from winml_dag.recipe.precision import type_bits
from winml_dag.recipe.schema import Export, Quant, Recipe, Validate
from winml_dag.stages import artifact_types
from winml_dag.stages.calibrate import CalibrateConfig, CalibrateFields, KeptBack
from winml_dag.stages.compile import CompileConfig
from winml_dag.stages.export import ExportConfig, ExportFields, InputTensor, LoaderFields, RandomWeights
from winml_dag.stages.export.inputs import BATCH, sized
from winml_dag.stages.optimize import OptimizeConfig, OptimizeTarget, select
from winml_dag.stages.quality import Bounds, rounding
from winml_dag.stages.quantize import NodeTypes, QuantizeConfig, QuantizeFields, QuantizeTarget
from winml_dag.stages.samples import Columns
from winml_dag.stages.sensitivity import RankedFields, SamplesFields, SensitivityConfig
from winml_dag.stages.target import RunTarget
from winml_dag.stages.validate import CLASSIFYING_TASKS, ValidateConfig, ValidateFields

# From 21 on, uint16 QDQ is plain ONNX; 23 adds an Attention operator that QNN leaves on the CPU (1 graph became 4).
DEFAULT_OPSET = 21

# Fields that have no effect in a mode without ranges.
_OF_RANGES = ("calibration_load_path", "calibration_save_path", "save_calibration")


def refuse_unused(recipe: Recipe) -> None:
    """Raise RecipeError for fields that would have no effect: ignoring them would give a wrong result."""
    if recipe.export is not None and recipe.export.module_arguments and recipe.loader.module_path is None:
        raise RecipeError(
            "export.module_arguments are what a module is called with, but the recipe is for a whole model.",
            advice="Name the module in loader.module_path, or leave them out.",
        )


def refuse_other_quantize(context: ResolveContext, quant: Quant | Skip, onnx: OnnxFile | None) -> None:
    """Raise RecipeError if ``compile.quantize``, which decides nothing, contradicts what the build does."""
    section, overrides = context.recipe.compile, context.overrides
    if section is None or section.quantize is None:
        return
    if not section.quantize and section.quant_config is not None:
        raise RecipeError("compile.quantize is false, but there is compile.quant_config. Keep one of them.")
    given = onnx is not None and onnx.kind in artifact_types.INTEGER_MODELS
    otherwise = overrides.quant is not None or overrides.precision is not None
    if section.quantize and isinstance(quant, Skip) and not (given or otherwise):
        raise RecipeError(
            f"compile.quantize is true, but nothing would be quantized: {quant.reason}.",
            advice="Its place was taken by a quant section, or compile.quant_config: give one of them.",
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


def quantize_configs(quant: Quant | Skip, target: Target) -> tuple[QuantizeConfig, ...] | Skip:
    """Return the quantizations that *quant* requests, in order."""
    if isinstance(quant, Skip):
        return quant
    if quant.mode == "static":
        integers, fields = target.ep.integers, _quantize_fields(quant)
        op_types = None if fields.op_types_to_quantize else operators_by_default(quant, target)
        return (QuantizeConfig(fields, QuantizeTarget(integers.rules, integers.mixes_widths, op_types)),)
    first = QuantizeConfig(_quantize_fields(quant))
    if quant.mode != "rtn" or quant.rtn_float_type == "float32":
        return (first,)
    # A second one, so that w4a32 and w4a16 share the first. It does not use integers, so their operator list does not
    # apply.
    rest = quant.model_copy(update={"mode": "fp16", "op_types_to_quantize": None})
    return (first, QuantizeConfig(_quantize_fields(rest)))


def operators_by_default(quant: Quant, target: Target) -> tuple[str, ...] | None:
    """Return the operators that static quantization for *target* takes by default; None: all. *quant* has its types."""
    assert quant.activation_type is not None
    return target.ep.integers.operators.get(type_bits(quant.activation_type))


def _quantize_fields(quant: Quant) -> QuantizeFields:
    """Return the fields of *quant*, whose types are set, that its mode reads."""
    left_out = QuantizeFields(
        quant.mode,
        op_types_to_quantize=_distinct(quant.op_types_to_quantize),
        op_types_to_exclude=_distinct(quant.op_types_to_exclude),
        nodes_to_exclude=_distinct(quant.nodes_to_exclude),
    )
    if quant.mode == "fp16":
        return replace(
            left_out,
            fp16_keep_io_types=quant.fp16_keep_io_types,
            fp16_op_block_list=_distinct(quant.fp16_op_block_list),
        )
    if quant.mode == "rtn":
        return replace(
            left_out,
            rtn_bits=quant.rtn_bits,
            rtn_block_size=quant.rtn_block_size,
            rtn_symmetric=quant.rtn_symmetric,
            rtn_accuracy_level=quant.rtn_accuracy_level,
        )
    if quant.mode == "dynamic":
        return replace(
            left_out,
            weight_type=quant.weight_type,
            per_channel=quant.per_channel,
            weight_symmetric=quant.weight_symmetric,
            reduce_range=quant.reduce_range,
        )
    overrides = [
        NodeTypes(nodes, types.weight_type, types.activation_type)
        for nodes, types in sorted(quant.node_overrides.items())
        if types.weight_type or types.activation_type
    ]
    return replace(
        left_out,
        weight_type=quant.weight_type,
        activation_type=quant.activation_type,
        per_channel=quant.per_channel,
        weight_symmetric=quant.weight_symmetric,
        activation_symmetric=quant.activation_symmetric,
        node_overrides=tuple(overrides) or None,
        # Also set with 16 bits, where it has no effect, so that editing the precision reports only that change.
        equalize=quant.equalize is not False,
        reduce_range=quant.reduce_range,
    )


def _distinct(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return *names* as a sorted set: order and repetition do not change a key, and an empty list equals none."""
    return tuple(sorted(set(names))) if names else None


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
