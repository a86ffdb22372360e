"""Measures every quantized node: compares the float model with only that node quantized with the float model.

Quantizing one node changes nothing before it. So the model runs node by node, and for each node that is replaced, the
rest of the model is one session: on average half a run of the model for each. Weights are in memory once, shared by all
sessions.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from winml_dag.engine.exchange import OnProgress
from winml_dag.ep.session import open_session
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.compare import OutputComparison
from winml_dag.onnxmodel.protos import subgraphs, without_data
from winml_dag.stages.figures import Feed, OutputFigures, measure
from winml_dag.stages.sensitivity.replacement import Replacement

Array: TypeAlias = NDArray[np.generic]
Values: TypeAlias = Mapping[str, Array]

# Each holds the results of one node for all samples.
_MOST_THREADS = 8
# Smaller constants are copied to each session: many of them (shapes, axes) must be known when it is created.
_SHARED_BYTES = 1024


@dataclass(frozen=True)
class NodeCost:
    """``figures``: every output of the model when only this node is quantized, together with those it ``includes``."""

    name: str
    op_type: str
    includes: tuple[str, ...]
    figures: tuple[OutputFigures, ...]

    @property
    def worst(self) -> OutputFigures:
        return worst_output(self.figures)


@dataclass(frozen=True)
class Reference:
    """The samples and the float model's outputs for them, which are called ``names``.

    ``scores``: outputs that are class scores.
    """

    names: tuple[str, ...]
    feeds: Sequence[Feed]
    outputs: Sequence[Sequence[Array]]
    scores: frozenset[str]

    def compare(self, found: Sequence[Sequence[Array]]) -> tuple[OutputFigures, ...]:
        return measure(self.names, self.feeds, self.outputs, found, self.scores)


def worst_output(figures: Sequence[OutputFigures]) -> OutputFigures:
    """Return the output with the lowest SQNR."""
    return min(figures, key=lambda output: _order(output.read))


def rank(
    model: FloatModel,
    names: Collection[str],
    replacements: Sequence[Replacement],
    reference: Reference,
    progress: OnProgress,
) -> list[NodeCost]:
    """Return the cost of each of *replacements*, highest first. *names*: the nodes in the user's own model."""
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    trials = _trials(model, replacements, reference)
    costs: list[NodeCost] = []
    progress(0, len(replacements), "nodes")
    with ThreadPoolExecutor(threads) as pool:
        while chunk := list(islice(trials, threads)):
            found = pool.map(lambda trial: model.run_rest(*trial), chunk)
            for (_, replacement, _), outputs in zip(chunk, found, strict=True):
                node, *others = (model.nodes[position] for position in replacement.covers)
                includes = tuple(other.name for other in others if other.name in names)
                costs.append(NodeCost(node.name, node.op_type, includes, reference.compare(outputs)))
                progress(len(costs), len(replacements), "nodes")
    return sorted(costs, key=lambda cost: _order(cost.worst.read))


def _trials(
    model: FloatModel, replacements: Sequence[Replacement], reference: Reference
) -> Iterator[tuple[int, Replacement, Sequence[Values]]]:
    """Yield the arguments of :meth:`FloatModel.run_rest` for each of *replacements*, in the order of the nodes."""
    given: Sequence[Values] = reference.feeds
    for first, end in model.steps:
        for replacement in replacements:
            if first <= replacement.covers[0] < end:
                yield first, replacement, given
        given = model.advance(first, end, given)


def _order(comparison: OutputComparison) -> tuple[float, float]:
    return comparison.sqnr_db, comparison.cosine


