"""analyze: what the target can do with each operator of a model, and which capabilities of optimize would help.

This is the declaration; the work is in :mod:`winml_dag.stages.analyze.analysis`. The optimizations that it writes are
cumulative. When there is nothing to add, they are byte for byte those that it read, so the optimize stage that reads
them keeps its key and does not run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.engine.stage import InputSlot, Memory, Stage
from winml_dag.ep.availability import RunTarget
from winml_dag.stages import artifact_types

RESULT_FILE = "analyze_result.json"

# The capabilities whose switches in a recipe matter: those that can be proposed, and one that lint reads.
ASKED_ABOUT = (
    "clamp_constant_values",
    "gelu_fusion",
    "highdimRTR_lowdimRTR",
    "layer_norm_fusion",
    "matmul_add_fusion",
    "reshape_mergedreshape",
)


@dataclass(frozen=True)
class AnalyzeFields:
    """How a model is analyzed.

    Attributes:
        propose: whether capabilities are proposed.
        lists_cases: whether the metrics list the uses of operators that the target does not fully support.
    """

    propose: bool = True
    lists_cases: bool = False


@dataclass(frozen=True)
class AnalyzeTarget(RunTarget):
    """The target of the analysis. ``provider_options`` are those of the session that the provider is asked by.

    Attributes:
        standard_domain_only: propose capabilities in the form that they have in the ONNX standard, in which the next
            optimize applies them.
        asks: whether the provider is installed where the stage runs, and is asked what it does with each node.
    """

    execution_provider: str = "CPUExecutionProvider"
    device: str = "cpu"
    standard_domain_only: bool = False
    asks: bool = False


@dataclass(frozen=True)
class QuantizedTo:
    """How quantize will change the model: nodes are judged in their quantized form.

    Attributes:
        activation_type, weight_type: integer types, or ``float16`` for both.
        per_channel: whether weights have one scale per channel.
        op_types: names or patterns of the operators to quantize. All operators if None, or if the model has none of
            them.
        excluded_op_types: names or patterns of operators that are not quantized.
        excluded: names of nodes that are not quantized.
    """

    activation_type: str
    weight_type: str
    per_channel: bool = False
    op_types: tuple[str, ...] | None = None
    excluded_op_types: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnalyzeConfig:
    """The config of analyze.

    Attributes:
        optim: the capabilities that the recipe sets. One that is true is already on; one that is false is not proposed.
        quant: None if the model stays as it is: already quantized, in float32, or with 4-bit weights only.
    """

    analyze: AnalyzeFields = AnalyzeFields()
    target: AnalyzeTarget = AnalyzeTarget()
    optim: Mapping[str, bool] = field(default_factory=dict)
    quant: QuantizedTo | None = None


ANALYZE = Stage(
    name="analyze",
    version=6,
    work="winml_dag.stages.analyze.analysis:run",
    config="winml_dag.stages.analyze:AnalyzeConfig",
    inputs={
        "model": InputSlot(artifact_types.ANY_MODEL),
        "support": InputSlot(frozenset({artifact_types.SUPPORT}), required=False),
        "flags": InputSlot(frozenset({artifact_types.OPTIMIZATIONS}), required=False),
    },
    outputs={"result": artifact_types.ANALYSIS, "flags": artifact_types.OPTIMIZATIONS},
    published={"result": RESULT_FILE},
    packages=("onnx", "onnxruntime", "onnxscript", "onnx-ir", "numpy"),  # those of optimize, whose effect is tried
    likely_unchanged=("flags",),
    timeout_seconds=1800.0,  # compiling a large model once, as some providers do to answer
    memory=Memory(200 << 20, 1.5),
)
