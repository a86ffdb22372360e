"""Groups of nodes that form one operation of the original model: normalizations, activations, attention, chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from math import pi, sqrt

from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.facts import HIGH_RANK
from winml_dag.onnxmodel.graph import Node, integers_of

# A pattern is built from terms, matched against the graph from its last node upwards.
#
# A term is matched with one value. It yields every way in which the nodes above that value fit, each with the values
# that were bound to names. Commutative operators match with their inputs in either order.

_COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Max", "Min"})
_NEAR = 1e-3  # exporters write sqrt(2/pi) with few digits, and float16 has no more

Condition = Callable[[Dataflow, Node], bool]


@dataclass(frozen=True)
class Bound:
    """A partial match: values by the names that terms give them, and the matched nodes, the last one first."""

    values: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()

    def naming(self, name: str, value: str) -> Bound | None:
        """Bind *name* to *value*. None if *name* is already bound to another value."""
        if name in self.values:
            return self if self.values[name] == value else None
        return Bound({**self.values, name: value}, self.nodes)

    def having(self, node: Node) -> Bound:
        known = any(node is other for other in self.nodes)
        return self if known else Bound(self.values, (*self.nodes, node))


Term = Callable[[str, Bound, Dataflow], Iterator[Bound]]


def value(name: str) -> Term:
    """A term that matches any value and binds it to *name*."""

    def match(given: str, bound: Bound, _flow: Dataflow) -> Iterator[Bound]:
        named = bound.naming(name, given)
        if given and named is not None:
            yield named

    return match


def constant(name: str, rank: int | None = None) -> Term:
    """A term that matches a constant and binds it to *name*; it must have *rank* dimensions if *rank* is given."""

    def match(given: str, bound: Bound, flow: Dataflow) -> Iterator[Bound]:
        tensor = flow.constants.get(given)
        if tensor is not None and rank in (None, len(tensor.dims)):
            named = bound.naming(name, given)
            if named is not None:
                yield named

    return match


def number(wanted: float) -> Term:
    """A term that matches a constant of one element that is close to *wanted*."""

    def match(given: str, bound: Bound, flow: Dataflow) -> Iterator[Bound]:
        numbers = flow.numbers(given)
        if numbers is not None and len(numbers) == 1 and abs(numbers[0] - wanted) <= _NEAR * max(abs(wanted), 1e-9):
            yield bound

    return match


def scalar(given: str, bound: Bound, flow: Dataflow) -> Iterator[Bound]:
    """A term that matches any value of one element. Before optimize it may be computed from constants."""
    if flow.dims(given) in ((), (1,)):
        yield bound


def op(op_type: str, *inputs: Term, where: Condition | None = None) -> Term:
    """A term that matches a node of the standard operator *op_type*. Inputs beyond *inputs* must be constants."""

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
    """A term that matches any of *terms*, tried in order."""

    def match(given: str, bound: Bound, flow: Dataflow) -> Iterator[Bound]:
        for term in terms:
            yield from term(given, bound, flow)

    return match


def product(first: Term, second: Term, third: Term) -> Term:
    """A term that matches the product of three values, in any order of computation."""
    pairs = ((first, second, third), (first, third, second), (second, third, first))
    return either(*(op("Mul", op("Mul", one, other), last) for one, other, last in pairs))


def is_enclosed(bound: Bound, flow: Dataflow) -> bool:
    """Whether only the last node's output is read outside the match, so that one node can replace the whole group."""
    inside = {id(node) for node in bound.nodes}
    return all(
        name not in flow.outputs and all(id(reader) in inside for reader in flow.readers.get(name, ()))
        for node in bound.nodes[1:]
        for name in node.outputs
    )


_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Match:
    """One occurrence of a pattern: *nodes* in graph order, and its values by role."""

    pattern: str
    nodes: tuple[Node, ...]
    values: Mapping[str, str]


@dataclass(frozen=True)
class Pattern:
    """A pattern to find. ``name`` is used in results; ``find`` yields occurrences that do not overlap."""

    name: str
    title: str
    find: Callable[[Dataflow], Iterator[Bound]]

    @property
    def id(self) -> str:
        return f"SUBGRAPH/{self.name}"


def find_all(flow: Dataflow) -> list[Match]:
    """Find all occurrences of all patterns, in the order of :data:`PATTERNS` and of the graph.

    Matches inside a match of an earlier pattern are dropped: a layer normalization contains a root mean square
    normalization of the centered values.
    """
    order = {id(node): index for index, node in enumerate(flow.nodes)}
    found: list[Match] = []
    whole: dict[int, set[int]] = {}  # by node, all nodes of the first pattern that contains it
    for pattern in PATTERNS:
        for bound in pattern.find(flow):
            inside = set(map(id, bound.nodes))
            if all(inside <= whole.get(node, set()) for node in inside):
                continue
            for node in inside:
                whole.setdefault(node, inside)
            nodes = sorted(bound.nodes, key=lambda node: order[id(node)])
            found.append(Match(pattern.name, tuple(nodes), bound.values))
    return found


def _forms(*forms: Term, last: str | tuple[str, ...]) -> Callable[[Dataflow], Iterator[Bound]]:
    """A pattern with several *forms*, the largest first; *last* has the operator types of its last node."""
    types = (last,) if isinstance(last, str) else last

    def find(flow: Dataflow) -> Iterator[Bound]:
        taken: set[int] = set()
        for form in forms:
            for node in flow.nodes:
                if node.op_type in types and node.outputs and id(node) not in taken:
                    bound = next((b for b in form(node.outputs[0], Bound(), flow) if is_enclosed(b, flow)), None)
                    if bound is not None and not any(id(each) in taken for each in bound.nodes):
                        taken.update(map(id, bound.nodes))
                        yield bound

    return find