class FloatModel:
    """A float model on the CPU without fusions, so that every value that Q and DQ apply to exists.

    ``outputs``: names of the model's outputs that nodes compute. ``steps``: the first node of each step and the one
    after its last, between which all values are tensors of known type.
    """

    def __init__(self, model: ModelProto, opsets: ModelProto) -> None:
        """Remove the weights from *model*. *opsets*: a model that has all required opsets."""
        self.nodes = list(model.graph.node)
        self._model, self._opsets = model, opsets.opset_import
        self._constants = _Constants(model.graph)
        computed = {name for node in self.nodes for name in node.output if name}
        self.outputs = tuple(dict.fromkeys(value.name for value in model.graph.output if value.name in computed))
        self._last_read = {
            **{name: position for position, node in enumerate(self.nodes) for name in _reads(node)},
            **dict.fromkeys(self.outputs, len(self.nodes)),
        }
        self.steps = tuple(self._steps())

    def _steps(self) -> Iterator[tuple[int, int]]:
        graph, first, live = self._model.graph, 0, set[str]()
        values = (*graph.input, *graph.output, *graph.value_info)
        tensors = {value.name for value in values if value.type.tensor_type.elem_type}
        for end, node in enumerate(self.nodes, start=1):
            live = {name for name in live.union(node.output) if self._last_read.get(name, -1) >= end}
            if live <= tensors or end == len(self.nodes):
                yield first, end
                first = end

    def advance(self, first: int, end: int, given: Sequence[Values]) -> Sequence[Values]:
        """Run the nodes from *first* up to *end* on each of *given*; return the values that later ones need."""
        made = [name for node in self.nodes[first:end] for name in node.output if self._last_read.get(name, -1) >= end]
        after = [{name: values[name] for name in values if self._last_read.get(name, -1) >= end} for values in given]
        if made:
            session = self._session(self.nodes[first:end], made, (), given[0])
            for values, kept in zip(given, after, strict=True):
                kept.update(run_session(session, values))
        return after

    def run_rest(self, first: int, replacement: Replacement | None, given: Sequence[Values]) -> list[list[Array]]:
        """Return the outputs for each of *given*, the values that nodes from *first* on need, with *replacement*."""
        nodes, own = self.nodes[first:], tuple[TensorProto, ...]()
        if replacement is not None:
            own, place = replacement.constants, replacement.covers[0]
            nodes = [*self.nodes[first:place], *replacement.nodes]
            nodes += [self.nodes[at] for at in range(place, len(self.nodes)) if at not in replacement.covers]
        computed = {name for node in nodes for name in node.output}
        made = [name for name in self.outputs if name in computed]
        session = self._session(nodes, made, own, given[0]) if made else None
        found = [{**values, **({} if session is None else run_session(session, values))} for values in given]
        return [[values[name] for name in self.outputs] for values in found]

    def _session(
        self, nodes: Sequence[NodeProto], outputs: Sequence[str], own: Sequence[TensorProto], values: Values
    ) -> ort.InferenceSession:
        made = {name for node in nodes for name in node.output}
        used = dict.fromkeys(name for node in nodes for name in _reads(node))
        inputs = [name for name in used if name in values and name not in made]
        model = ModelProto(ir_version=self._model.ir_version, opset_import=self._opsets)
        model.functions.extend(self._model.functions)
        graph = model.graph
        graph.name = "rest"
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


def _reads(node: NodeProto) -> list[str]:
    """Return everything that *node* reads: its inputs, and what its subgraphs read from the outer graph."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in subgraphs(attribute):
            own = {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
            own |= {name for inner in graph.node for name in inner.output}
            inner_reads = [name for inner in graph.node for name in _reads(inner)]
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
                self._tensors[tensor.name] = deepcopy(tensor)
        del graph.initializer[:]

    def give(self, graph: GraphProto, options: ort.SessionOptions, names: Iterable[str]) -> None:
        """Add to *graph* the initializers among *names*; large ones go into the *options* of its session."""
        wanted = sorted(name for name in names if name in self._tensors)
        graph.initializer.extend(self._tensors[name] for name in wanted)
        lent = [name for name in wanted if name in self._shared]
        if lent:
            options.add_external_initializers(lent, [self._shared[name] for name in lent])
