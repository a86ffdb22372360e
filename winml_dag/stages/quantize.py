"""quantize: float weights and activations become integers (QDQ) or float16."""

from __future__ import annotations

from dataclasses import dataclass

from winml_dag.engine.stage import InputSlot, Stage
from winml_dag.stages import kinds


@dataclass(frozen=True)
class QuantizeFields:
    """The fields that the chosen ``mode`` reads; those that it does not are None, so that editing them changes no key."""

    mode: str
    weight_type: str | None = None
    activation_type: str | None = None
    per_channel: bool | None = None
    weight_symmetric: bool | None = None
    activation_symmetric: bool | None = None
    op_types_to_quantize: tuple[str, ...] | None = None
    nodes_to_exclude: tuple[str, ...] | None = None
    fp16_keep_io_types: bool | None = None
    fp16_op_block_list: tuple[str, ...] | None = None
    reduce_range: bool | None = None
    rtn_bits: int | None = None
    rtn_block_size: int | None = None
    rtn_symmetric: bool | None = None
    rtn_accuracy_level: int | None = None


@dataclass(frozen=True)
class QuantizeTarget:
    """``rules``: whose QDQ rules to follow, ``qnn`` or ``onnxruntime``; None for modes that insert no QDQ."""

    rules: str | None = None


@dataclass(frozen=True)
class QuantizeConfig:
    quant: QuantizeFields
    target: QuantizeTarget = QuantizeTarget()


QUANTIZE = Stage(
    name="quantize",
    version=1,
    work="winml_dag.stages.quantize:run",
    config="winml_dag.stages.quantize:QuantizeConfig",
    inputs={
        "model": kinds.model_slot("quantized", kinds.FLOAT_MODEL),
        "ranges": InputSlot(frozenset({kinds.RANGES}), required=False),
    },
    outputs={"model": kinds.QUANTIZED_MODEL},
    packages=("onnxruntime", "onnx", "numpy", "onnx-ir"),
)
