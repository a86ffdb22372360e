"""quantize: float weights and activations become integers (QDQ) or float16.

This is the declaration; the work is in :mod:`winml_dag.stages.quantize.modes`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from winml_dag.engine.stage import InputSlot, Memory, Stage
from winml_dag.stages import artifact_types


@dataclass(frozen=True)
class NodeTypes:
    """The types of the nodes that *nodes* matches, a name or a pattern; None: the default types."""

    nodes: str
    weight_type: str | None = None
    activation_type: str | None = None


@dataclass(frozen=True)
class QuantizeFields:
    """What the chosen ``mode`` reads; fields that it does not read are None, so that editing them changes no key.

    Of the fields that it reads, only ``weight_symmetric`` may be None, which leaves the choice to onnxruntime: weights
    in signed types are symmetric.

    Attributes:
        mode: static, dynamic, rtn or fp16.
        weight_type, activation_type: uint8, int8, uint16 or int16; weights also uint4 or int4.
        op_types_to_quantize, op_types_to_exclude, nodes_to_exclude: names, or patterns with ``*`` and ``?``. Each must
            match something; an operator may match one that is not in this model.
        node_overrides: types of single nodes, for static.
        equalize: whether to protect other values from the effect of outliers in 8-bit activations.
        fp16_op_block_list: operators that stay in float32, in addition to those that have no float16 form.
    """

    mode: str
    weight_type: str | None = None
    activation_type: str | None = None
    per_channel: bool | None = None
    weight_symmetric: bool | None = None
    activation_symmetric: bool | None = None
    op_types_to_quantize: tuple[str, ...] | None = None
    op_types_to_exclude: tuple[str, ...] | None = None
    nodes_to_exclude: tuple[str, ...] | None = None
    node_overrides: tuple[NodeTypes, ...] | None = None
    equalize: bool | None = None
    fp16_keep_io_types: bool | None = None
    fp16_op_block_list: tuple[str, ...] | None = None
    reduce_range: bool | None = None
    rtn_bits: int | None = None
    rtn_block_size: int | None = None
    rtn_symmetric: bool | None = None
    rtn_accuracy_level: int | None = None


@dataclass(frozen=True)
class QuantizeTarget:
    """What the provider requires of QDQ.

    Attributes:
        rules: the rules to follow, ``qnn`` or ``onnxruntime``; None for modes that insert no QDQ.
        mixes_widths: whether 16-bit activations may be mixed with 8-bit ones; None if not relevant.
        op_types: operators that are worth quantizing there, for a config that names none; None: all.
    """

    rules: str | None = None
    mixes_widths: bool | None = None
    op_types: tuple[str, ...] | None = None


@dataclass(frozen=True)
class QuantizeConfig:
    quant: QuantizeFields
    target: QuantizeTarget = QuantizeTarget()


QUANTIZE = Stage(
    name="quantize",
    version=11,
    work="winml_dag.stages.quantize.modes:run",
    config="winml_dag.stages.quantize:QuantizeConfig",
    inputs={
        "model": artifact_types.model_slot("quantized", artifact_types.FLOAT_MODEL),
        "ranges": InputSlot(frozenset({artifact_types.RANGES}), required=False),
    },
    outputs={"model": artifact_types.QUANTIZED_MODEL},
    published={"model": "quantized.onnx"},
    packages=("onnxruntime", "onnx", "numpy", "onnx-ir"),
    memory=Memory(250 << 20, 5.0),
)

# The same stage by mode, if it accepts or outputs models of other types. float16 also accepts what rtn left in float32.
_BY_MODE = {
    "rtn": replace(QUANTIZE, outputs={"model": artifact_types.WEIGHT_ONLY_MODEL}),
    "fp16": replace(
        QUANTIZE,
        inputs={
            **QUANTIZE.inputs,
            "model": artifact_types.model_slot(
                "quantized", artifact_types.FLOAT_MODEL, artifact_types.WEIGHT_ONLY_MODEL
            ),
        },
        outputs={"model": artifact_types.HALF_MODEL},
    ),
}


def quantize_stage(mode: str) -> Stage:
    """Return the declaration of a node with this ``mode``; name, version and work are the same for all."""
    return _BY_MODE.get(mode, QUANTIZE)
