"""The quantization of a build: a precision or a quant section, with every type set for one target, and its configs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from functools import cache
from typing import TYPE_CHECKING, Any

from winml_dag.engine.stage import Skip
from winml_dag.ep.provider import Integers, Target
from winml_dag.ep.registry import CPU
from winml_dag.errors import RecipeError, UsageError
from winml_dag.pipeline.model import OnnxFile
from winml_dag.recipe.precision import Precision, parse_precision, type_bits
from winml_dag.recipe.schema import Quant
from winml_dag.stages import artifact_types
from winml_dag.stages.quantize import NodeTypes, QuantizeConfig, QuantizeFields, QuantizeTarget

if TYPE_CHECKING:
    from winml_dag.pipeline.decisions import ResolveContext


@dataclass(frozen=True)
class _Model:
    """The meaning of ``quant.model_type`` for fields that are not set: winml-cli's rules for a model."""

    weight_type: str
    activation_bits: int
    left_out: tuple[str, ...]


# Operators with integer weights and float activations run only on the CPU. ConvInteger has no kernel for int8 weights.
_DYNAMIC_WEIGHTS = CPU.integers.weights[8]
_MODELS = {"qwen3": _Model("int8", 16, ("GroupQueryAttention",))}


def quant_section(context: ResolveContext) -> Quant | None:
    recipe = context.recipe
    return recipe.quant or (recipe.compile.quant_config if recipe.compile else None)


def quant_for(context: ResolveContext, target: Target, onnx: OnnxFile | None) -> Quant | Skip:
    """Return the section with every type set, or why the build does not quantize."""
    overrides, section = context.overrides, quant_section(context)
    Quant.from_dict(overrides.section("quant"))  # a mistake is reported even if nothing is quantized
    if overrides.quant is False:
        return Skip("--no-quant was given")
    asked_for_now = overrides.quant is True or overrides.precision is not None
    if onnx is not None and onnx.kind in artifact_types.FINISHED_MODELS and not asked_for_now:
        how = "compiled" if onnx.kind == artifact_types.COMPILED_MODEL else "quantized"
        return Skip(f"{onnx.path.name} is {how} already")
    precision = _precision(context, target)
    if precision is not None and precision.mode is None:
        return Skip(f"precision {precision.name} needs no quantization")
    if precision is not None:
        section = with_precision(section or Quant(), precision, target)
    elif section is None and overrides.quant is not True:
        return Skip(
            "the recipe's quant section is null" if context.wrote("quant") else "the recipe has no quant section"
        )
    return with_types(Quant.merged(section, overrides.section("quant")), target)


def _precision(context: ResolveContext, target: Target) -> Precision | None:
    """Return the precision that was named; None if the quant section decides."""
    name = context.overrides.precision
    if name is None and context.wrote("precision"):
        name = context.recipe.precision
        if context.recipe.quant is None and context.wrote("quant") and parse_precision(name).mode is not None:
            raise RecipeError(
                f"precision is {name}, but quant is null, which means: do not quantize. Keep one of them."
            )
    if name is None and context.loaded is None and context.overrides.quant is None:
        name = "auto"
    return None if name is None else precision_for(name, target)


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


def quantize_configs(quant: Quant, target: Target) -> tuple[QuantizeConfig, ...]:
    """Return the quantizations that *quant* requests, in order."""
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
    values: dict[str, Any] = {name: getattr(quant, name) for name in _fields_read(quant.mode)}
    values = {name: _distinct(value) if isinstance(value, tuple) else value for name, value in values.items()}
    if quant.mode == "static":
        overrides = (
            NodeTypes(nodes, types.weight_type, types.activation_type)
            for nodes, types in sorted(quant.node_overrides.items())
            if types.weight_type or types.activation_type
        )
        values["node_overrides"] = tuple(overrides) or None
        # Also set with 16 bits, where it has no effect, so that editing the precision reports only that change.
        values["equalize"] = quant.equalize is not False
    return QuantizeFields(**values)


