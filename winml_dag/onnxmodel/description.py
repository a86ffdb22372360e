"""A human-readable description of a model file, for ``winml-dag inspect``.

Unlike :mod:`winml_dag.onnxmodel.inspect`, which refuses an incomplete model, this also reports what is missing, and
definite errors: each is a reason why some runtime refuses the model or computes nonsense. Possible mistakes are not
reported: a warning that is wrong once is not read the second time. Large tensors are not read, so the size of the model
does not matter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite, prod
from pathlib import Path

from winml_dag.errors import InputError, few
from winml_dag.onnxmodel.graph import (
    QDQ,
    Graph,
    Model,
    Node,
    Tensor,
    all_nodes,
    all_tensors,
    bit_width,
    byte_size,
    constants_of,
    dtype_name,
    integer_of,
    struct_letter,
)
from winml_dag.onnxmodel.graphfile import File, read_model
from winml_dag.onnxmodel.inspect import ModelSummary, sidecar_name, sidecar_path, summarize
from winml_dag.onnxmodel.precision import FoundPrecision, precision_of

_COMPATIBILITY = "ep_compatibility_info."
_LARGEST_PROTOBUF = 2**31 - 1
_WIDE_TYPES_OPSET = 21  # before it, the standard's Q and DQ support only 8 bits
_MOST_NAMES = 3


@dataclass(frozen=True)
class TensorSize:
    """A constant: ``file`` with its data, None if it is in the model itself."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    file: str | None


@dataclass(frozen=True)
class Sidecar:
    """A file that belongs to the model.

    Attributes:
        holds: ``weights``, or ``binary`` of EPContext nodes.
        size_bytes: None if it is missing.
        needed_bytes: the minimum size that the model requires.
        problem: why it cannot be used, as a sentence; empty if it can.
        shared_with: other models in the folder that are compiled into the same binary.
    """

    name: str
    holds: str
    size_bytes: int | None
    needed_bytes: int
    problem: str
    shared_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class Description:
    """The result of :func:`describe_model`.

    Attributes:
        size: of the model file itself, in bytes.
        model: its graph as read.
        tensors: all constants, the largest first.
        compatibility: what each execution provider left for its runtime to check, by its name.
        warnings: definite errors, as sentences.
    """

    path: Path
    size: int
    model: Model
    summary: ModelSummary
    precision: FoundPrecision
    tensors: tuple[TensorSize, ...]
    sidecars: tuple[Sidecar, ...]
    compatibility: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def total_size(self) -> int:
        """Bytes of the model and of all its existing files."""
        return self.size + sum(sidecar.size_bytes or 0 for sidecar in self.sidecars)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the model cannot be used at all, as sentences."""
        return tuple(sidecar.problem for sidecar in self.sidecars if sidecar.problem)


def describe_model(path: Path, *, for_npu: bool = False) -> Description:
    """Describe the model *path*; *for_npu* if it is known to be for one.

    Raises:
        InputError: it is not a readable ONNX model, or refers to a file outside of its folder. A missing file is a
            problem in the description.
    """
    model = read_model(path)
    summary = summarize(path, model)
    sidecars = tuple(_sidecars(path, model, summary))
    warnings = [*findings(path, model)]
    if for_npu or summary.is_compiled:
        warnings += dynamic_inputs(model)
    return Description(
        path=path,
        size=path.stat().st_size,
        model=model,
        summary=summary,
        precision=precision_of(model),
        tensors=tuple(_tensors(path, model)),
        sidecars=sidecars,
        compatibility={
            name.removeprefix(_COMPATIBILITY): value
            for name, value in sorted(summary.metadata.items())
            if name.startswith(_COMPATIBILITY)
        },
        warnings=tuple(warnings),
    )


def _tensors(path: Path, model: Model) -> Sequence[TensorSize]:
    nodes = all_nodes(model)
    constants = constants_of(model, nodes)
    # A Constant's tensor may have two names, its own and that of the output under which nodes read it.
    last = {id(tensor): name for name, tensor in constants.items()}
    found = [_tensor(path, name, constants[name]) for name in last.values()]
    return sorted(found, key=lambda tensor: (-tensor.size_bytes, tensor.name))


def _tensor(path: Path, name: str, tensor: Tensor) -> TensorSize:
    size = byte_size(tensor.data_type, tensor.dims) or tensor.stored_bytes
    file = None if tensor.external is None else sidecar_name(path, tensor.external.get("location", "")) or None
    return TensorSize(name, dtype_name(tensor.data_type), tensor.dims, size, file)


def _sidecars(path: Path, model: Model, summary: ModelSummary) -> Iterator[Sidecar]:
    needed: dict[str, int] = {}
    for tensor in all_tensors(model, all_nodes(model)):
        if tensor.external is not None:
            name = sidecar_name(path, tensor.external.get("location", ""))
            needed[name] = max(needed.get(name, 0), _end(tensor, tensor.external))
    binaries = _binaries(summary)
    others = _binaries_of_others(path) if binaries else {}
    for name in summary.files[1:]:
        found = _sidecar(path, name, "binary" if name in binaries else "weights", needed.get(name, 1))
        yield replace(found, shared_with=tuple(sorted(other for other in others if name in others[other])))


def _binaries(summary: ModelSummary) -> set[str]:
    return {context.sidecar for context in summary.ep_context if context.sidecar is not None}


def _binaries_of_others(path: Path) -> dict[str, set[str]]:
    """Return the files that other models next to *path* are compiled into, by the model's name."""
    found = {}
    for other in path.parent.glob("*.onnx"):
        if other.name != path.name:
            with suppress(InputError):  # they are not the requested model
                found[other.name] = _binaries(summarize(other, read_model(other)))
    return found


