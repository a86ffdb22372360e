"""What a group of nodes is told by: terms that are laid upon the graph from its last node upwards.

A term is matched with one value and gives every way in which the nodes above that value fit, each with the values that
were given names on the way. Additions and products fit in either order of their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations

from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graph import Node

_COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Max", "Min"})
_NEAR = 1e-3  # exporters write sqrt(2/pi) with few digits, and float16 has no more

Condition = Callable[[Dataflow, Node], bool]


@dataclass(frozen=True)
class Bound:
    """What has fitted so far: values by the names that terms give them, and the nodes, the last one first."""

    values: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()

    def naming(self, name: str, value: str) -> Bound | None:
        """None when *name* is another value already."""
        if name in self.values:
            return self if self.values[name] == value else None
        return Bound({**self.values, name: value}, self.nodes)

    def having(self, node: Node) -> Bound:
        known = any(node is other for other in self.nodes)
        return self if known else Bound(self.values, (*self.nodes, node))


Term = Callable[[str, Bound, Dataflow], Iterator[Bound]]


def value(name: str) -> Term:
    """Any value, which is known as *name* from then on."""

    def match(given: str, bound: Bound, _flow: Dataflow) -> Iterator[Bound]:
        named = bound.naming(name, given)
        if given and named is not None:
            yield named

    return match


def constant(name: str, rank: int | None = None) -> Term:
    """What is known before the model runs, of *rank* dimensions if that is said; known as *name* from then on."""

    def match(given: str, bound: Bound, flow: Dataflow) -> Iterator[Bound]:
        tensor = flow.constants.get(given)
        if tensor is not None and rank in (None, len(tensor.dims)):
            named = bound.naming(name, given)
            if named is not None:
                yield named

    return match


def number(wanted: float) -> Term:
    """A constant of one element that is *wanted*, or near to it."""

    def match(given: str, bound: Bound, flow: Dataflow) -> Iterator[Bound]:
        numbers = flow.numbers(given)
        if numbers is not None and len(numbers) == 1 and abs(numbers[0] - wanted) <= _NEAR * max(abs(wanted), 1e-9):
            yield bound

    return match


def scalar(given: str, bound: Bound, flow: Dataflow) -> Iterator[Bound]:
    """One element, whatever it is; before optimize it may be computed from constants."""
    if flow.dims(given) in ((), (1,)):
        yield bound


def op(op_type: str, *inputs: Term, where: Condition | None = None) -> Term:
    """A node of the standard's *op_type*; inputs beyond those that are given are constants."""

    def match(given: str, bound: Bound, flow: Dataflow) -> Iterator[Bound]:
        node = flow.makers.get(given)
        if node is None or node.op_type != op_type or node.domain or node.outputs[0] != given:
            return
        if len(node.inputs) < len(inputs) or (where is not None and not where(flow, node)):
            return
        further = node.inputs[len(inputs) :]
        if any(name and name not in flow.constants for name in further):
            return
        orders = permutations(inputs) if op_type in _COMMUTATIVE and len(inputs) == 2 else (inputs,)
        for order in orders:
            yield from _all(tuple(order), node.inputs, bound.having(node), flow)

    return match


def _all(terms: tuple[Term, ...], names: tuple[str, ...], bound: Bound, flow: Dataflow) -> Iterator[Bound]:
    if not terms:
        yield bound
        return
    for fitted in terms[0](names[0], bound, flow):
        yield from _all(terms[1:], names[1:], fitted, flow)


def either(*terms: Term) -> Term:
    """Whatever fits one of *terms*, the first before the others."""

    def match(given: str, bound: Bound, flow: Dataflow) -> Iterator[Bound]:
        for term in terms:
            yield from term(given, bound, flow)

    return match


def product(first: Term, second: Term, third: Term) -> Term:
    """The product of three, in whatever order it is computed."""
    pairs = ((first, second, third), (first, third, second), (second, third, first))
    return either(*(op("Mul", op("Mul", one, other), last) for one, other, last in pairs))


def is_enclosed(bound: Bound, flow: Dataflow) -> bool:
    """Whether nobody else reads what the nodes give, the last one's result excepted: only then one node can take the
    place of them all.
    """
    inside = {id(node) for node in bound.nodes}
    return all(
        name not in flow.outputs and all(id(reader) in inside for reader in flow.readers.get(name, ()))
        for node in bound.nodes[1:]
        for name in node.outputs
    )
