"""gelu_fusion and its kin: a GELU that is spelled out, exact (Erf) or approximated (Tanh), becomes one operator.

From opset 20 on onnxruntime's basic level fuses the usual Erf forms itself; this adds the others and the tanh form.
onnxscript has such rules, but only towards com.microsoft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OpsetPatternBuilder, OrValue, RewriteRule, RewriteRuleClassBase, Var

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Operand, Outcome, apply_rules, count_sites, either, standard_opset

STANDARD_SINCE = 20

_SQRT_2 = math.sqrt(2)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def _erf(op: OpsetPatternBuilder, x: Var) -> Var:
    return op.Erf(OrValue([op.Div(x, _SQRT_2), either(op.Mul, x, 1 / _SQRT_2)]))


def _tanh(op: OpsetPatternBuilder, x: Var) -> Var:
    """tanh(sqrt(2/pi) * (x + 0.044715 x^3)), or the same with x drawn out."""
    cube = OrValue([op.Pow(x, 3), either(op.Mul, op.Mul(x, x), x)])
    polynomial = either(op.Add, x, either(op.Mul, cube, _CUBIC))
    square = OrValue([either(op.Mul, op.Mul(x, x), _CUBIC), either(op.Mul, either(op.Mul, x, _CUBIC), x)])
    drawn_out = either(op.Mul, either(op.Mul, x, _SQRT_2_OVER_PI), either(op.Add, square, 1.0))
    return op.Tanh(OrValue([either(op.Mul, polynomial, _SQRT_2_OVER_PI), drawn_out]))


class _Gelu(RewriteRuleClassBase):  # type: ignore[misc]
    """0.5 * x * (1 + f(x)): *half* is what is multiplied by 0.5, *swapped* the order of the last product."""

    def __init__(self, approximate: str, half: str, swapped: bool, standard: bool) -> None:
        super().__init__(f"Gelu_{approximate}")
        self._approximate = approximate
        self._half = half
        self._swapped = swapped
        self._standard = standard

    def pattern(self, op: OpsetPatternBuilder, x: Var) -> Var:
        inner = _erf(op, x) if self._approximate == "none" else _tanh(op, x)
        shifted = either(op.Add, inner, 1.0)
        factors: dict[str, tuple[Operand, Operand]] = {
            "x": (either(op.Mul, x, 0.5), shifted),
            "f": (x, either(op.Mul, shifted, 0.5)),
            "product": (either(op.Mul, x, shifted), 0.5),
        }
        one, other = factors[self._half]
        return op.Mul(other, one) if self._swapped else op.Mul(one, other)

    def check(self, context: MatchContext, x: ir.Value) -> bool:  # noqa: ARG002
        return bool(x.dtype == ir.DataType.FLOAT)  # what onnxruntime's CPU kernels take

    def rewrite(self, op: RewriterContext, x: ir.Value) -> ir.Value:
        if self._standard:
            return op.Gelu(x, approximate=self._approximate)
        if self._approximate == "none":
            return op.Gelu(x, _domain="com.microsoft")
        return op.FastGelu(x, _domain="com.microsoft")


_FORMS = ("none", "tanh")  # exact, and approximated


def _rules(forms: Sequence[str], standard: bool) -> list[RewriteRule]:
    return [
        _Gelu.rule(approximate, half, swapped, standard)
        for approximate in forms
        for half in ("x", "f", "product")
        for swapped in (False, True)
    ]


def _fused(model: ir.Model, forms: Sequence[str], *, standard_only: bool) -> Outcome:
    opset = standard_opset(model)
    rules = _rules(forms, standard=opset >= STANDARD_SINCE)
    if opset < STANDARD_SINCE and standard_only:
        sites = count_sites(model, rules)
        return Outcome(
            0, f"{sites} GELU stay: the standard has Gelu since opset 20, the model has {opset}" if sites else ""
        )
    return Outcome(apply_rules(model, rules))


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:
    """Fuse into the standard's Gelu; below opset 20 into com.microsoft's, or not at all if *target* forbids that."""
    return _fused(model, _FORMS, standard_only=target.standard_domain_only)


def fuse_approximated(model: ir.Model, target: OptimizeTarget) -> Outcome:
    """As :func:`apply`, of the form with tanh only."""
    return _fused(model, ("tanh",), standard_only=target.standard_domain_only)


def fuse_exact(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    """As :func:`apply`, of the form with Erf only, and never into another operator than the standard's."""
    return _fused(model, ("none",), standard_only=True)


def approximate(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    """Compute with tanh what is computed with Erf now; an operator stays in its domain."""
    changes = 0
    for graph in model.graphs():
        for node in graph:
            if (
                node.op_type == "Gelu"
                and not node.domain
                and node.attributes.get_string("approximate", "none") == "none"
            ):
                node.attributes["approximate"] = ir.AttrString("approximate", "tanh")
                changes += 1
            elif node.domain == "com.microsoft" and node.op_type in ("Gelu", "BiasGelu"):
                node.op_type = "FastGelu"
                changes += 1
    return Outcome(changes)
