"""Hide from onnxruntime's quantizers what they cannot handle of a graph, and restore it afterwards.

They derive names from those of tensors without looking whether there are such names, and take for granted that a node
makes each output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from onnx import GraphProto, TensorProto, ValueInfoProto

from winml_dag.onnxmodel.protos import Naming, rename_values

_Message = TypeVar("_Message", ValueInfoProto, TensorProto)

# What comes behind the name of a tensor, then nothing or more after an underscore.
_DERIVED = (
    *("_scale", "_zero_point", "_quantized", "_QuantizeLinear", "_DequantizeLinear", "_convert"),
    *("_output_quantized", "_bias_reshape", "_bias_add"),
)


@dataclass(frozen=True)
class Hidden:
    """What was hidden.

    Attributes:
        renamed: the names now of values that were renamed, by their original ones.
        outputs: all outputs of the graph, in order; of those that no node makes, ``constants`` has the initializers.
    """

    renamed: Mapping[str, str]
    outputs: Sequence[ValueInfoProto]
    constants: Mapping[str, TensorProto]

    def restore(self, graph: GraphProto) -> None:
        """Undo it in *graph*, which has been quantized since."""
        rename_values(graph, {now: original for original, now in self.renamed.items()})
        made = {output.name: output for output in graph.output}
        fed = {value.name: value for value in graph.input}
        outputs = [_copy(made.get(value.name) or fed.get(value.name) or value) for value in self.outputs]
        del graph.output[:]
        graph.output.extend(outputs)
        graph.initializer.extend(self.constants.values())


def _copy(message: _Message) -> _Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def hide(graphs: Sequence[GraphProto]) -> Hidden:
    """Rename values of *graphs* and take outputs out; they are one graph, of which only the first has its weights."""
    first = graphs[0]
    made = {name for node in first.node for name in node.output}
    outputs = [_copy(value) for value in first.output]
    names = {value.name for value in outputs}
    constants = {tensor.name: _copy(tensor) for tensor in first.initializer if tensor.name in names}
    naming = Naming.of(first)
    # A constant that is an output stays as it is; nodes read another one.
    inner = {name: naming.new(f"{name}_read") for name in constants}
    renamed = {name: naming.new(f"{name}_of_model") for name in _bases(first) - inner.keys()}
    for graph in graphs:
        kept = [value for value in graph.output if value.name in made]
        del graph.output[:]
        graph.output.extend(kept)
        rename_values(graph, inner | renamed)
    return Hidden(renamed, outputs, constants)


def _bases(graph: GraphProto) -> set[str]:
    """Values that something else in *graph* is named after as if it were derived from them."""
    values = {value.name for value in (*graph.input, *graph.initializer)}
    values |= {name for node in graph.node for name in node.output}
    bases = set()
    for name in (*values, *(node.name for node in graph.node)):
        for suffix in _DERIVED:
            at = name.find(suffix, 1)
            while at > 0:
                if name[:at] in values and name[at + len(suffix) :][:1] in ("", "_"):
                    bases.add(name[:at])
                at = name.find(suffix, at + 1)
    return bases
