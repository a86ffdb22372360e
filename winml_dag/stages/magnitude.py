"""Detect outputs that are only rounding noise, by the magnitude of the values that an output is computed from.

Logits that cancel leave 1e-8 of sums of 10, and a saturated sigmoid leaves 1e-12. The reference itself is then noise:
the cosine to it has no meaning, and an error is large or small only relative to the summands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, NodeProto, helper

from winml_dag.ep.session import open_session
from winml_dag.onnxmodel.protos import replace_items
from winml_dag.stages.figures import OutputFigures
from winml_dag.stages.pair import run_model
from winml_dag.stages.quality import MOST_NOISE
from winml_dag.stages.samples.samples import Feed

# Operators that add up: with magnitudes as inputs, the mapped operator returns the magnitude of the summands.
_ADDING = {name: name for name in ("Add", "Sum", "Mean", "MatMul", "Gemm", "Conv", "ConvTranspose", "ReduceSum")}
_ADDING |= {"Sub": "Add", "ReduceMean": "ReduceMean", "GlobalAveragePool": "GlobalAveragePool"}
# Operators that pass on the values of the first input; if they move values, the magnitudes move too. Clipping only
# cuts.
_MOVING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Slice", "Gather", "Split", "Expand"})
_IN_PLACE = frozenset({"Identity", "Cast", "Dropout", "Relu", "Clip", "Neg", "Abs"})
# Results are fractions of 1.
_OF_ONE = frozenset({"Softmax", "Sigmoid", "HardSigmoid", "Tanh", "Erf", "Softsign"})
# Values up to this fraction of that magnitude are noise: relative to the size of a rounding error, and as an absolute
# maximum. Larger values are information, even if 8 bits have no step for them (each of 1,000 classes with a probability
# of 0.001).
_NOISE = 1 / 64
# Steps to trace back. Sums of sums grow the magnitude without limit.
_FARTHEST = 6


def without_rounding(
    outputs: Sequence[OutputFigures], suspects: Collection[str], path: Path, feeds: Iterable[Feed], rounding: float
) -> tuple[OutputFigures, ...]:
    """Return *outputs* with the errors of *suspects* ignored where they are no more than rounding noise.

    Both the errors and the values of the reference *path* on *feeds* must be no larger than rounding errors. *rounding*
    is the size of one, relative to the summands. For single numbers the values may be larger: whether 0.02 is right
    depends on what it is a sum of.
    """
    found = magnitudes(path, suspects, feeds)

    def judged(output: OutputFigures) -> OutputFigures:
        magnitude, read = found.get(output.read.name, 0.0), output.read
        floor, noise = rounding * magnitude, min(rounding * _NOISE, MOST_NOISE) * magnitude
        is_rounding = read.max_abs_error <= floor and (output.is_single or read.largest <= noise)
        return output.below(floor) if floor and is_rounding else output

    return tuple(map(judged, outputs))


def magnitudes(path: Path, outputs: Collection[str], feeds: Iterable[Feed]) -> Mapping[str, float]:
    """Return the largest magnitude that each of *outputs* of the model *path* is computed from, on *feeds*.

    Outputs whose magnitude cannot be determined are omitted.
    """
    model = onnx.load(path, load_external_data=False)
    tracing = _Tracing(model.graph)
    traced = {name: found for name in outputs if (found := tracing.magnitude(name, _FARTHEST)) is not None}
    if not traced:
        return {}
    model.graph.node.extend(tracing.added)
    replace_items(model.graph.output, (onnx.ValueInfoProto(name=name) for name in dict.fromkeys(traced.values())))
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    session = open_session(model.SerializeToString(), "the reference", options, optimized=True)
    largest = dict.fromkeys(traced, 0.0)
    for feed in feeds:
        values = run_model(session, list(traced.values()), feed)
        for name, value in zip(traced, values, strict=True):
            largest[name] = max(largest[name], float(np.abs(value).max(initial=0.0)))
    return largest


class _Tracing:
    """Nodes to add to *graph* (``added``) that compute magnitudes of its values."""

    def __init__(self, graph: GraphProto) -> None:
        self._makers: dict[str, NodeProto] = {name: node for node in graph.node for name in node.output if name}
        self.added: list[NodeProto] = []

    def magnitude(self, name: str, steps: int) -> str | None:
        """Return the value that has the magnitudes of what *name* is computed from.

        Returns None for an operator that is neither a sum nor a fraction of 1: the size of its result is enough.
        """
        node = self._makers.get(name)
        if node is None or node.domain not in ("", "ai.onnx") or not steps:
            return None
        if node.op_type in _OF_ONE:
            # 1 at each position.
            return self._add("Exp", [self._add("Sub", [name, name])])
        if node.op_type in _MOVING | _IN_PLACE:
            first = self.magnitude(node.input[0], steps - 1)
            if first is None or node.op_type in _IN_PLACE:
                return first
            return self._like(node, node.op_type, [first, *node.input[1:]], list(node.output).index(name))
        if node.op_type not in _ADDING:
            return None
        # The axes of a sum are integers and stay unchanged.
        summands = 1 if node.op_type.startswith("Reduce") else len(node.input)
        inputs = [self._of_input(each, steps) if each else "" for each in node.input[:summands]]
        return self._like(node, _ADDING[node.op_type], [*inputs, *node.input[summands:]], 0)

    def _of_input(self, name: str, steps: int) -> str:
        return self.magnitude(name, steps - 1) or self._add("Abs", [name])

    def _like(self, node: NodeProto, op_type: str, inputs: list[str], output: int) -> str:
        made = deepcopy(node)
        made.op_type, made.name = op_type, ""
        made.input[:] = inputs
        made.output[:] = [f"magnitude {len(self.added)} {at}" for at in range(len(node.output))]
        self.added.append(made)
        return str(made.output[output])

    def _add(self, op_type: str, inputs: list[str]) -> str:
        self.added.append(helper.make_node(op_type, inputs, [f"magnitude {len(self.added)}"]))
        return str(self.added[-1].output[0])
