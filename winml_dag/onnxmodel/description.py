"""A human-readable description of a model file, for ``winml-dag inspect``.

Unlike :mod:`winml_dag.onnxmodel.inspect`, which refuses an incomplete model, this also reports what is missing. No
tensor data is read, so the size of the model does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.errors import InputError
from winml_dag.onnxmodel import soundness
from winml_dag.onnxmodel.facts import byte_size, dtype_name
from winml_dag.onnxmodel.graph import Model, Tensor, all_nodes, all_tensors, constants_of
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.inspect import ModelSummary, summarize
from winml_dag.onnxmodel.precision import FoundPrecision, precision_of
from winml_dag.onnxmodel.sidecar import sidecar_name, sidecar_path

_COMPATIBILITY = "ep_compatibility_info."


@dataclass(frozen=True)
class TensorSize:
    """A constant: ``size`` in bytes, ``file`` with its data, empty if it is in the model itself."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    file: str


@dataclass(frozen=True)
class Sidecar:
    """A file that belongs to the model.

    Attributes:
        holds: ``weights``, or ``binary`` of EPContext nodes.
        size: in bytes; None if it is missing.
        needed: the minimum size in bytes that the model requires.
        problem: why it cannot be used, as a sentence; empty if it can.
        shared_with: other models in the folder that are compiled into the same binary.
    """

    name: str
    holds: str
    size: int | None
    needed: int
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
        return self.size + sum(sidecar.size or 0 for sidecar in self.sidecars)

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
    warnings = [*soundness.findings(path, model)]
    if for_npu or summary.is_compiled:
        warnings += soundness.dynamic_inputs(model)
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
    return sorted(found, key=lambda tensor: (-tensor.size, tensor.name))


def _tensor(path: Path, name: str, tensor: Tensor) -> TensorSize:
    size = byte_size(tensor.data_type, tensor.dims) or tensor.stored_bytes
    file = "" if tensor.external is None else sidecar_name(path, tensor.external.get("location", ""))
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
