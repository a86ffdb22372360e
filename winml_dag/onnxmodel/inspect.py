"""What an ONNX file is, told from its graph alone: its operators, inputs, outputs and files; quantized or compiled.

``plan`` calls this for every model, so it imports nothing heavy and opens no weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from winml_dag.errors import InputError
from winml_dag.onnxmodel.dtypes import byte_size, dtype_name
from winml_dag.onnxmodel.graph import Graph, Node, Tensor, Value, read_model
from winml_dag.onnxmodel.sidecar import sidecar_name, sidecar_path

# Here rather than with the writing of files, because it is read where onnx must not be imported.
EXTERNAL_DATA_THRESHOLD = 100 * 2**20

UNKNOWN_DIMENSION = "?"
UNKNOWN_RANK = "..."

_QUANTIZED_OPS = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "ConvInteger",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "ConvIntegerToFloat",
        "QAttention",
        "QGemm",
        "QEmbedLayerNormalization",
        "MatMulNBits",
        "GatherBlockQuantized",
    }
)
_QUANTIZED_PREFIXES = ("QLinear", "DynamicQuantize")
_QUANTIZE_DEFAULT = 2  # QuantizeLinear makes uint8 unless told otherwise


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model.

    ``dtype`` is numpy's name (``"float32"``), or ``"not a tensor"``. In ``shape`` a text is a symbolic dimension,
    ``"?"`` an unnamed one; ``("...",)`` means that the model does not even tell the rank.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class EpContext:
    """An EPContext node. ``source``: who made it; ``sidecar``: the file with its binary, None when it needs none."""

    source: str
    embed_mode: int
    sidecar: str | None


@dataclass(frozen=True)
class ModelSummary:
    """What :func:`inspect_model` found.

    Attributes:
        op_counts: nodes by ``op`` or ``domain/op``, in subgraphs and function bodies too; a body counts once, however
            often it is called.
        inputs: what a caller must feed; initializers that older models list as inputs are left out.
        tensor_bytes: bytes of initializers and constants by dtype, wherever they are stored.
        external_data: the distinct files with tensor data, relative to the model, sorted.
        weight_types: integer types of weights at QDQ nodes and MatMulNBits, the one with most elements first (constants
            that meet an activation, as in Add, get the activation's type); int32, for biases, is left out.
        activation_types: integer types of activations at QDQ nodes, the most frequent first.
        files: all that must travel together: the model's own name, its external data, its EPContext binaries.
    """

    ir_version: int
    opsets: Mapping[str, int]
    producer: str
    op_counts: Mapping[str, int]
    total_nodes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    tensor_bytes: Mapping[str, int]
    external_data: tuple[str, ...]
    ep_context: tuple[EpContext, ...]
    is_quantized: bool
    weight_types: tuple[str, ...]
    activation_types: tuple[str, ...]
    metadata: Mapping[str, str]
    files: tuple[str, ...]

    @property
    def is_compiled(self) -> bool:
        return bool(self.ep_context)

    @property
    def is_weight_only(self) -> bool:
        """Whether its only integers are weights in MatMulNBits, so that all its activations are floats."""
        others = {name.rpartition("/")[2] for name in self.op_counts} - {"MatMulNBits"}
        return self.is_quantized and not any(map(_is_quantized, others))

    @property
    def weight_size(self) -> int:
        """Bytes of all tensor data."""
        return sum(self.tensor_bytes.values())


def inspect_model(path: Path) -> ModelSummary:
    """Look at the model *path*.

    Raises:
        InputError: when it is not a readable ONNX model, or a file that it refers to is missing, a link, or outside its
            folder.
    """
    model = read_model(path)
    bodies = (model.graph.nodes, *(function.nodes for function in model.functions))
    graphs = (model.graph, *(graph for body in bodies for graph in _subgraphs(body)))
    nodes = [node for graph in graphs for node in graph.nodes]
    nodes.extend(node for function in model.functions for node in function.nodes)
    tensors = [tensor for graph in graphs for tensor in graph.initializers]
    tensors.extend(tensor for node in nodes for attribute in node.attributes for tensor in attribute.tensors)

    external_data = _distinct(
        sidecar_name(path, tensor.external.get("location", "")) for tensor in tensors if tensor.external is not None
    )
    ep_context = tuple(_ep_context(path, node) for node in nodes if node.op_type == "EPContext")
    sidecars = _distinct(context.sidecar for context in ep_context if context.sidecar is not None)
    for name in (*external_data, *sidecars):
        sidecar_path(path, name)

    tensor_bytes: Counter[str] = Counter()
    for tensor in tensors:
        tensor_bytes[dtype_name(tensor.data_type)] += byte_size(tensor.data_type, tensor.dims) or tensor.stored_bytes
    op_counts = Counter(f"{node.domain}/{node.op_type}" if node.domain else node.op_type for node in nodes)
    constants = {tensor.name for tensor in model.graph.initializers}
    weight_types, activation_types = _integer_types(nodes, tensors)
    return ModelSummary(
        ir_version=model.ir_version,
        opsets=model.opsets,
        producer=model.producer,
        op_counts=dict(sorted(op_counts.items())),
        total_nodes=len(nodes),
        inputs=tuple(_spec(value) for value in model.graph.inputs if value.name not in constants),
        outputs=tuple(_spec(value) for value in model.graph.outputs),
        tensor_bytes=dict(sorted(tensor_bytes.items())),
        external_data=external_data,
        ep_context=ep_context,
        is_quantized=any(_is_quantized(node.op_type) for node in nodes),
        weight_types=weight_types,
        activation_types=activation_types,
        metadata=model.metadata,
        files=(path.name, *_distinct((*external_data, *sidecars))),
    )


def _is_quantized(op_type: str) -> bool:
    return op_type in _QUANTIZED_OPS or op_type.startswith(_QUANTIZED_PREFIXES)


def _subgraphs(nodes: Iterable[Node]) -> Iterator[Graph]:
    """All graphs inside the nodes, and inside those graphs' nodes."""
    for node in nodes:
        for attribute in node.attributes:
            for graph in attribute.graphs:
                yield graph
                yield from _subgraphs(graph.nodes)


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _ep_context(path: Path, node: Node) -> EpContext:
    attributes = {attribute.name: attribute for attribute in node.attributes}
    source = attributes.get("source")
    mode = attributes.get("embed_mode")
    context = attributes.get("ep_cache_context")
    embed_mode = 1 if mode is None or mode.integer is None else mode.integer  # the operator's default
    sidecar = None
    if embed_mode == 0 and context is not None and context.content_bytes:
        if context.content is None:
            raise InputError(f"{path} has an EPContext node whose file name is {context.content_bytes} bytes long.")
        sidecar = sidecar_name(path, context.content.decode("utf-8", "replace"))
    name = (source.content or b"").decode("utf-8", "replace") if source is not None else ""
    return EpContext(name, embed_mode, sidecar)


def _spec(value: Value) -> TensorSpec:
    if value.dims is None:
        shape: tuple[int | str, ...] = (UNKNOWN_RANK,)
    else:
        shape = tuple(UNKNOWN_DIMENSION if dim is None else dim for dim in value.dims)
    return TensorSpec(value.name, dtype_name(value.data_type) if value.data_type else "not a tensor", shape)


def _integer_types(nodes: Iterable[Node], tensors: Iterable[Tensor]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The types that weights and activations are quantized to, as far as QDQ nodes and MatMulNBits tell."""
    constants = {tensor.name: tensor for tensor in tensors}
    weights: Counter[str] = Counter()  # elements
    activations: Counter[str] = Counter()  # nodes
    for node in nodes:
        attributes = {attribute.name: attribute.integer for attribute in node.attributes}
        source = constants.get(node.inputs[0]) if node.inputs else None
        if node.op_type == "MatMulNBits":
            weights[f"uint{attributes.get('bits') or 4}"] += (attributes.get("K") or 0) * (attributes.get("N") or 0)
        elif node.op_type == "DequantizeLinear" and source is not None:
            weights[dtype_name(source.data_type)] += prod(source.dims)
        elif node.op_type == "QuantizeLinear":
            zero_point = constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
            data_type = zero_point.data_type if zero_point else attributes.get("output_dtype") or _QUANTIZE_DEFAULT
            if source is None:
                activations[dtype_name(data_type)] += 1
            else:
                weights[dtype_name(data_type)] += prod(source.dims)
    del weights["int32"]  # biases
    return _most_first(weights), _most_first(activations)


def _most_first(counts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))
