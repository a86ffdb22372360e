"""analyze: what the target can do with each operator of a model, and which capabilities of optimize would help.

This is the declaration; the work is in :mod:`winml_dag.stages.analyze.analysis`. The optimizations that it puts out are
cumulative, and byte for byte those that it read when there is nothing to add: the optimize that reads them has the key
of the one before then, and need not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.engine.stage import InputSlot, Memory, Stage
from winml_dag.stages import kinds

RESULT_FILE = "analyze_result.json"

# The capabilities that a recipe's word on makes a difference: those that can be proposed, and what lint looks for.
ASKED_ABOUT = (
    "clamp_constant_values",
    "gelu_fusion",
    "highdimRTR_lowdimRTR",
    "layer_norm_fusion",
    "matmul_add_fusion",
    "reshape_mergedreshape",
)


@dataclass(frozen=True)
class Learned:
    """What a trial on the target has told of a case, which is known by ``key``: its verdict, and why that is so."""

    key: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class AnalyzeFields:
    """How a model is looked at.

    Attributes:
        propose: whether capabilities are proposed.
        learned: fills what the tables leave open.
        lists_cases: whether the metrics have the cases that the target does not simply run, for whoever tries them.
    """

    propose: bool = True
    learned: tuple[Learned, ...] = ()
    lists_cases: bool = False


@dataclass(frozen=True)
class AnalyzeTarget:
    """``execution_provider`` is the full name. ``standard_domain_only``: capabilities are judged and proposed in the
    form that they have in the ONNX standard, in which the next optimize applies them.
    """

    execution_provider: str = "CPUExecutionProvider"
    device: str = "cpu"
    standard_domain_only: bool = False


@dataclass(frozen=True)
class QuantizedTo:
    """What quantize will make of the model: nodes are judged as they will be then.

    Attributes:
        activation_type, weight_type: integer types, or ``float16`` for both.
        per_channel: whether weights have a scale for each channel.
        op_types: names or patterns of operators that are quantized; all for None, and where a model has none of them.
        excluded_op_types: names or patterns of operators that are not.
        excluded: names of nodes that are not.
    """

    activation_type: str
    weight_type: str
    per_channel: bool = False
    op_types: tuple[str, ...] | None = None
    excluded_op_types: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnalyzeConfig:
    """``optim``: the recipe's own words on capabilities: what is true is on already, what is false is not proposed.

    ``quant`` is None where the model stays as it is: quantized already, in float32, or with weights of 4 bits only.
    """

    analyze: AnalyzeFields = AnalyzeFields()
    target: AnalyzeTarget = AnalyzeTarget()
    optim: Mapping[str, bool] = field(default_factory=dict)
    quant: QuantizedTo | None = None


ANALYZE = Stage(
    name="analyze",
    version=4,
    work="winml_dag.stages.analyze.analysis:run",
    config="winml_dag.stages.analyze:AnalyzeConfig",
    inputs={
        "model": InputSlot(kinds.ANY_MODEL),
        "support": InputSlot(frozenset({kinds.SUPPORT}), required=False),
        "flags": InputSlot(frozenset({kinds.OPTIMIZATIONS}), required=False),
    },
    outputs={"result": kinds.ANALYSIS, "flags": kinds.OPTIMIZATIONS},
    packages=("onnx",),  # infers shapes that a file does not tell
    likely_unchanged=("flags",),
    timeout_seconds=600.0,
    memory=Memory(60 << 20, 0.1),
)
