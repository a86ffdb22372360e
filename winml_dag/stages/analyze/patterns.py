"""Groups of nodes that form one operation of the original model: normalizations, activations, attention, chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from math import pi, sqrt
from typing import Any, TypeAlias

from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graph import HIGH_RANK, Node, integers_of

_COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Max", "Min"})
_NEAR = 1e-3  # exporters write sqrt(2/pi) with few digits, and float16 has no more


@dataclass(frozen=True)
class Constant:
    """A constant, which is bound to *name*; it must have *rank* dimensions if given."""

    name: str
    rank: int | None = None


@dataclass(frozen=True)
class Scalar:
    """Any value of one element. Before optimize it may be computed from constants."""


@dataclass(frozen=True)
class Op:
    """A node of the standard operator *op_type*. Inputs beyond *inputs* must be constants."""

    op_type: str
    inputs: tuple[Term, ...]
    where: Callable[[Dataflow, Node], bool] | None = None


# What a pattern is built from. It is matched with a value, from the last node upwards: a text is any value, which is
# bound to that name; a number is a constant of one element close to it; a list has alternatives.
Term: TypeAlias = str | float | Constant | Scalar | Op | list[Any]


def op(op_type: str, *inputs: Term, where: Callable[[Dataflow, Node], bool] | None = None) -> Op:
    return Op(op_type, inputs, where)


@dataclass(frozen=True)
class Bound:
    """A partial match: values by the names that terms give them, and the matched nodes, the last one first."""

    values: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()

    def having(self, node: Node) -> Bound:
        known = any(node is other for other in self.nodes)
        return self if known else Bound(self.values, (*self.nodes, node))


def _fits(term: Term, given: str, bound: Bound, flow: Dataflow) -> Iterator[Bound]:
    """Yield every way in which the nodes above the value *given* fit *term*, in addition to *bound*."""
    if isinstance(term, list):
        for each in term:
            yield from _fits(each, given, bound, flow)
    elif isinstance(term, Op):
        node = flow.makers.get(given)
        if node is None or node.op_type != term.op_type or node.domain or node.outputs[0] != given:
            return
        count = len(term.inputs)
        if len(node.inputs) < count or (term.where is not None and not term.where(flow, node)):
            return
        if all(not name or name in flow.constants for name in node.inputs[count:]):
            # Commutative operators match with their inputs in either order.
            for order in permutations(term.inputs) if term.op_type in _COMMUTATIVE and count == 2 else (term.inputs,):
                yield from _all_fit(order, node.inputs, bound.having(node), flow)
    elif isinstance(term, float):
        numbers = flow.numbers(given)
        if numbers is not None and len(numbers) == 1 and abs(numbers[0] - term) <= _NEAR * max(abs(term), 1e-9):
            yield bound
    elif isinstance(term, Scalar):
        if flow.dims(given) in ((), (1,)):
            yield bound
    else:
        if isinstance(term, Constant):
            tensor = flow.constants.get(given)
            if tensor is None or term.rank not in (None, len(tensor.dims)):
                return
            term = term.name
        if given and bound.values.get(term, given) == given:
            yield Bound({**bound.values, term: given}, bound.nodes)


def _all_fit(terms: tuple[Term, ...], names: tuple[str, ...], bound: Bound, flow: Dataflow) -> Iterator[Bound]:
    if not terms:
        yield bound
        return
    for fitted in _fits(terms[0], names[0], bound, flow):
        yield from _all_fit(terms[1:], names[1:], fitted, flow)


def _product(first: Term, second: Term, third: Term) -> Term:
    """The product of three values, in any order of computation."""
    pairs = ((first, second, third), (first, third, second), (second, third, first))
    return [op("Mul", op("Mul", one, other), last) for one, other, last in pairs]


def _is_enclosed(bound: Bound, flow: Dataflow) -> bool:
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
                    bound = next(
                        (b for b in _fits(form, node.outputs[0], Bound(), flow) if _is_enclosed(b, flow)), None
                    )
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


_CENTRED = op("Sub", "x", op("ReduceMean", "x"))


def _gelu() -> Iterator[Term]:
    erf = op("Erf", [op("Div", "x", sqrt(2)), op("Mul", "x", 1 / sqrt(2))])
    square = [op("Mul", "x", "x"), op("Pow", "x", 2.0)]
    cube = [op("Pow", "x", 3.0), op("Mul", square, "x")]
    bend, steep = 0.044715, sqrt(2 / pi)
    curve = op("Add", [_product(bend, "x", "x"), op("Mul", square, bend)], 1.0)
    bent = [op("Add", "x", op("Mul", cube, bend)), op("Add", "x", _product(bend, square, "x")), op("Mul", "x", curve)]
    inner = [op("Mul", bent, steep), op("Mul", op("Mul", "x", steep), curve)]
    for kind in (erf, op("Tanh", inner)):
        yield _product("x", 0.5, op("Add", kind, 1.0))


def _root(square: Term) -> Term:
    return op("Sqrt", op("Add", op("ReduceMean", square), Scalar()))


def _layer_norm() -> Iterator[Term]:
    spread = _root([op("Pow", _CENTRED, 2.0), op("Mul", _CENTRED, _CENTRED)])
    normed = [op("Div", _CENTRED, spread), op("Mul", _CENTRED, op("Reciprocal", spread))]
    scaled = op("Mul", normed, Constant("weight"))
    yield op("Add", scaled, Constant("bias"))
    yield scaled
    yield normed


def _rms_norm() -> Term:
    root = _root([op("Pow", "x", 2.0), op("Mul", "x", "x")])
    inverse = [op("Reciprocal", root), op("Div", 1.0, root)]
    normed = [op("Mul", "x", inverse), op("Div", "x", root)]
    return op("Mul", [normed, op("Cast", normed)], Constant("weight"))


def _attention() -> Term:
    scores = op("MatMul", "q", "k")
    scaled = [op("Mul", scores, Scalar()), op("Div", scores, Scalar()), scores]
    masked = [op("Add", scaled, "mask"), op("Where", "mask", scaled, Scalar()), scaled]
    weights = op("Softmax", masked)
    guarded = op("Where", op("IsNaN", weights), Scalar(), weights)
    return op("MatMul", [guarded, weights], "v")


def _of_high_rank(flow: Dataflow, node: Node) -> bool:
    return len(integers_of(node, "perm")) >= HIGH_RANK and bool(flow.dims(node.inputs[0]))


PATTERNS = (
    Pattern("GeluPattern", "GELU", _forms(*_gelu(), last="Mul")),
    Pattern(
        "QuickGeluPattern",
        "GELU by a sigmoid",
        _forms(op("Mul", "x", op("Sigmoid", op("Mul", "x", 1.702))), last="Mul"),
    ),
    Pattern("LayerNormPattern", "layer normalization", _forms(*_layer_norm(), last=("Add", "Mul", "Div"))),
    Pattern("RMSNormPattern", "root mean square normalization", _forms(_rms_norm(), last="Mul")),
    Pattern(
        "MatMulAddPattern",
        "MatMul and Add",
        _forms(op("Add", op("MatMul", "x", Constant("weight", 2)), Constant("bias", 1)), last="Add"),
    ),
    Pattern("AttentionPattern", "attention", _forms(_attention(), last="MatMul")),
    Pattern(
        "ConvBatchNormPattern",
        "Conv and BatchNormalization",
        _forms(op("BatchNormalization", op("Conv", "x", Constant("weight"))), last="BatchNormalization"),
    ),
    Pattern(
        "ReshapeTransposeReshapeOverlyHighDim",
        f"Reshape, Transpose and Reshape through {HIGH_RANK} or more dimensions",
        _forms(op("Reshape", op("Transpose", op("Reshape", "x"), where=_of_high_rank)), last="Reshape"),
    ),
    Pattern("TransposeChainPattern", "chain of Transpose", _chains(("Transpose",))),
    Pattern("ReshapeChainPattern", "chain of Reshape, Flatten, Squeeze and Unsqueeze", _chains(_RESHAPES)),
)
