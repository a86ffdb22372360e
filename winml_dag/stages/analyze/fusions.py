"""The cases that a pattern would become if a capability of optimize were on, to look up what the target supports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from winml_dag.ep.support.case import AttributeValue, Case, Operand
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graph import integers_of, merged_axes
from winml_dag.stages.analyze.judging import opset
from winml_dag.stages.analyze.patterns import Match
from winml_dag.stages.probe.cases import operand_of

_GELU_OPSET = 20
_LAYER_NORM_OPSET = 17


@dataclass(frozen=True)
class Situation:
    """The context of a pattern: the graph and its opset of the standard domain.

    Attributes:
        standard_domain_only: optimize may use only operators of the ONNX standard.
    """

    flow: Dataflow
    opset: int
    standard_domain_only: bool

    @classmethod
    def of(cls, flow: Dataflow, *, standard_domain_only: bool) -> Situation:
        return cls(flow, opset(flow.model), standard_domain_only)

    def operand(self, name: str) -> Operand:
        return operand_of(name, self.flow)

    def result(self, match: Match) -> Operand:
        """The output of the last node of *match*."""
        return self.operand(match.nodes[-1].outputs[0])


@dataclass(frozen=True)
class Fusion:
    """``capability`` turns ``pattern`` into ``becomes``.

    Attributes:
        cases: returns the cases of the resulting operators; empty where no form exists in that situation.
        since: the first opset in which the standard has a form.
    """

    pattern: str
    capability: str
    becomes: str
    cases: Callable[[Match, Situation], tuple[Case, ...]]
    since: int = 0


def _case(
    op_type: str,
    situation: Situation,
    inputs: tuple[Operand, ...],
    output: Operand,
    domain: str = "",
    **attributes: AttributeValue,
) -> Case:
    number = 1 if domain else situation.opset
    return Case(op_type, domain, number, inputs, (output,), tuple(sorted(attributes.items())))


def _gelu(match: Match, situation: Situation) -> tuple[Case, ...]:
    by_tanh = any(node.op_type == "Tanh" for node in match.nodes)
    x, y = (situation.operand(match.values["x"]),), situation.result(match)
    if situation.opset >= _GELU_OPSET:
        return (_case("Gelu", situation, x, y, approximate="tanh" if by_tanh else "none"),)
    if situation.standard_domain_only:
        return ()
    return (_case("FastGelu" if by_tanh else "Gelu", situation, x, y, "com.microsoft"),)


def _layer_norm(match: Match, situation: Situation) -> tuple[Case, ...]:
    if situation.opset < _LAYER_NORM_OPSET or "weight" not in match.values:
        return ()
    names = [match.values[role] for role in ("x", "weight", "bias") if role in match.values]
    inputs = tuple(situation.operand(name) for name in names)
    return (_case("LayerNormalization", situation, inputs, situation.result(match), axis=-1),)


def _gemm(match: Match, situation: Situation) -> tuple[Case, ...]:
    """With more than two dimensions, a Gemm has a Reshape on both sides."""
    x, weight, bias = (situation.operand(match.values[role]) for role in ("x", "weight", "bias"))
    y = situation.result(match)
    if x.dims is None or y.dims is None or weight.dims is None:
        return ()
    if len(x.dims) == 2:
        return (_case("Gemm", situation, (x, weight, bias), y),)
    rows = None if None in x.dims else prod(dim or 0 for dim in x.dims[:-1])
    flat = Operand(x.dtype, (rows, weight.dims[0]))
    product = Operand(y.dtype, (rows, weight.dims[1]))
    return (
        _reshape(x, flat, situation),
        _case("Gemm", situation, (flat, weight, bias), product),
        _reshape(product, y, situation),
    )


def _one_reshape(match: Match, situation: Situation) -> tuple[Case, ...]:
    x, y = situation.operand(match.values["x"]), situation.result(match)
    return () if y.dims is None or None in y.dims else (_reshape(x, y, situation),)


def _fewer_axes(match: Match, situation: Situation) -> tuple[Case, ...]:
    """Reshape, Transpose and Reshape with fewer axes in between."""
    x, y = situation.operand(match.values["x"]), situation.result(match)
    turned = match.nodes[1]
    split = situation.operand(turned.inputs[0])
    order = integers_of(turned, "perm")
    if split.dims is None or None in split.dims or 0 in split.dims or sorted(order) != [*range(len(split.dims))]:
        return ()
    shape, order = merged_axes(tuple(dim or 0 for dim in split.dims), order)
    if len(shape) >= len(split.dims):
        return ()
    low, after = Operand(x.dtype, shape), Operand(x.dtype, tuple(shape[axis] for axis in order))
    return (
        _reshape(x, low, situation),
        _case("Transpose", situation, (low,), after, perm=order),
        _reshape(after, y, situation),
    )


def _reshape(before: Operand, after: Operand, situation: Situation) -> Case:
    dims = tuple(-1 if dim is None else dim for dim in after.dims or ())
    shape = Operand("int64", (len(dims),), constant=True, values=dims)
    return _case("Reshape", situation, (before, shape), after)


FUSIONS = (
    Fusion("GeluPattern", "gelu_fusion", "OP/ai.onnx/Gelu", _gelu, since=_GELU_OPSET),
    Fusion(
        "LayerNormPattern",
        "layer_norm_fusion",
        "OP/ai.onnx/LayerNormalization",
        _layer_norm,
        since=_LAYER_NORM_OPSET,
    ),
    Fusion("MatMulAddPattern", "matmul_add_fusion", "OP/ai.onnx/Gemm", _gemm),
    Fusion(
        "ReshapeTransposeReshapeOverlyHighDim",
        "highdimRTR_lowdimRTR",
        "SUBGRAPH/ReshapeTransposeReshapeLowDim",
        _fewer_axes,
    ),
    Fusion("ReshapeChainPattern", "reshape_mergedreshape", "OP/ai.onnx/Reshape", _one_reshape),
)