def _end(tensor: Tensor, external: Mapping[str, str]) -> int:
    """Return where in its file the data of *tensor* ends."""
    try:
        length = int(external.get("length", "")) if "length" in external else byte_size(tensor.data_type, tensor.dims)
        return int(external.get("offset", "0")) + length
    except ValueError:
        return 0  # onnx reports such a number with its own message


def _sidecar(model: Path, name: str, holds: str, needed: int) -> Sidecar:
    try:
        size = sidecar_path(model, name).stat().st_size
    except InputError as error:
        return Sidecar(name, holds, None, needed, str(error))
    problem = ""
    if size < needed:
        problem = (
            f"{model.parent / name} is cut short: {model.name} needs {needed} bytes of it, and it has {size}. "
            "Copy it again."
        )
    return Sidecar(name, holds, size, needed, problem)


def findings(path: Path, model: Model) -> Iterator[str]:
    """Yield messages about *model*, as read from *path*; none if it is intact."""
    nodes = all_nodes(model)
    constants = constants_of(model, nodes)
    yield from _undeclared_domains(model, nodes)
    yield from _unmade_outputs(model.graph)
    yield from _training_form(nodes)
    yield from _wide_types_too_early(model, nodes, constants)
    with path.open("rb") as handle:
        stored = _Stored(File(handle), constants)
        yield from _bad_scales(nodes, stored)
        yield from _lost_conversions(nodes, stored)
    if (size := path.stat().st_size) > _LARGEST_PROTOBUF:
        yield f"The file has {size} bytes, and onnx reads none above 2 GiB: its weights belong into a file beside it."


def dynamic_inputs(model: Model) -> Iterator[str]:
    """Yield a message if the shape of an input is open, which no compiler for an NPU supports."""
    constants = {tensor.name for tensor in model.graph.initializers}
    names = [
        value.name
        for value in model.graph.inputs
        if value.name not in constants and (value.dims is None or not all(map(_is_fixed, value.dims)))
    ]
    if names:
        verb = "has no fixed shape" if len(names) == 1 else "have no fixed shapes"
        how = "give sizes with --batch-size, --shape-config or --input-specs"
        yield f"{few(names, _MOST_NAMES)} {verb}, and an NPU needs one: {how}."


def _is_fixed(dim: int | str | None) -> bool:
    return isinstance(dim, int) and dim >= 0  # some exporters write -1 for an open one


def _undeclared_domains(model: Model, nodes: Sequence[Node]) -> Iterator[str]:
    declared = set(filter(None, model.opsets))
    for domain in sorted({node.domain for node in nodes if node.domain} - declared):
        yield f"Its nodes use operators of {domain}, of which it declares no version: onnxruntime does not load it."


def _unmade_outputs(graph: Graph) -> Iterator[str]:
    made = {name for node in graph.nodes for name in node.outputs}
    made |= {tensor.name for tensor in graph.initializers} | {value.name for value in graph.inputs}
    if not graph.outputs:
        yield "It has no outputs."
    if names := [value.name for value in graph.outputs if value.name not in made]:
        yield f"No node makes {few(names, _MOST_NAMES)}, which it lists as output: it was cut wrongly."


