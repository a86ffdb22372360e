"""A float model cut into pieces, so that a change in one of them costs only what comes after it.

Quantizing one node changes nothing before it. The results of the pieces before it are kept, the piece with the node is
rebuilt, and the others are sessions that remain open: on average half a run of the model for each node. Weights are in
memory once, shared by all sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from winml_dag.ep.session import open_session
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.protos import subgraphs, without_data
from winml_dag.stages.sensitivity.replacement import Replacement

Array: TypeAlias = NDArray[np.generic]
Values: TypeAlias = Mapping[str, Array]

# More pieces make the sessions for single nodes cheaper, but running many small sessions more expensive: MiniLM (227
# nodes) takes as long with 12 as with 24.
_PIECES = 16
_SMALLEST_PIECE = 4
# Smaller constants are copied to each session: many of them (shapes, axes) must be known when it is created.
_SHARED_BYTES = 1024


@dataclass(frozen=True)
class _Piece:
    """Nodes from ``first`` up to ``end``, exclusive; ``made``: the values that it computes for later pieces."""

    first: int
    end: int
    made: tuple[str, ...]


class Pieces:
    """A float model on the CPU without fusions, so that every value that Q and DQ apply to exists.

    ``count``: how many pieces; ``outputs``: names of the model's outputs that nodes compute.
    """

    def __init__(
        self, model: ModelProto, together: Iterable[Sequence[int]], opsets: ModelProto, sample: Values
    ) -> None:
        """Cut *model* into pieces.

        Removes the weights from *model*, and runs *sample* to determine the types of all values. *together*: positions
        of nodes that must be in one piece; *opsets*: a model that has all required opsets.
        """
        self._nodes = list(model.graph.node)
        self._opsets = opsets.opset_import
        self._model = model
        made = {name for node in self._nodes for name in node.output if name}
        self.outputs = tuple(dict.fromkeys(value.name for value in model.graph.output if value.name in made))
        self._constants = _Constants(model.graph)
        self._pieces = _cut(model.graph, self.outputs, together)
        self._needed = [
            {*self.outputs, *(name for node in self._nodes[piece.end :] for name in reads(node))}
            for piece in self._pieces
        ]
        self.count = len(self._pieces)
        self._sessions: list[ort.InferenceSession] = []
        values = sample
        for index, piece in enumerate(self._pieces):
            session = self._session(self._nodes[piece.first : piece.end], piece.made, (), values)
            self._sessions.append(session)
            values = self.after(index, values, run_session(session, values))

    def holding(self, position: int) -> int:
        """Return the index of the piece with the node at *position*."""
        return next(index for index, piece in enumerate(self._pieces) if position < piece.end)

    def run(self, index: int, values: Values) -> dict[str, Array]:
        """Run piece *index* on *values*, which must have everything from earlier pieces that it needs."""
        return run_session(self._sessions[index], values)

    def after(self, index: int, values: Values, made: Values) -> dict[str, Array]:
        """Return all values that pieces after *index* need, if its input was *values* and its result *made*."""
        have = {**values, **made}
        return {name: have[name] for name in have if name in self._needed[index]}

    def finish(self, index: int, values: Values) -> dict[str, Array]:
        """Return the outputs of the model after running pieces *index* to the last one on *values*."""
        have = dict(values)
        for later in range(index, self.count):
            have.update(self.run(later, have))
        return {name: have[name] for name in self.outputs}

    def replaced(self, index: int, replacement: Replacement, values: Values) -> ort.InferenceSession:
        """Return a session of piece *index* with its nodes replaced by *replacement*; *values* as in :meth:`run`."""
        piece = self._pieces[index]
        nodes: list[NodeProto] = []
        for position in range(piece.first, piece.end):
            if position == replacement.covers[0]:
                nodes.extend(replacement.nodes)
            elif position not in replacement.covers:
                nodes.append(self._nodes[position])
        return self._session(nodes, piece.made, replacement.constants, values)

    def _session(
        self, nodes: Sequence[NodeProto], outputs: Sequence[str], own: Sequence[TensorProto], values: Values
    ) -> ort.InferenceSession:
        made = {name for node in nodes for name in node.output}
        used = dict.fromkeys(name for node in nodes for name in reads(node))
        inputs = [name for name in used if name in values and name not in made]
        model = ModelProto(ir_version=self._model.ir_version, opset_import=self._opsets)
        model.functions.extend(self._model.functions)
        graph = model.graph
        graph.name = "piece"
        graph.node.extend(nodes)
        # Types only: a wrong shape in the model would be an error here.
        graph.input.extend(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values[name].dtype), None)
            for name in inputs
        )
        for name in outputs:
            graph.output.add(name=name)
        graph.initializer.extend(own)
        options = ort.SessionOptions()
        # Nodes are measured in parallel: one thread for each takes less time than many for one, and results in the same
        # numbers on every machine.
        options.intra_op_num_threads = 1
        # Prepacking would make a second copy of all weights.
        options.add_session_config_entry("session.disable_prepacking", "1")
        self._constants.give(graph, options, used.keys() - made)
        return open_session(model.SerializeToString(), "a part of the model", options)


def reads(node: NodeProto) -> list[str]:
    """Return everything that *node* reads: its inputs, and what its subgraphs read from the outer graph."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in subgraphs(attribute):
            own = {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
            own |= {name for inner in graph.node for name in inner.output}
            inner_reads = [name for inner in graph.node for name in reads(inner)]
            names += [name for name in (*inner_reads, *(value.name for value in graph.output)) if name not in own]
    return names


def run_session(session: ort.InferenceSession, values: Values) -> dict[str, Array]:
    """Return all outputs of *session* for those of *values* that it takes."""
    names = [output.name for output in session.get_outputs()]
    try:
        results = session.run(names, {argument.name: values[argument.name] for argument in session.get_inputs()})
    except Exception as error:  # onnxruntime's errors have no base class of their own
        raise StageError(f"The model failed on a sample: {explanation(error)}.") from error
    return dict(zip(names, results, strict=True))


class _Constants:
    """The initializers of the float model; large ones are kept here and shared with sessions."""

    def __init__(self, graph: GraphProto) -> None:
        self._tensors: dict[str, TensorProto] = {}
        self._shared: dict[str, ort.OrtValue] = {}
        for tensor in graph.initializer:
            if len(tensor.raw_data) >= _SHARED_BYTES:
                array = numpy_helper.to_array(tensor)
                self._shared[tensor.name] = ort.OrtValue.ortvalue_from_numpy(array)
                # The file is never read: the session gets the data.
                self._tensors[tensor.name] = without_data(tensor, "weights")
            else:
                kept = TensorProto()
                kept.CopyFrom(tensor)
                self._tensors[tensor.name] = kept
        del graph.initializer[:]

    def give(self, graph: GraphProto, options: ort.SessionOptions, names: Iterable[str]) -> None:
        """Add to *graph* the initializers among *names*; large ones go into the *options* of its session."""
        wanted = sorted(name for name in names if name in self._tensors)
        graph.initializer.extend(self._tensors[name] for name in wanted)
        lent = [name for name in wanted if name in self._shared]
        if lent:
            options.add_external_initializers(lent, [self._shared[name] for name in lent])


def _cut(graph: GraphProto, outputs: Sequence[str], together: Iterable[Sequence[int]]) -> list[_Piece]:
    nodes = list(graph.node)
    needed_until = {name: len(nodes) for name in outputs}
    for position, node in enumerate(nodes):
        for name in reads(node):
            needed_until[name] = max(needed_until.get(name, 0), position)
    pieces: list[_Piece] = []
    first = 0
    for end in _ends(graph, needed_until, together):
        made = [name for node in nodes[first:end] for name in node.output if needed_until.get(name, -1) >= end]
        if made:  # a session must have an output
            pieces.append(_Piece(first, end, tuple(made)))
            first = end
    return [*pieces[:-1], replace(pieces[-1], end=len(nodes))]


def _ends(graph: GraphProto, needed_until: Mapping[str, int], together: Iterable[Sequence[int]]) -> list[int]:
    """Return where the pieces end: about evenly spaced, where the fewest values are needed later."""
    count = len(graph.node)
    crossing = _crossing(graph, needed_until)
    for group in together:
        for position in range(min(group), max(group)):
            crossing[position + 1] = None
    pieces = max(1, min(_PIECES, count // _SMALLEST_PIECE))
    reach = max(1, count // pieces // 3)
    ends: list[int] = []
    for index in range(1, pieces):
        middle = round(index * count / pieces)
        near = [
            (number, abs(end - middle), end)
            for end in range(middle - reach, middle + reach + 1)
            if (ends[-1] if ends else 0) < end < count and (number := crossing[end]) is not None
        ]
        if near:
            ends.append(min(near)[2])
    return [*ends, count]


def _crossing(graph: GraphProto, needed_until: Mapping[str, int]) -> list[int | None]:
    """Return for each position how many values cross it; None if one of them is not a tensor of known type."""
    known = {
        value.name for value in (*graph.input, *graph.output, *graph.value_info) if value.type.tensor_type.elem_type
    }
    numbers: list[int | None] = [0]
    live: set[str] = set()
    for position, node in enumerate(graph.node):
        live |= {name for name in node.output if name}
        live = {name for name in live if needed_until.get(name, -1) > position}
        numbers.append(len(live) if live <= known else None)
    return numbers
