"""Rewrites forms of a float model that quantizers and float16 handle wrongly into equivalent forms that they handle.

onnxruntime's quantizer assumes that every constant bias is a vector and every weight an initializer. It gives the input
of a Relu the range of the Relu's output, even if other nodes read that input. In float16, a sum that is divided only
afterwards overflows. onnxruntime's own fusions make some of these forms, so this runs after optimize.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from winml_dag.onnxmodel.files import tensor_chunks
from winml_dag.onnxmodel.graph import standard_opset
from winml_dag.onnxmodel.protos import Naming, attributes_of, read_inside, remove_items, replace_items, shapes_of

_Shape = tuple[int | None, ...]
_Rewrite = Callable[["_Graph", NodeProto], Sequence[NodeProto] | None]

# The opsets from which on the axes of a reduction are an input.
_AXES_OF_SUM = 13
_AXES_OF_OTHERS = 18

_CLAMPING = ("Relu", "Clip")
# Attributes of a Constant node; its other forms are strings and sparse tensors.
_NUMBERS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
# 1/N in float32 is this close to it. The N - 1 of an unbiased variance is not.
_RELATIVE_ERROR = 1e-5


def normalize_forms(model: ModelProto, path: Path, *, to_integers: bool) -> bool:
    """Rewrite *model* in place; return whether anything changed.

    The model needs types and shapes of its values, as far as they are known. *to_integers* adds the forms that only
    static quantization handles wrongly. *path* is the model's file; the files next to it hold weights that *model* may
    lack. The same model always gets the same nodes and names, and a model in normal form does not change. Subgraphs are
    not rewritten.

    Raises:
        InputError: a required weight file is missing or too short.
    """
    changed = False
    forms = (_lift_constant, _drop_alias, _fit_bias, _average)
    for rewrite in (*forms, _split_clip, _keep_what_is_clamped, _clamp_for_subgraphs) if to_integers else forms:
        graph = _Graph(model.graph, path, standard_opset(model))
        changed |= graph.rewrite(rewrite)
    return changed


@dataclass
class _Graph:
    """A graph during the search for one kind of form; its cached facts describe the graph before the rewriting."""

    proto: GraphProto
    path: Path
    opset: int

    @cached_property
    def naming(self) -> Naming:
        return Naming.of(self.proto)

    @cached_property
    def constants(self) -> Mapping[str, TensorProto]:
        """Initializers by name, except those that are also inputs: the user may feed another value."""
        fed = {value.name for value in self.proto.input}
        return {tensor.name: tensor for tensor in self.proto.initializer if tensor.name not in fed}

    @cached_property
    def outputs(self) -> frozenset[str]:
        return frozenset(value.name for value in self.proto.output)

    @cached_property
    def read_elsewhere(self) -> frozenset[str]:
        """Values that are graph outputs or read in subgraphs."""
        return self.outputs | self.read_inside

    @cached_property
    def read_inside(self) -> frozenset[str]:
        return frozenset(read_inside(self.proto.node))

    @cached_property
    def readers(self) -> Counter[str]:
        """How many nodes of the graph itself read each value."""
        return Counter(name for node in self.proto.node for name in set(node.input))

    @cached_property
    def makers(self) -> Mapping[str, NodeProto]:
        return {name: node for node in self.proto.node for name in node.output if name}

    @cached_property
    def shapes(self) -> Mapping[str, _Shape]:
        return shapes_of(self.proto) | {name: tuple(tensor.dims) for name, tensor in self.constants.items()}

    def rewrite(self, rewrite: _Rewrite) -> bool:
        """Replace each node by what *rewrite* returns for it; None keeps it. Returns whether anything changed."""
        made = [rewrite(self, node) for node in list(self.proto.node)]
        if all(nodes is None for nodes in made):
            return False
        nodes = [n for old, new in zip(self.proto.node, made, strict=True) for n in ([old] if new is None else new)]
        replace_items(self.proto.node, nodes)
        self._drop_unread()
        return True

    def _drop_unread(self) -> None:
        """Remove constants whose last reader is gone; those without a reader before stay."""
        before = set(self.readers) | self.read_elsewhere
        after = {name for node in self.proto.node for name in node.input}
        after |= {value.name for value in self.proto.output} | read_inside(self.proto.node)
        gone = (before - after) & self.constants.keys()
        remove_items(self.proto.initializer, lambda tensor: tensor.name in gone)

    def values(self, name: str) -> NDArray[np.float32] | None:
        """The numbers of the constant *name* in float32; None for anything else."""
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_type != TensorProto.FLOAT:
            return None
        return np.frombuffer(b"".join(tensor_chunks(tensor, self.path)), "<f4").reshape(tuple(tensor.dims))

    def integers(self, name: str) -> tuple[int, ...] | None:
        """The numbers of the constant *name* in int64; None for anything else."""
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_type != TensorProto.INT64:
            return None
        return tuple(np.frombuffer(b"".join(tensor_chunks(tensor, self.path)), "<i8").tolist())

    def add(self, wanted: str, values: NDArray[np.generic]) -> str:
        """Add a constant; return its name, which is *wanted* or similar."""
        name = self.naming.new(wanted)
        self.proto.initializer.append(numpy_helper.from_array(values, name))
        return name

    def node(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], of: NodeProto, name: str) -> NodeProto:
        """A new node that carries the metadata of the node *of*."""
        made = helper.make_node(op_type, inputs, outputs, self.naming.new(name))
        made.metadata_props.extend(of.metadata_props)
        return made


def _lift_constant(graph: _Graph, node: NodeProto) -> Sequence[NodeProto] | None:
    """Replace a Constant node by an initializer: quantizers treat the output of a node as an activation."""
    if node.op_type != "Constant" or node.domain or node.output[0] in graph.outputs or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    tensor = TensorProto()
    if attribute.name == "value":
        tensor.CopyFrom(attribute.t)
    elif attribute.name in _NUMBERS:
        numbers = helper.get_attribute_value(attribute)
        tensor.CopyFrom(numpy_helper.from_array(np.array(numbers, _NUMBERS[attribute.name])))
    else:
        return None
    tensor.name = node.output[0]
    graph.proto.initializer.append(tensor)
    return []


def _drop_alias(graph: _Graph, node: NodeProto) -> Sequence[NodeProto] | None:
    """Let nodes read a constant directly instead of through an Identity, which exporters write for shared weights."""
    if node.op_type != "Identity" or node.input[0] not in graph.constants or node.output[0] in graph.read_elsewhere:
        return None
    for reader in graph.proto.node:
        for position, name in enumerate(reader.input):
            if name == node.output[0]:
                reader.input[position] = node.input[0]
    return []


def _fit_bias(graph: _Graph, node: NodeProto) -> Sequence[NodeProto] | None:
    """Make the constant bias of a Gemm a vector with factor 1, or add it in a separate node."""
    if node.op_type not in ("Gemm", "Conv", "ConvTranspose") or len(node.input) < 3:
        return None
    beta = attributes_of(node).get("beta", 1.0)
    bias = node.input[2]
    product = _without_bias(node)
    if not bias or beta == 0:
        return [product]
    values, width = graph.values(bias), _width(graph, node)
    # A computed bias stays in float without loss: quantizers support it.
    if node.op_type != "Gemm" or values is None or (values.shape == (width,) and beta == 1):
        return None
    scaled = values * np.float32(beta)
    if width is not None and values.size in (1, width) and prod(values.shape[:-1]) == 1:
        product.input.append(graph.add(f"{bias}_as_vector", np.broadcast_to(scaled.reshape(-1), (width,))))
        return [product]
    output = node.output[0]
    product.output[0] = graph.naming.new(f"{output}_without_bias")
    term = bias if beta == 1 else graph.add(f"{bias}_scaled", scaled)
    return [product, graph.node("Add", [product.output[0], term], [output], node, f"{node.name or output}_bias")]


def _without_bias(node: NodeProto) -> NodeProto:
    product = deepcopy(node)
    del product.input[2:]
    remove_items(product.attribute, lambda attribute: attribute.name == "beta")
    return product


def _width(graph: _Graph, gemm: NodeProto) -> int | None:
    """How many columns the result of *gemm* has."""
    weight, result = graph.shapes.get(gemm.input[1]), graph.shapes.get(gemm.output[0])
    if weight is not None and len(weight) == 2:
        return weight[0 if attributes_of(gemm).get("transB") else 1]
    return result[-1] if result else None


def _average(graph: _Graph, node: NodeProto) -> Sequence[NodeProto] | None:
    """Replace a sum that is divided by its number of elements by a mean: in float16, sums of squares overflow."""
    if node.op_type in ("ReduceSum", "ReduceSumSquare"):
        sums = [_averaged(graph, reader) for reader in graph.proto.node if node.output[0] in reader.input]
        return [] if [found.output[0] for found in sums if found is not None] == [node.output[0]] else None
    reduction = _averaged(graph, node)
    if reduction is None:
        return None
    mean = deepcopy(reduction)
    mean.op_type = "ReduceMean"
    mean.output[0] = node.output[0]
    axes = _axes(graph, reduction)
    remove_items(mean.attribute, lambda attribute: attribute.name != "keepdims")
    del mean.input[1:]
    if axes and graph.opset >= _AXES_OF_OTHERS:
        mean.input.append(graph.add(f"{node.output[0]}_axes", np.array(axes, np.int64)))
    elif axes:
        mean.attribute.append(helper.make_attribute("axes", axes))
    if reduction.op_type == "ReduceSum":
        return [mean]
    mean.input[0] = graph.naming.new(f"{reduction.output[0]}_squares")
    name = f"{reduction.name or reduction.output[0]}_squares"
    return [graph.node("Mul", [reduction.input[0]] * 2, [mean.input[0]], reduction, name), mean]


def _averaged(graph: _Graph, node: NodeProto) -> NodeProto | None:
    """The sum that *node* divides by its number of elements, if nothing else reads it."""
    if node.op_type not in ("Mul", "Div") or len(node.input) != 2:
        return None
    for position in (0, 1) if node.op_type == "Mul" else (0,):
        name = node.input[position]
        reduction, factor = graph.makers.get(name), graph.constants.get(node.input[1 - position])
        if reduction is None or reduction.op_type not in ("ReduceSum", "ReduceSumSquare") or factor is None:
            continue
        shape, axes = graph.shapes.get(reduction.input[0]), _axes(graph, reduction)
        if axes is None or shape is None or graph.readers[name] != 1 or name in graph.read_elsewhere:
            continue
        number = graph.values(factor.name) if prod(factor.dims) == 1 else None
        if number is None or len(factor.dims) > len(graph.shapes.get(name, ())):
            continue
        sizes = [shape[axis] for axis in axes or range(len(shape))]
        count = prod(size for size in sizes if size is not None)
        ratio = float(number.item()) * count if node.op_type == "Mul" else float(number.item()) / max(count, 1)
        if None not in sizes and abs(ratio - 1) < _RELATIVE_ERROR:
            return reduction
    return None


def _axes(graph: _Graph, reduction: NodeProto) -> tuple[int, ...] | None:
    """The axes that *reduction* sums over, empty for all of them; None if the model does not determine them."""
    attributes = attributes_of(reduction)
    by_input = graph.opset >= (_AXES_OF_SUM if reduction.op_type == "ReduceSum" else _AXES_OF_OTHERS)
    if not by_input:
        return tuple(attributes.get("axes", ()))
    axes = () if len(reduction.input) < 2 or not reduction.input[1] else graph.integers(reduction.input[1])
    return None if attributes.get("noop_with_empty_axes") and not axes else axes


def _split_clip(graph: _Graph, node: NodeProto) -> Sequence[NodeProto] | None:
    """Add a Max or Min for a bound of a Clip whose range excludes 0.

    Integer ranges always contain 0. The quantizer, which drops a Clip in favor of the range of its output, therefore
    loses such a bound. So does QNN with a Clip after a Conv, even with Q and DQ in between (2.51: a bound of 0.4 became
    0).
    """
    if node.op_type != "Clip":
        return None
    attributes = {name: np.float32(value) for name, value in attributes_of(node).items()}
    inputs = dict(zip(("min", "max"), node.input[1:], strict=False))
    bounds = {name: attributes.get(name, graph.values(inputs.get(name, ""))) for name in ("min", "max")}
    for bound, other, op_type in (("min", "max", "Max"), ("max", "min", "Min")):
        value = bounds[bound]
        if value is None or (value <= 0 if bound == "min" else value >= 0):
            continue
        limit = inputs.get(bound) or graph.add(f"{node.output[0]}_{bound}", np.asarray(value))
        rest = deepcopy(node)
        rest.output[0] = graph.naming.new(f"{node.output[0]}_before_{bound}")
        if other not in attributes and not inputs.get(other):
            return [graph.node(op_type, [node.input[0], limit], [node.output[0]], node, node.name or node.output[0])]
        if bound in attributes:
            rest.attribute.remove(next(attribute for attribute in rest.attribute if attribute.name == bound))
        elif bound == "min":
            rest.input[1] = ""
        else:
            del rest.input[2:]
        name = f"{node.name or node.output[0]}_{bound}"
        return [rest, graph.node(op_type, [rest.output[0], limit], [node.output[0]], node, name)]
    return None


def _keep_what_is_clamped(graph: _Graph, node: NodeProto) -> Sequence[NodeProto] | None:
    """Add an Identity as a second reader if only one node, a Relu or Clip, reads a value that is also read elsewhere.

    Elsewhere is a graph output or a subgraph. A quantizer considers only the one reader and cuts the tensor to its
    range.
    """
    copies = []
    for position, name in enumerate(node.output):
        if name not in graph.read_elsewhere or graph.readers[name] != 1:
            continue
        (reader,) = (reader for reader in graph.proto.node if name in reader.input)
        if reader.op_type not in _CLAMPING:
            continue
        inner = graph.naming.new(f"{name}_before_{reader.op_type}")
        node.output[position] = inner
        reader.input[:] = [inner if read == name else read for read in reader.input]
        copies.append(graph.node("Identity", [inner], [name], node, f"{node.name or name}_before_clamping"))
    return [node, *copies] if copies else None


def _clamp_for_subgraphs(graph: _Graph, node: NodeProto) -> Sequence[NodeProto] | None:
    """Give subgraphs that read the output of a Relu or Clip an Identity of it.

    The quantizer drops the Relu in favor of the range of its output; subgraphs would then read the Relu's input.
    """
    if node.op_type not in _CLAMPING or node.output[0] not in graph.read_inside:
        return None
    name = node.output[0]
    inner = graph.naming.new(f"{name}_clamped")
    node.output[0] = inner
    for reader in graph.proto.node:
        reader.input[:] = [inner if read == name else read for read in reader.input]
    return [node, graph.node("Identity", [inner], [name], node, f"{node.name or name}_for_subgraphs")]