def _training_form(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield the normalizations by statistics of the input, as in training.

    QNN fails on them with 'Memory allocation related error', or uses the stored statistics.
    """
    names = [
        node.name or node.outputs[0]
        for node in nodes
        if node.op_type == "BatchNormalization" and integer_of(node, "training_mode")
    ]
    if names:
        yield (
            f"It was exported in training mode: {few(names, _MOST_NAMES)} normalizes by the statistics of each input,"
            " which not every execution provider does. Export it again after model.eval()."
        )


def _wide_types_too_early(model: Model, nodes: Sequence[Node], constants: Mapping[str, Tensor]) -> Iterator[str]:
    opset = model.opsets.get("", 0)
    if opset >= _WIDE_TYPES_OPSET:
        return
    types = set()
    for node in nodes:
        if node.op_type in QDQ and not node.domain and len(node.inputs) > 2:
            zero_point = constants.get(node.inputs[2])
            if zero_point is not None and dtype_name(zero_point.data_type) != "int32":
                types.add(dtype_name(zero_point.data_type))
    if wide := sorted(name for name in types if bit_width(name) != 8):
        yield (
            f"{' and '.join(QDQ)} have no {' or '.join(wide)} in opset {opset}: export with opset {_WIDE_TYPES_OPSET} "
            "or later."
        )


@dataclass(frozen=True)
class _Stored:
    """The data of constants in the model's own file."""

    file: File
    constants: Mapping[str, Tensor]

    def read(self, name: str) -> bytes | None:
        """Return the numbers of a constant as little-endian bytes; None if they are not in this file."""
        if (tensor := self.constants.get(name)) is None:
            return None
        size = byte_size(tensor.data_type, tensor.dims)
        count = prod(tensor.dims)
        if tensor.integers and len(tensor.integers) == count and size % count == 0:
            with suppress(OverflowError):  # a number that its type cannot hold
                parts = (number.to_bytes(size // count, "little", signed=number < 0) for number in tensor.integers)
                return b"".join(parts)
        if tensor.values_at is None or tensor.values_at[1] - tensor.values_at[0] != size:
            return None
        return self.file.read(*tensor.values_at)

    def floats(self, name: str) -> tuple[float, ...]:
        """Return the numbers of a constant; none if they are not in this file or not floats."""
        letter = struct_letter(self.constants[name].data_type) if name in self.constants else ""
        data = self.read(name) if letter in ("f", "e", "d") else None
        return () if data is None else struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)


def _bad_scales(nodes: Sequence[Node], stored: _Stored) -> Iterator[str]:
    names = {node.inputs[1] for node in nodes if node.op_type in QDQ and len(node.inputs) > 1}
    if bad := [
        stored.constants[name].name
        for name in sorted(names)
        if not all(isfinite(value) and value > 0 for value in stored.floats(name))
    ]:
        yield f"A scale that is zero, negative or no number makes nonsense of what it scales: {few(bad, _MOST_NAMES)}."


def _lost_conversions(nodes: Sequence[Node], stored: _Stored) -> Iterator[str]:
    """Yield the additions of zero in a QDQ model whose result has its own scale.

    QNN 2.51 drops an Add whose second operand is zero and uses the integers before it as those after it. If these have
    another scale or zero point, the result is wrong: with the scale of a Relu after it, the cosine is 0.72.
    """
    makers = {name: node for node in nodes for name in node.outputs}
    quantizers = {name: node for node in nodes if node.op_type == "QuantizeLinear" for name in node.inputs[:1]}
    names = []
    for node in nodes:
        if node.op_type != "Add" or len(node.inputs) != 2 or not node.outputs:
            continue
        before, zero = (makers.get(name) for name in node.inputs)
        behind = quantizers.get(node.outputs[0])
        if before is None or zero is None or behind is None or not _is_zero(zero, stored):
            continue
        if before.op_type == "DequantizeLinear" and _encoding(before, stored) != _encoding(behind, stored):
            names.append(node.name or node.outputs[0])
    if names:
        yield (
            f"QNN computes something else: it drops additions of zero, and with them the conversion to the scale behind"
            f" {few(names, _MOST_NAMES)}. Take them out of the float model and quantize it again: `winml-dag quantize`"
            " does both."
        )


def _is_zero(node: Node, stored: _Stored) -> bool:
    """Return whether *node* dequantizes only zeros: all its integers are the zero point."""
    if node.op_type != "DequantizeLinear" or not node.inputs:
        return False
    values = stored.read(node.inputs[0])
    point = stored.read(node.inputs[2]) if len(node.inputs) > 2 else b"\0"
    if not values or not point:
        return False
    return values == point * (len(values) // len(point))


def _encoding(node: Node, stored: _Stored) -> list[bytes | str]:
    """Return scale and zero point; by name if their numbers are in another file."""
    names = [node.inputs[at] if len(node.inputs) > at else "" for at in (1, 2)]
    return [(stored.read(name) or name) if name else b"\0" for name in names]
