"""Write and read ONNX files: the same model is the same bytes, with weights in it or in one file next to it.

The cache compares content, so the layout of weights depends only on the model. The model's metadata is written
unchanged; export removes what differs between machines (:mod:`winml_dag.onnxmodel.metadata`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError, EncodeError, Message  # type: ignore[import-untyped]
from onnx import AttributeProto, ModelProto, TensorProto, numpy_helper, shape_inference

from winml_dag.errors import InputError, StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.graph import STANDARD_DOMAIN, byte_size, dtype_name
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.inspect import EXTERNAL_DATA_THRESHOLD, sidecar_path
from winml_dag.onnxmodel.protos import graphs_inside, graphs_of

EXTERNAL_TENSOR_MINIMUM = 1024

# So that a runtime can map a tensor into memory in place.
_ALIGNMENT = 4096
_CHUNK = 8 * 2**20
# A key that ONNX allows in a tensor's external data: the folder that its location is relative to. It exists only in
# memory, so that a model loaded without weights can still find them; it is never saved.
_FOLDER = "basepath"


def save_model(model: ModelProto, path: Path, *, separate: bool = False) -> None:
    """Write *model* to *path*: the same model results in the same bytes on any machine, process or folder.

    Below :data:`EXTERNAL_DATA_THRESHOLD` bytes of tensor data everything is in one file. Above, or if *separate*,
    initializers of :data:`EXTERNAL_TENSOR_MINIMUM` bytes or more are in a second file next to it, ``<path.name>.data``.
    *model* is not changed, except that constants in other files are loaded; it may come from
    ``load_model(..., weights=False)``. Memory peaks at one tensor above what *model* itself holds.

    Raises:
        InputError: external data of *model* is missing or too short, or what remains of it is over 2 GiB.
    """
    _embed_constants(model, path)
    data = path.with_name(path.name + ".data")
    tensors = chain(_initializers(model), _other_tensors(model))
    if not separate and sum(map(_size, tensors)) < EXTERNAL_DATA_THRESHOLD:
        content = _serialise(_embedded(model, path), path)
        data.unlink(missing_ok=True)  # of a previous, larger model with this name
    else:
        # Not written in place: the model may replace the file that its weights are read from.
        unfinished = data.with_name(data.name + ".part")
        try:
            with unfinished.open("wb") as file:
                lean = ModelProto()
                _copy_lean(model, lean, path, _DataFile(file, data.name))
                content = _serialise(lean, path)
            unfinished.replace(data)
        finally:
            unfinished.unlink(missing_ok=True)
    path.write_bytes(content)


def load_model(path: Path, *, weights: bool = True) -> ModelProto:
    """Read the model *path*; without *weights*, initializers that are stored in other files are not loaded.

    Raises:
        InputError: a file is missing, truncated, not an ONNX model, or outside the model's folder.
    """
    # The built-in reader first: it is fast and strict, while protobuf accepts any text as an empty model.
    read_model(path)
    try:
        model: ModelProto = ModelProto.FromString(path.read_bytes())
    except DecodeError as error:
        raise InputError(
            f"{path} is damaged, or over 2 GiB in one file, which protobuf cannot read.",
            advice="Export it again, with its weights in a file beside it.",
        ) from error
    use_short_domain(model)
    for tensor in chain(_initializers(model), _other_tensors(model)):
        if _is_external(tensor):
            _set_folder(tensor, path.parent.absolute())
    for tensor in _initializers(model):
        if _is_external(tensor) and weights:
            _embed(tensor, path)
        elif _is_external(tensor):
            _located(tensor, path)  # raises now what would otherwise fail only when the weights are needed
    _embed_constants(model, path)
    return model


def use_short_domain(model: ModelProto) -> None:
    """Change the ONNX standard's domain to ``""`` everywhere in *model*: most tools do not know its other name."""
    bodies = [graph.node for graph in graphs_of(model.graph)]
    for function in model.functions:
        bodies += [function.node, *(graph.node for graph in graphs_inside(function.node))]
    named = (model.opset_import, *(function.opset_import for function in model.functions), *bodies)
    for element in (element for group in named for element in group):
        if element.domain == STANDARD_DOMAIN:
            element.domain = ""


