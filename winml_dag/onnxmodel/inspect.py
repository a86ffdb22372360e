"""Summarize an ONNX file from its graph: operators, inputs, outputs and files; whether it is quantized or compiled.

``plan`` calls this for every model, so it imports nothing heavy and opens no weights. The names of the files that a
model refers to, its external data and the binaries of its EPContext nodes, come from an untrusted file: one that leaves
the model's folder is refused before anything is opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from winml_dag.canonical import JsonObject
from winml_dag.errors import InputError
from winml_dag.names import is_safe_part
from winml_dag.onnxmodel.graph import (
    INTEGER_OPERATORS,
    Model,
    Node,
    Value,
    all_nodes,
    all_tensors,
    attribute_of,
    byte_size,
    dtype_name,
    integer_of,
    operator_of,
)
from winml_dag.onnxmodel.graphfile import read_model

# Here instead of in files.py, because it is read where onnx must not be imported.
EXTERNAL_DATA_THRESHOLD = 100 * 2**20

UNKNOWN_DIMENSION = "?"
UNKNOWN_RANK = "..."
NO_TENSOR = "not a tensor"

# Of operators that are in no table.
_QUANTIZED_PREFIXES = ("QLinear", "DynamicQuantize")


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model.

    ``dtype`` is numpy's name (``"float32"``), or ``"not a tensor"``. In ``shape`` a text is a symbolic dimension,
    ``"?"`` an unnamed one; ``("...",)`` means that even the rank is unknown. ``value_range``: of valid values of an
    input, if known, from the first up to the second, exclusive.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    value_range: tuple[float, float] | None = None

    def to_json(self) -> JsonObject:
        known = {} if self.value_range is None else {"value_range": list(self.value_range)}
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), **known}


@dataclass(frozen=True)
class EpContext:
    """An EPContext node.

    Attributes:
        source: the execution provider that created it.
        sidecar: the file with its binary; None if that is embedded, or in another node.
        embedded_bytes: size of the binary in the node itself.
        is_main: whether it has a binary; others refer to one that has.
    """

    source: str
    embed_mode: int
    sidecar: str | None
    embedded_bytes: int = 0
    is_main: bool = True
    partition: str = ""
    sdk_version: str = ""


@dataclass(frozen=True)
class ModelSummary:
    """The result of :func:`inspect_model`.

    Attributes:
        op_counts: nodes by ``op`` or ``domain/op``, including subgraphs and function bodies; a body counts once,
            however often it is called.
        inputs: what a caller must feed; initializers that older models list as inputs are omitted.
        tensor_bytes: bytes of initializers and constants by dtype, wherever they are stored.
        external_data: the distinct files with tensor data, relative to the model, sorted.
        files: all that must be copied together: the model's own name, its external data, its EPContext binaries.
        listed_initializers: how many of the graph's inputs are initializers.
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
    metadata: Mapping[str, str]
    files: tuple[str, ...]
    listed_initializers: int = 0

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


def sidecar_name(model: Path, location: str) -> str:
    """Return *location* in its shortest form (``./a.data`` is ``a.data``), safe on every system.

    Raises:
        InputError: it is absolute, leaves the model's folder or means a device.
    """
    parts = PurePosixPath(location).parts
    if not parts or not all(map(is_safe_part, parts)):
        raise InputError(
            f"{model} refers to the file {location!r}, which is not a plain name inside the model's own folder.",
            advice="Only use models from a source you trust; save it again with its data beside it.",
        )
    return "/".join(parts)


def sidecar_path(model: Path, location: str) -> Path:
    """Return the path of the file that *model* refers to as *location*.

    Raises:
        InputError: the name is unsafe (see :func:`sidecar_name`), the file is missing, or a link leads to it.
    """
    path = model.parent
    for part in PurePosixPath(sidecar_name(model, location)).parts:
        path /= part
        if path.is_symlink():
            raise InputError(
                f"{path}, which {model.name} needs, is a link, and a link could lead out of the model's folder.",
                advice="Put the file itself there.",
            )
    if not path.is_file():
        raise InputError(
            f"The file {path}, which {model.name} needs, does not exist.",
            advice="Copy the model together with its data files.",
        )
    return path


def inspect_model(path: Path) -> ModelSummary:
    """Summarize the model *path*.

    Raises:
        InputError: it is not a readable ONNX model, or a file that it refers to is missing, a link, or outside its
            folder.
    """
    summary = summarize(path, read_model(path))
    for name in summary.files[1:]:
        sidecar_path(path, name)
    return summary


def summarize(path: Path, model: Model) -> ModelSummary:
    """Summarize *model*, as read from *path*, without checking the files that it refers to.

    Raises:
        InputError: one of them is outside of its folder.
    """
    nodes = all_nodes(model)
    tensors = all_tensors(model, nodes)
    external_data = _distinct(
        sidecar_name(path, tensor.external.get("location", "")) for tensor in tensors if tensor.external is not None
    )
    ep_context = tuple(_ep_context(path, node) for node in nodes if node.op_type == "EPContext")
    sidecars = _distinct(context.sidecar for context in ep_context if context.sidecar is not None)

    tensor_bytes: Counter[str] = Counter()
    for tensor in tensors:
        tensor_bytes[dtype_name(tensor.data_type)] += byte_size(tensor.data_type, tensor.dims) or tensor.stored_bytes
    op_counts = Counter(map(operator_of, nodes))
    constants = {tensor.name for tensor in model.graph.initializers}
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
        metadata=model.metadata,
        files=(path.name, *_distinct((*external_data, *sidecars))),
        listed_initializers=sum(value.name in constants for value in model.graph.inputs),
    )


def _is_quantized(op_type: str) -> bool:
    return op_type in INTEGER_OPERATORS or op_type.startswith(_QUANTIZED_PREFIXES)


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _ep_context(path: Path, node: Node) -> EpContext:
    def text(name: str) -> str:
        attribute = attribute_of(node, name)
        return "" if attribute is None else (attribute.content or b"").decode("utf-8", "replace")

    context = attribute_of(node, "ep_cache_context")
    size = 0 if context is None else context.content_bytes
    embed_mode = integer_of(node, "embed_mode", 1)  # the operator's default, as is that of main_context
    sidecar = None
    if embed_mode == 0 and context is not None and size:
        if context.content is None:
            raise InputError(f"{path} has an EPContext node whose file name is {size} bytes long.")
        sidecar = sidecar_name(path, text("ep_cache_context"))
    return EpContext(
        source=text("source"),
        embed_mode=embed_mode,
        sidecar=sidecar,
        embedded_bytes=size if embed_mode else 0,
        is_main=bool(integer_of(node, "main_context", 1)),
        partition=text("partition_name"),
        sdk_version=text("ep_sdk_version"),
    )


def _spec(value: Value) -> TensorSpec:
    if value.dims is None:
        shape: tuple[int | str, ...] = (UNKNOWN_RANK,)
    else:
        # Some exporters write -1 for an open dimension.
        shape = tuple(
            UNKNOWN_DIMENSION if dim is None or (isinstance(dim, int) and dim < 0) else dim for dim in value.dims
        )
    return TensorSpec(value.name, dtype_name(value.data_type) if value.data_type else NO_TENSOR, shape)
