"""Groups of nodes that are one thing to whoever wrote the model: normalizations, activations, attention, chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import pi, sqrt

from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graph import Node, integers_of
from winml_dag.stages.analyze.matching import (
    Bound,
    Term,
    constant,
    either,
    is_enclosed,
    number,
    op,
    product,
    scalar,
    value,
)
from winml_dag.stages.optimize.merged_axes import FROM_RANK

_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Match:
    """A place where a pattern was found: *nodes* in the order of the graph, and its values by their roles."""

    pattern: str
    nodes: tuple[Node, ...]
    values: Mapping[str, str]


@dataclass(frozen=True)
class Pattern:
    """``name``: what results call it. ``find`` gives the places, no node in two of them."""

    name: str
    title: str
    find: Callable[[Dataflow], Iterator[Bound]]

    @property
    def id(self) -> str:
        return f"SUBGRAPH/{self.name}"


def find_all(flow: Dataflow) -> list[Match]:
    """Every place of every pattern, in the order of :data:`PATTERNS` and of the graph. What is a part of an earlier
    pattern is none of its own: a layer normalization is a root mean square normalization of what was centred.
    """
    order = {id(node): place for place, node in enumerate(flow.nodes)}
    found: list[Match] = []
    whole: dict[int, set[int]] = {}  # by node, all nodes of the first pattern that it is in
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
    """A pattern in one of *forms*, the largest first; *last* are the types of its last node."""
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
    """Two or more nodes of *types* in a row, each the only one that reads the result of the one before."""

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
    return len(integers_of(node, "perm")) >= FROM_RANK and bool(flow.dims(node.inputs[0]))


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
        f"Reshape, Transpose and Reshape through {FROM_RANK} or more dimensions",
        _forms(op("Reshape", op("Transpose", op("Reshape", _x), where=_of_high_rank)), last="Reshape"),
    ),
    Pattern("TransposeChainPattern", "chain of Transpose", _chains(("Transpose",))),
    Pattern("ReshapeChainPattern", "chain of Reshape, Flatten, Squeeze and Unsqueeze", _chains(_RESHAPES)),
)
