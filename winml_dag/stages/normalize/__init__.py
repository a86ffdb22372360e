"""normalize: an ONNX file of another tool gets the form that later stages expect, and computes the same.

This is the declaration; the work is in :mod:`winml_dag.stages.normalize.rewrite`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.engine.stage import InputSlot, Memory, Stage
from winml_dag.stages import artifact_types

# The first opset in which QuantizeLinear has an axis, which quantizing per channel needs.
FIRST_OPSET = 13


@dataclass(frozen=True)
class GivenInput:
    """What the recipe sets for one input; None keeps what the file has.

    Attributes:
        shape: the whole shape. A text is a dimension that stays open; ``?`` is one without a name.
        value_range: the range of random data.
    """

    shape: tuple[int | str, ...] | None = None
    value_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class GivenInputs:
    """``input_tensors``: the inputs that change, by name."""

    input_tensors: Mapping[str, GivenInput] = field(default_factory=dict)


@dataclass(frozen=True)
class NormalizeConfig:
    """``raise_opset``: whether a model in an opset below :data:`FIRST_OPSET` is converted to a later one."""

    export: GivenInputs = field(default_factory=GivenInputs)
    raise_opset: bool = False


NORMALIZE = Stage(
    name="normalize",
    version=2,
    work="winml_dag.stages.normalize.rewrite:run",
    config="winml_dag.stages.normalize:NormalizeConfig",
    inputs={
        "model": InputSlot(
            artifact_types.ANY_MODEL - {artifact_types.COMPILED_MODEL},
            refusals={
                artifact_types.COMPILED_MODEL: "its shapes are part of its binary; use the model that it was made from"
            },
        )
    },
    # The output has the same type as the input; the node sets it.
    outputs={"model": artifact_types.FLOAT_MODEL},
    published={"model": "normalized.onnx"},
    packages=("onnx", "onnxruntime", "numpy"),
    memory=Memory(200 << 20, 3.0),
)
