"""The definition of a rewrite, and shared helpers: rules for either operand order, constants, shapes.

The rewrites are in the other modules of this package, by subject: :mod:`.attention`, :mod:`.normalization` (with
activations), :mod:`.linear` and :mod:`.operators`. The catalog names the function of each
(:mod:`winml_dag.recipe.capabilities`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OrValue, RewriteRule, RewriteRuleClassBase, RewriteRuleSet, Var

from winml_dag.stages.optimize import OptimizeTarget


@dataclass(frozen=True)
class Outcome:
    """The result of a rewrite: how many sites it changed, and a text on what it left unchanged."""

    changes: int
    left: str = ""


Operand: TypeAlias = Var | float

# Changes the model in place. With 0 changes it must leave the model untouched: the file stays byte for byte the same.
Rewrite = Callable[[ir.Model, OptimizeTarget], Outcome]


def rewrite_file(source: Path, destination: Path, names: Sequence[str], target: OptimizeTarget) -> list[Outcome]:
    """Apply the rewrites *names* to the model *source*, in this order; write *destination* if anything changes."""
    model = ir.load(source)
    outcomes = [rewrite_named(name)(model, target) for name in names]
    if any(outcome.changes for outcome in outcomes):
        # onnxruntime keeps nodes whose results have no reader.
        RemoveUnusedNodesPass()(model)
        # Unchanged weights stay in the data file of the source.
        ir.save(model, destination)
    return outcomes


def rewrite_named(name: str) -> Rewrite:
    """The rewrite that a capability calls *name*, ``module:function``."""
    module, _, function = name.partition(":")
    found: Rewrite = getattr(import_module(module, __package__), function)
    return found


class Rule(RewriteRuleClassBase):  # type: ignore[misc]
    """A rule whose pattern ends in an operator that accepts its two operands in either order.

    The last operator of a pattern cannot be an alternative, so there is one rule per order. Inside a pattern,
    :func:`either` does the same. (The rewriter's own ``commute`` fails on patterns with alternatives, and would make
    2^n patterns of n operators.)
    """

    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self._swapped = swapped

    @classmethod
    def both_orders(cls, *arguments: object) -> list[RewriteRule]:
        return [cls.rule(swapped, *arguments) for swapped in (False, True)]

    def last(self, operator: Callable[..., Var], one: Operand, other: Operand, **options: object) -> Var:
        """The last operator of the pattern, with its operands in the order of this rule."""
        return operator(other, one, **options) if self._swapped else operator(one, other, **options)


def either(operator: Callable[[Operand, Operand], Var], one: Operand, other: Operand) -> Var:
    """A pattern of an Add or Mul inside another pattern, with its operands in either order."""
    return OrValue([operator(one, other), operator(other, one)])


def if_any(count: int, text: str) -> str:
    """``<count> <text>``, or an empty text if *count* is 0."""
    return f"{count} {text}" if count else ""


def apply_rules(model: ir.Model, rules: Sequence[RewriteRule]) -> int:
    """Apply *rules* node by node; return the number of sites changed."""
    return int(RewriteRuleSet(rules).apply_to_model(model))


def by_rules(rules: Callable[[], Sequence[RewriteRule]]) -> Rewrite:
    """The rewrite that applies what *rules* returns."""
    return lambda model, _: Outcome(apply_rules(model, rules()))


def count_sites(model: ir.Model, rules: Sequence[RewriteRule]) -> int:
    """The number of sites at which *rules* would apply."""
    return sum(any(rule.match(model, graph, node) for rule in rules) for graph in model.graphs() for node in graph)


T = TypeVar("T")


def checked(value: T | None) -> T:
    """Return *value*, of which the ``check`` of the same rule has found that it is known."""
    assert value is not None
    return value


def standard_opset(model: ir.Model) -> int:
    """The version of the ONNX standard that the model uses."""
    return int(model.opset_imports.get("", 1))


def is_constant(value: ir.Value | None) -> bool:
    """Whether *value* is fixed. An initializer that is also a graph input, as in older models, can be overridden."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """The shape in the form that Reshape takes, with at most one unknown dimension (-1); None if there is none."""
    if value.shape is None:
        return None
    dims = tuple(dim if isinstance(dim, int) else -1 for dim in value.shape)
    return dims if dims.count(-1) <= 1 and 0 not in dims else None


def shape_constant(op: RewriterContext, shape: tuple[int, ...] | None) -> ir.Value:
    """*shape* as a new constant of the graph. It is a node, since the name of an initializer might be taken."""
    return op.Constant(value=ir.tensor(shape, dtype=ir.DataType.INT64))


def nodes_of(model: ir.Model, op_type: str) -> list[ir.Node]:
    """All nodes of one standard operator, including those in subgraphs; a list, since the caller changes the graph."""
    return [node for graph in model.graphs() for node in graph if node.op_type == op_type and not node.domain]


def replace_each(
    model: ir.Model, op_type: str, make: Callable[[ir.Node, ir.tape.Tape], Sequence[ir.Value] | None], stay: str = ""
) -> Outcome:
    """Replace each node of a standard operator by the values that *make* computes on a tape, one for each output.

    Where *make* returns None the node stays, and *stay* says why.
    """
    nodes = nodes_of(model, op_type)
    changes = 0
    for node in nodes:
        tape = ir.tape.Tape()
        if (values := make(node, tape)) is not None and node.graph is not None:
            ir.convenience.replace_nodes_and_values(node.graph, node, [node], tape.nodes, node.outputs, values)
            changes += 1
    return Outcome(changes, if_any(len(nodes) - changes, stay) if stay else "")


def constant(tape: ir.tape.Tape, values: object, dtype: ir.DataType) -> ir.Value:
    """*values* as a new constant of the graph; a node, as with :func:`shape_constant`."""
    return tape.op("Constant", [], {"value": ir.tensor(np.asarray(values, dtype.numpy()))})


def keeps_rank(context: MatchContext, x: ir.Value) -> bool:
    """Whether the output of a pattern has as many dimensions as *x*, as far as known.

    A constant of one number may have more dimensions, which the result would get too.
    """
    result = context.output_values[0].shape
    return x.shape is None or result is None or len(x.shape) == len(result)


def known_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape, if all dimensions are known."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return tuple(int(dim) for dim in value.shape)


def numbers(value: ir.Value | None) -> NDArray[Any] | None:
    """The numbers of a constant, read from its file; None for anything else."""
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    found: NDArray[Any] = value.const_value.numpy()
    return found


def number(value: ir.Value | None) -> float | None:
    """The number of a constant with exactly one; None for anything else."""
    found = numbers(value)
    return None if found is None or found.size != 1 else found.item()
