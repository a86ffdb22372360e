"""What a rewrite is, and what all of them need: rules that hold in either order, constants, shapes.

The rewrites are in the modules beside this one, by what they are about: :mod:`.attention`, :mod:`.normalization`
(with activations), :mod:`.linear` and :mod:`.operators`. The catalog names the function of each
(:mod:`winml_dag.recipe.capabilities`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript.rewriter import MatchContext, RewriterContext
from onnxscript.rewriter.pattern import OrValue, RewriteRule, RewriteRuleClassBase, RewriteRuleSet, Var

from winml_dag.stages.optimize import OptimizeTarget


@dataclass(frozen=True)
class Outcome:
    """What a rewrite did: how many places it changed, and in words what it had to leave as it was."""

    changes: int
    left: str = ""


Operand: TypeAlias = Var | float

# Changes the model in place. With 0 changes it has not touched it: the file will be the same bytes as without it.
Rewrite = Callable[[ir.Model, OptimizeTarget], Outcome]


def rewrite_file(source: Path, destination: Path, names: Sequence[str], target: OptimizeTarget) -> list[Outcome]:
    """Apply the rewrites *names* to the model *source*, in this order; write *destination* if anything changes."""
    model = ir.load(source)
    outcomes = [rewrite_named(name)(model, target) for name in names]
    if any(outcome.changes for outcome in outcomes):
        # onnxruntime keeps nodes whose results have no reader.
        RemoveUnusedNodesPass()(model)
        # The untouched weights stay where they are, in the data file of the source.
        ir.save(model, destination)
    return outcomes


def rewrite_named(name: str) -> Rewrite:
    """The rewrite that the catalog calls *name*, ``module:function``."""
    module, _, function = name.partition(":")
    found: Rewrite = getattr(import_module(f"{__package__}.{module}"), function)
    return found


class Rule(RewriteRuleClassBase):  # type: ignore[misc]
    """A rule whose pattern ends in an operator that takes its two operands in either order.

    The last operator of a pattern cannot be an alternative, so there is one rule for each order. Inside a pattern,
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
        """The last operator of the pattern, its operands in the order of this rule."""
        return operator(other, one, **options) if self._swapped else operator(one, other, **options)


def either(operator: Callable[[Operand, Operand], Var], one: Operand, other: Operand) -> Var:
    """A pattern of an Add or Mul inside another pattern, its operands in either order."""
    return OrValue([operator(one, other), operator(other, one)])


def if_any(count: int, text: str) -> str:
    """``<count> <text>``, or nothing when there is none."""
    return f"{count} {text}" if count else ""


def apply_rules(model: ir.Model, rules: Sequence[RewriteRule]) -> int:
    """Apply *rules* node by node; the number of places changed."""
    return int(RewriteRuleSet(rules).apply_to_model(model))


def count_sites(model: ir.Model, rules: Sequence[RewriteRule]) -> int:
    """In how many places *rules* would apply."""
    return sum(any(rule.match(model, graph, node) for rule in rules) for graph in model.graphs() for node in graph)


def standard_opset(model: ir.Model) -> int:
    """The version of the ONNX standard that the model is written in."""
    return int(model.opset_imports.get("", 1))


def is_constant(value: ir.Value | None) -> bool:
    """Whether nobody can feed another value: older models list their initializers among the inputs, too."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """The shape as Reshape takes it: one dimension may be unknown (-1). None with more of them, or an empty one."""
    if value.shape is None:
        return None
    dims = tuple(dim if isinstance(dim, int) else -1 for dim in value.shape)
    return dims if dims.count(-1) <= 1 and 0 not in dims else None


def shape_constant(op: RewriterContext, shape: tuple[int, ...] | None) -> ir.Value:
    """*shape* as a new constant of the graph: a node and not an initializer, whose name might be taken already."""
    return op.Constant(value=ir.tensor(shape, dtype=ir.DataType.INT64))


def nodes_of(model: ir.Model, op_type: str) -> list[ir.Node]:
    """All nodes of one operator of the standard, in subgraphs too; a list, since the caller changes the graph."""
    return [node for graph in model.graphs() for node in graph if node.op_type == op_type and not node.domain]


def replace_node(node: ir.Node, tape: ir.tape.Tape, values: Sequence[ir.Value]) -> None:
    """Put the nodes of *tape* in the place of *node*, whose outputs become *values*, name by name."""
    graph = node.graph
    assert graph is not None
    ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, node.outputs, values)


def constant(tape: ir.tape.Tape, values: object, dtype: ir.DataType) -> ir.Value:
    """*values* as a new constant of the graph; a node, as with :func:`shape_constant`."""
    return tape.op("Constant", [], {"value": ir.tensor(np.asarray(values, dtype.numpy()))})


def keeps_rank(context: MatchContext, x: ir.Value) -> bool:
    """Whether what a pattern gives has as many dimensions as *x*, as far as that is known: a constant of one number may
    have more of them, and would give them to the result.
    """
    result = context.output_values[0].shape
    return x.shape is None or result is None or len(x.shape) == len(result)


def known_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape where all of it is known."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return tuple(int(dim) for dim in value.shape)


def numbers(value: ir.Value | None) -> NDArray[Any] | None:
    """The numbers of a constant, which are read from its file; None for anything else."""
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    found: NDArray[Any] = value.const_value.numpy()
    return found


def number(value: ir.Value | None) -> float | None:
    """The number of a constant that has just one; None for anything else."""
    found = numbers(value)
    return None if found is None or found.size != 1 else found.item()
