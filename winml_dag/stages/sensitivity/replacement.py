"""Replaces one node of the float model with its quantized form.

The replacement is cut out of the quantized model, so its types, scales and rounded weights are those that the user
gets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from onnx import GraphProto, NodeProto, TensorProto, helper

from winml_dag.onnxmodel.graph import QDQ
from winml_dag.onnxmodel.protos import readers_of

# No name in the float model starts with this.
_OWN = "quantized alone/"


@dataclass(frozen=True)
class Replacement:
    """``nodes`` and their ``constants``, for the float nodes at the positions ``covers``, in graph order.

    The first position is that of the node itself; the others are activations that its output's lowest integer
    represents.
    """

    covers: tuple[int, ...]
    nodes: tuple[NodeProto, ...]
    constants: tuple[TensorProto, ...]


def from_qdq(before: GraphProto, after: GraphProto) -> Iterator[Replacement]:
    """Yield a replacement for each node of *before* that reads or computes a value that passes Q and DQ in *after*."""
    quantized = _Graph(after)
    same = {node.name: node for node in after.node if node.op_type not in QDQ}
    values = {name for node in before.node for name in node.output}
    makers = {name: position for position, node in enumerate(before.node) for name in node.output}
    # The names of the float model's values in the quantized model, if it computes them.
    floats = {value.name: value.name for value in before.input}
    for node in before.node:
        if node.name in same:
            for name in same[node.name].output:
                floats[name] = quantized.behind_qdq(name, values)
    for position, node in enumerate(before.node):
        if node.name not in same:
            continue
        own = {name: floats[name] for name in same[node.name].output if name}
        ends = {quantized.dequantized(name): float_name for name, float_name in own.items()}
        others = {name: float_name for name, float_name in floats.items() if name not in own}
        found = quantized.leading_to(ends, others)
        if any(one.op_type in QDQ for one in found):
            covers = _covered(before, position, own.values(), makers)
            yield _replacement(quantized, covers, found, {**others, **ends})


def with_second_ones(graph: GraphProto, found: Iterable[Replacement], names: Collection[str]) -> list[Replacement]:
    """Return *found*, with the replacements of a node and of its duplicate combined.

    Equalization may have added a second normalization after one that others read too. It is not among the *names* of
    the model's own nodes.
    """
    replacements: list[Replacement] = []
    for one in found:
        position = one.covers[0]
        last = replacements[-1] if replacements else None
        if last is None or graph.node[position].name in names or last.covers[0] != position - 1:
            replacements.append(one)
            continue
        own = {tensor.name for tensor in last.constants}
        constants = (*last.constants, *(tensor for tensor in one.constants if tensor.name not in own))
        made = {name for node in last.nodes for name in node.output}
        # Both pass the same value through the same Q and DQ.
        nodes = (*last.nodes, *(node for node in one.nodes if node.output[0] not in made))
        replacements[-1] = Replacement((*last.covers, *one.covers), nodes, constants)
    return replacements


def from_integer_operators(before: GraphProto, after: GraphProto) -> Iterator[Replacement]:
    """Yield a replacement for each node of *before* whose output other operators compute in *after* (dynamic, rtn)."""
    quantized = _Graph(after)
    values = {name for node in before.node for name in node.output} | {value.name for value in before.input}
    for position, node in enumerate(before.node):
        own = [name for name in node.output if name]
        if not all(name in quantized.makers for name in own):
            continue
        if len(own) == 1 and quantized.makers[own[0]] == node:
            continue
        found = quantized.leading_to(own, values - set(own))
        if found != [node]:
            kept = {name: name for name in values}
            yield _replacement(quantized, (position,), found, kept)


def from_half(before: GraphProto, after: GraphProto, stays: Collection[str]) -> Iterator[Replacement]:
    """Yield a replacement for each node of *before* that is in float16 in *after*: it reads and outputs float16 values.

    The nodes named in *stays* are in float32. The replacement itself computes in float32, as the CPU does without a
    float16 kernel. onnxruntime removes the casts that it inserts for that, and the rounding with them, but not these
    casts.
    """
    halves = {tensor.name: tensor for tensor in after.initializer if tensor.data_type == TensorProto.FLOAT16}
    floats = {
        value.name
        for value in (*before.input, *before.output, *before.value_info)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    for position, node in enumerate(before.node):
        if node.name in stays or any(attribute.HasField("g") for attribute in node.attribute):
            continue
        nodes: list[NodeProto] = []
        middle = deepcopy(node)
        constants = [halves[name] for name in dict.fromkeys(node.input) if name in halves]
        for index, name in enumerate(node.input):
            if name in halves:
                middle.input[index] = f"{_OWN}{name} back"
                if name not in node.input[:index]:
                    nodes.append(_cast(f"{_OWN}{name}", middle.input[index], TensorProto.FLOAT))
            elif name in floats:
                middle.input[index] = f"{_OWN}{name} back"
                if name not in node.input[:index]:
                    nodes += _through_half(name, middle.input[index])
        behind: list[NodeProto] = []
        for index, name in enumerate(node.output):
            if name in floats:
                middle.output[index] = f"{_OWN}{name} made"
                behind += _through_half(middle.output[index], name)
        if nodes or behind:
            yield Replacement((position,), (*nodes, middle, *behind), tuple(_renamed(tensor) for tensor in constants))


def _through_half(name: str, result: str) -> list[NodeProto]:
    return [_cast(name, f"{_OWN}{result} half", TensorProto.FLOAT16), _cast(f"{_OWN}{result} half", result, 1)]


def _cast(name: str, result: str, to: int) -> NodeProto:
    return helper.make_node("Cast", [name], [result], to=to)


class _Graph:
    """A quantized graph, indexed by name."""

    def __init__(self, graph: GraphProto) -> None:
        self.makers = {name: node for node in graph.node for name in node.output if name}
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self._readers = readers_of(node for node in graph.node if node.op_type in QDQ)

    def behind_qdq(self, name: str, values: Collection[str]) -> str:
        """Return which of *values* the tensor *name* is: itself, or the result of Q and DQ after it, as for outputs."""
        pending = [name]
        while pending:
            found: str = pending.pop()
            if found in values:
                return found
            pending.extend(node.output[0] for node in self._readers.get(found, ()))
        return name

    def dequantized(self, name: str) -> str:
        """Return the tensor that readers of *name* after Q and DQ see; *name* itself if it is not quantized."""
        for quantize in self._readers.get(name, ()):
            for dequantize in self._readers.get(quantize.output[0], ()):
                return str(dequantize.output[0])
        return name

    def leading_to(self, ends: Iterable[str], known: Collection[str]) -> list[NodeProto]:
        """Return the nodes that compute *ends* from *known* values and constants, in topological order."""
        found: list[NodeProto] = []
        seen: set[str] = set()

        def visit(name: str) -> None:
            node = self.makers.get(name)
            if name in known or node is None or node.output[0] in seen:
                return
            seen.add(node.output[0])
            for read in node.input:
                visit(read)
            found.append(node)

        for end in ends:
            visit(end)
        return found


def _covered(before: GraphProto, position: int, ends: Iterable[str], makers: Mapping[str, int]) -> tuple[int, ...]:
    """Return *position*, and the nodes between its outputs and *ends*, which the quantized graph does not have."""
    own = set(before.node[position].output)
    others = []
    for name in ends:
        while name not in own:
            others.append(makers[name])
            name = before.node[makers[name]].input[0]
    return (position, *sorted(set(others)))


def _replacement(
    quantized: _Graph, covers: tuple[int, ...], found: Sequence[NodeProto], kept: Mapping[str, str]
) -> Replacement:
    """Return *found* with unique names, except for those in *kept*, which get the float model's names."""

    def rename(name: str) -> str:
        return kept.get(name) or (f"{_OWN}{name}" if name else "")

    nodes = []
    for node in found:
        copy = deepcopy(node)
        copy.input[:] = [rename(name) for name in node.input]
        copy.output[:] = [rename(name) for name in node.output]
        nodes.append(copy)
    names = dict.fromkeys(name for node in found for name in node.input if name in quantized.constants)
    return Replacement(covers, tuple(nodes), tuple(_renamed(quantized.constants[name]) for name in names))


def _renamed(tensor: TensorProto) -> TensorProto:
    copy = deepcopy(tensor)
    copy.name = f"{_OWN}{tensor.name}"
    return copy