def with_shapes(model: ModelProto, *, data_prop: bool = False) -> ModelProto:
    """Return *model* with all types and shapes that onnx infers.

    Raises:
        StageError: those that it states contradict each other.
    """
    try:
        return shape_inference.infer_shapes(model, data_prop=data_prop)
    except shape_inference.InferenceError as error:
        raise StageError(
            f"The shapes that the model states contradict each other: {explanation(error)}.",
            advice="Take the wrong shapes out of its value_info and outputs, or export it again.",
        ) from error


def resave(source: Path, destination: Path) -> None:
    """Write the model *source* to *destination*, with its weights under the matching name.

    Large weights are never all in memory. Their file has the same bytes as *source*'s if :func:`save_model` wrote that.

    Raises:
        InputError: as :func:`load_model`.
    """
    save_model(load_model(source, weights=False), destination)


def _serialise(model: ModelProto, path: Path) -> bytes:
    try:
        content: bytes = model.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        raise InputError(
            f"{path} cannot be written: even without the weights that can be stored beside it, it is over 2 GiB.",
            advice="Store large constants as initializers.",
        ) from error
    return content


def _initializers(model: ModelProto) -> Iterator[TensorProto]:
    """Yield dense initializers of the graph and its subgraphs: the tensors that may be stored in another file."""
    for graph in graphs_of(model.graph):
        yield from graph.initializer


def _other_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor that :func:`_initializers` omits: in attributes, in functions, and sparse ones."""
    inner = [graph for function in model.functions for graph in graphs_inside(function.node)]
    for graph in inner:
        yield from graph.initializer
    graphs = (*graphs_of(model.graph), *inner)
    for graph in graphs:
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for nodes in (*(graph.node for graph in graphs), *(function.node for function in model.functions)):
        for node in nodes:
            for attribute in node.attribute:
                yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
        yield from (sparse.values, sparse.indices)


def _size(tensor: TensorProto) -> int:
    """Return the bytes of the tensor's data, independent of storage, so a model's side of the threshold is fixed."""
    if tensor.data_type == TensorProto.STRING:
        return sum(len(text) for text in tensor.string_data)
    return byte_size(tensor.data_type, tensor.dims)


def _is_external(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def _set_folder(tensor: TensorProto, folder: Path) -> None:
    """Set the folder, replacing one from the file itself, which could be anywhere."""
    kept = [(entry.key, entry.value) for entry in tensor.external_data if entry.key != _FOLDER]
    del tensor.external_data[:]
    for key, value in (*kept, (_FOLDER, str(folder))):
        tensor.external_data.add(key=key, value=value)


def _located(tensor: TensorProto, model: Path) -> tuple[Path, int, int]:
    """Return where the data of an external tensor is: the file, the offset, the number of bytes.

    Raises InputError unless the file has the bytes there that the tensor's type and shape need.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name = Path(entries[_FOLDER], model.name) if _FOLDER in entries else model
    path = sidecar_path(name, entries.get("location", ""))
    length = byte_size(tensor.data_type, tensor.dims)
    try:
        offset = int(entries.get("offset", "0"))
        stated = int(entries.get("length", str(length)))
    except ValueError:
        offset = stated = -1
    if offset < 0 or length < 0 or stated != length:
        raise InputError(
            f"{name} says that tensor {tensor.name!r} ({dtype_name(tensor.data_type)} {list(tensor.dims)}) has "
            f"{entries.get('length')} bytes from {entries.get('offset', 0)} on in {path.name}, which cannot be.",
            advice="Export the model again.",
        )
    if offset + length > path.stat().st_size:
        raise InputError(
            f"{path} is cut short: tensor {tensor.name!r} of {name.name} needs {offset + length} bytes, "
            f"the file has {path.stat().st_size}.",
            advice="Fetch or export the model again.",
        )
    return path, offset, length