def _chains(types: Sequence[str]) -> Callable[[Dataflow], Iterator[Bound]]:
    """A chain of two or more nodes of *types*, each the only reader of the result before it."""

    def above(node: Node, flow: Dataflow) -> Node | None:
        maker = flow.makers.get(node.inputs[0]) if node.inputs else None
        if maker is None or maker.op_type not in types or maker.outputs[0] in flow.outputs:
            return None
        return maker if len(flow.readers[maker.outputs[0]]) == 1 else None

    def find(flow: Dataflow) -> Iterator[Bound]:
        inner = {id(above(node, flow)) for node in flow.nodes if node.op_type in types}
        for node in flow.nodes:
            if node.op_type not in types or not node.outputs or id(node) in inner:
                continue
            chain = [node]
            while (maker := above(chain[-1], flow)) is not None:
                chain.append(maker)
            if len(chain) > 1:
                yield Bound({"x": chain[-1].inputs[0], "y": node.outputs[0]}, tuple(chain))

    return find


_x = value("x")


def _gelu() -> Iterator[Term]:
    half, one = number(0.5), number(1.0)
    erf = op("Erf", either(op("Div", _x, number(sqrt(2))), op("Mul", _x, number(1 / sqrt(2)))))
    square = either(op("Mul", _x, _x), op("Pow", _x, number(2)))
    cube = either(op("Pow", _x, number(3)), op("Mul", square, _x))
    bend = number(0.044715)
    curve = op("Add", either(product(bend, _x, _x), op("Mul", square, bend)), one)
    bent = either(
        op("Add", _x, op("Mul", cube, bend)),
        op("Add", _x, product(bend, square, _x)),
        op("Mul", _x, curve),
    )
    steep = number(sqrt(2 / pi))
    inner = either(op("Mul", bent, steep), op("Mul", op("Mul", _x, steep), curve))
    for kind in (erf, op("Tanh", inner)):
        yield product(_x, half, op("Add", kind, one))


def _layer_norm() -> Iterator[Term]:
    centred = op("Sub", _x, op("ReduceMean", _x))
    square = either(op("Pow", centred, number(2)), op("Mul", centred, centred))
    spread = op("Sqrt", op("Add", op("ReduceMean", square), scalar))
    normed = either(op("Div", centred, spread), op("Mul", centred, op("Reciprocal", spread)))
    weight = constant("weight")
    yield op("Add", op("Mul", normed, weight), constant("bias"))
    yield op("Mul", normed, weight)
    yield normed


def _rms_norm() -> Iterator[Term]:
    square = either(op("Pow", _x, number(2)), op("Mul", _x, _x))
    root = op("Sqrt", op("Add", op("ReduceMean", square), scalar))
    inverse = either(op("Reciprocal", root), op("Div", number(1.0), root))
    normed = either(op("Mul", _x, inverse), op("Div", _x, root))
    yield op("Mul", either(normed, op("Cast", normed)), constant("weight"))


def _attention() -> Iterator[Term]:
    scores = op("MatMul", value("q"), value("k"))
    scaled = either(op("Mul", scores, scalar), op("Div", scores, scalar), scores)
    masked = either(op("Add", scaled, value("mask")), op("Where", value("mask"), scaled, scalar), scaled)
    weights = op("Softmax", masked)
    guarded = op("Where", op("IsNaN", weights), scalar, weights)
    yield op("MatMul", either(guarded, weights), value("v"))


def _of_high_rank(flow: Dataflow, node: Node) -> bool:
    return len(integers_of(node, "perm")) >= HIGH_RANK and bool(flow.dims(node.inputs[0]))


PATTERNS = (
    Pattern("GeluPattern", "GELU", _forms(*_gelu(), last="Mul")),
    Pattern(
        "QuickGeluPattern",
        "GELU by a sigmoid",
        _forms(op("Mul", _x, op("Sigmoid", op("Mul", _x, number(1.702)))), last="Mul"),
    ),
    Pattern("LayerNormPattern", "layer normalization", _forms(*_layer_norm(), last=("Add", "Mul", "Div"))),
    Pattern("RMSNormPattern", "root mean square normalization", _forms(*_rms_norm(), last="Mul")),
    Pattern(
        "MatMulAddPattern",
        "MatMul and Add",
        _forms(op("Add", op("MatMul", _x, constant("weight", rank=2)), constant("bias", rank=1)), last="Add"),
    ),
    Pattern("AttentionPattern", "attention", _forms(*_attention(), last="MatMul")),
    Pattern(
        "ConvBatchNormPattern",
        "Conv and BatchNormalization",
        _forms(op("BatchNormalization", op("Conv", _x, constant("weight"))), last="BatchNormalization"),
    ),
    Pattern(
        "ReshapeTransposeReshapeOverlyHighDim",
        f"Reshape, Transpose and Reshape through {HIGH_RANK} or more dimensions",
        _forms(op("Reshape", op("Transpose", op("Reshape", _x), where=_of_high_rank)), last="Reshape"),
    ),
    Pattern("TransposeChainPattern", "chain of Transpose", _chains(("Transpose",))),
    Pattern("ReshapeChainPattern", "chain of Reshape, Flatten, Squeeze and Unsqueeze", _chains(_RESHAPES)),
)