@cache
def _fields_read(mode: str) -> tuple[str, ...]:
    return tuple(field.name for field in fields_of(QuantizeFields) if _is_read(mode, field.name))


def _distinct(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return *names* as a sorted set: order and repetition do not change a key, and an empty list equals none."""
    return tuple(sorted(set(names))) if names else None


def precision_for(name: str, target: Target) -> Precision:
    """Return the precision called *name* on *target*, with ``auto`` resolved.

    Raises:
        UsageError: for an unknown name, and for a precision that the target cannot run, with one that it can.
    """
    precision = parse_precision(name)
    if precision.name == "auto":
        return parse_precision(target.ep.auto[target.device][0])
    integers, ep = target.ep.integers, target.ep.name
    weights, activations = precision.weight_bits, precision.activation_bits
    if precision.mode == "dynamic" and not integers.runs_blocks:
        raise UsageError(f"{ep} does not run what dynamic quantization makes.", advice="Use w8a8, or the CPU.")
    if weights is None or activations is None or _takes_as_qdq(integers, precision):
        return precision
    if precision.mode == "rtn" and not integers.runs_blocks:
        instead = "w4a16, whose weights are 4-bit QDQ there" if 4 in integers.weights else "fp16 or w8a8"
        raise UsageError(
            f"{ep} does not run MatMulNBits, the form of block-wise weights that {name} has.", advice=f"Use {instead}."
        )
    if precision.mode == "static" and weights not in integers.weights:
        raise UsageError(
            f"{ep} takes no {weights}-bit weights beside {activations}-bit activations.",
            advice="Use w4a16, w4a32 or w8a8." if integers.runs_blocks else "Use w8a8.",
        )
    if reason := integers.cannot.get((weights, activations)):
        raise UsageError(f"{name}: {ep} {reason}.")
    return precision


def _takes_as_qdq(integers: Integers, precision: Precision) -> bool:
    """Whether *precision* has 4-bit weights that the provider takes as QDQ, with integer activations."""
    return precision.weight_bits == 4 and 4 in integers.weights and precision.activation_bits in integers.activations


def with_precision(quant: Quant, precision: Precision, target: Target) -> Quant:
    """Return *quant* with the mode and bit widths of *precision*; all else is from the section.

    Types in the section stay if they have the requested width: the name does not specify signs.
    """
    weights, activations = precision.weight_bits, precision.activation_bits
    integers = _of_model(quant, target.ep.integers)
    if precision.mode == "static" or _takes_as_qdq(integers, precision):
        assert weights is not None
        assert activations is not None
        return quant.model_copy(
            update={
                "mode": "static",
                "weight_type": _of_width(quant.weight_type, weights) or integers.weights[weights],
                "activation_type": _of_width(quant.activation_type, activations) or integers.activations[activations],
            }
        )
    if precision.mode == "rtn":
        return quant.model_copy(
            update={"mode": "rtn", "rtn_bits": weights, "rtn_float_type": f"float{precision.activation_bits}"}
        )
    return quant.model_copy(update={"mode": precision.mode})


def _of_model(quant: Quant, integers: Integers) -> Integers:
    rules = _MODELS.get(quant.model_type or "")
    if rules is None:
        return integers
    return replace(integers, weights={**integers.weights, 8: rules.weight_type}, weight_symmetric=True)


def notices_of(quant: Quant) -> Iterator[str]:
    """Yield notices about a section whose types are resolved."""
    if quant.mode == "static" and quant.model_type is not None and quant.model_type not in _MODELS:
        yield f"quant.model_type has no effect: there are rules of their own for {', '.join(_MODELS)} only."
    yield from _unread_fields(quant)


def _of_width(integer_type: str | None, bits: int) -> str | None:
    return integer_type if integer_type is not None and type_bits(integer_type) == bits else None


def with_types(quant: Quant, target: Target) -> Quant:
    """Return *quant* with unset types, channels and symmetry filled in from the table of providers.

    Raises:
        UsageError: for types that the target is known not to run together.
    """
    if quant.mode == "dynamic":
        return quant.model_copy(
            update={
                "weight_type": quant.weight_type or _DYNAMIC_WEIGHTS,
                "per_channel": bool(quant.per_channel),
                "weight_symmetric": _first(quant.weight_symmetric, quant.symmetric),
            }
        )
    if quant.mode != "static":
        return quant
    integers, rules = _of_model(quant, target.ep.integers), _MODELS.get(quant.model_type or "")
    weight_type = quant.weight_type or integers.weights[8]
    activation_type = quant.activation_type or integers.activations[rules.activation_bits if rules else 8]
    per_channel = integers.per_channel if quant.per_channel is None else quant.per_channel
    if reason := integers.cannot.get((type_bits(weight_type), type_bits(activation_type))):
        raise UsageError(f"{weight_type} weights with {activation_type} activations: {target.ep.name} {reason}.")
    if integers.rules == "qnn" and type_bits(weight_type) == 4 and (weight_type == "uint4" or not per_channel):
        raise UsageError(
            f"{target.ep.name} takes 4-bit weights in int4 with a scale for each channel only.",
            advice="Set quant.weight_type to int4, and leave quant.per_channel out.",
        )
    return quant.model_copy(
        update={
            "weight_type": weight_type,
            "activation_type": activation_type,
            "per_channel": per_channel,
            "weight_symmetric": _first(quant.weight_symmetric, quant.symmetric, integers.weight_symmetric),
            "activation_symmetric": _first(quant.activation_symmetric, quant.symmetric, integers.activation_symmetric),
        }
    )


def _first(*choices: bool | None) -> bool | None:
    return next((choice for choice in choices if choice is not None), None)


# Fields that a mode does not read: setting one gives a notice that it has no effect. It is not an error, since
# winml-cli writes all fields of all modes to its files; the defaults that it writes are ignored.


_INTEGERS = ("static", "dynamic")
_READ_BY = {
    "weight_type": _INTEGERS,
    "activation_type": ("static",),
    "per_channel": _INTEGERS,
    "symmetric": _INTEGERS,
    "weight_symmetric": _INTEGERS,
    "activation_symmetric": ("static",),
    "reduce_range": _INTEGERS,
    "node_overrides": ("static",),
    "equalize": ("static",),
    "model_type": ("static",),
    "rtn_bits": ("rtn",),
    "rtn_block_size": ("rtn",),
    "rtn_symmetric": ("rtn",),
    "rtn_accuracy_level": ("rtn",),
    "rtn_float_type": ("rtn",),
}
_OF_HALF = ("fp16_keep_io_types", "fp16_op_block_list")
_WRITTEN_BY_DEFAULT = {"weight_type": "uint8", "activation_type": "uint8", "per_channel": False, "symmetric": False}


def _unread_fields(quant: Quant) -> Iterator[str]:
    """Yield a sentence for every field that is set but not read by the mode."""
    makes_half = quant.mode == "fp16" or (quant.mode == "rtn" and quant.rtn_float_type == "float16")
    for name, modes in _READ_BY.items():
        if quant.mode not in modes and _says_something(quant, name):
            yield f"quant.{name} has no effect: mode {quant.mode} does not read it."
    for name in _OF_HALF:
        if not makes_half and _says_something(quant, name):
            yield f"quant.{name} has no effect: nothing becomes float16 in mode {quant.mode}."


def reads(mode: str, name: str) -> bool:
    """Whether *mode* reads the field *name*; true unless it is listed as not read."""
    return _is_read(mode, name) or (mode == "rtn" and name in _OF_HALF)


def _is_read(mode: str, name: str) -> bool:
    return mode == "fp16" if name in _OF_HALF else mode in _READ_BY.get(name, (mode,))


def _says_something(quant: Quant, name: str) -> bool:
    if name not in quant.model_fields_set:
        return False
    defaults = (Quant.model_fields[name].get_default(call_default_factory=True), _WRITTEN_BY_DEFAULT.get(name))
    return getattr(quant, name) not in (*defaults, ())