def tensor_chunks(tensor: TensorProto, model: Path) -> Iterator[bytes]:
    """Yield the data of *tensor* as in ``raw_data``, in chunks of 8 MiB or, if it is in the model itself, at once.

    Raises:
        InputError: it is in a file that is missing or too short.
    """
    if not _is_external(tensor):
        if not tensor.HasField("raw_data"):  # but in a field for its type
            tensor = numpy_helper.from_array(numpy_helper.to_array(tensor))
        yield tensor.raw_data
        return
    path, offset, left = _located(tensor, model)
    with path.open("rb") as file:
        file.seek(offset)
        while left:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                raise InputError(f"{path} became shorter while it was read.", advice="Try again.")
            left -= len(chunk)
            yield chunk


def _embed(tensor: TensorProto, model: Path) -> None:
    tensor.raw_data = b"".join(tensor_chunks(tensor, model))
    del tensor.external_data[:]
    tensor.ClearField("data_location")


def _embed_constants(model: ModelProto, path: Path) -> None:
    """Load external tensors that are not initializers: few runtimes accept those."""
    for tensor in _other_tensors(model):
        if _is_external(tensor):
            _embed(tensor, path)


def _embedded(model: ModelProto, path: Path) -> ModelProto:
    """Return the model with all its data embedded: itself, or a copy if data had to be loaded."""
    if not any(_is_external(tensor) for tensor in _initializers(model)):
        return model
    whole = ModelProto()
    whole.CopyFrom(model)
    for tensor in _initializers(whole):
        if _is_external(tensor):
            _embed(tensor, path)
    return whole


class _DataFile:
    """The file with weights while it is being written."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name

    def add(self, chunks: Iterable[bytes], tensor: TensorProto) -> None:
        """Append the data and make *tensor* refer to it."""
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNMENT))
        offset = self._file.tell()
        for chunk in chunks:
            self._file.write(chunk)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._name), ("offset", offset), ("length", self._file.tell() - offset)):
            tensor.external_data.add(key=key, value=str(value))


# The messages with initializers inside; those of functions stay where they are.
_AROUND_INITIALIZERS = frozenset({"GraphProto", "NodeProto", "AttributeProto"})


def _copy_lean(source: Message, target: Message, path: Path, data: _DataFile) -> None:
    """Copy a message into the empty *target*, with large initializers in *data*: those of a graph before its nodes'.

    They are not removed from *source* itself: protobuf frees no memory before the whole message is deleted, and the
    caller may still use its model.
    """
    for field, value in sorted(source.ListFields(), key=lambda found: found[0].name != "initializer"):
        copy = getattr(target, field.name)
        around = field.message_type is not None and field.message_type.name in _AROUND_INITIALIZERS
        if field.name == "initializer":
            for tensor in value:
                _copy_tensor(tensor, copy.add(), path, data)
        elif field.is_repeated and around:
            for inner in value:
                _copy_lean(inner, copy.add(), path, data)
        elif field.is_repeated:
            copy.extend(value)
        elif field.message_type is None:
            setattr(target, field.name, value)
        elif around:
            copy.SetInParent()  # even if it is empty
            _copy_lean(value, copy, path, data)
        else:
            copy.CopyFrom(value)


def _copy_tensor(tensor: TensorProto, copy: TensorProto, path: Path, data: _DataFile) -> None:
    if tensor.data_type == TensorProto.STRING or _size(tensor) < EXTERNAL_TENSOR_MINIMUM:
        copy.CopyFrom(tensor)
        if _is_external(copy):
            _embed(copy, path)
        return
    copy.name = tensor.name
    copy.data_type = tensor.data_type
    copy.dims.extend(tensor.dims)
    data.add(tensor_chunks(tensor, path), copy)
