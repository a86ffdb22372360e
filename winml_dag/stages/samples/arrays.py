"""Samples from .npz and .npy files; memory holds only the requested samples.

The arrays are read as streams: mmap would work for .npy, but not for the members of an .npz, which may be compressed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.inspect import UNKNOWN_RANK, TensorSpec
from winml_dag.stages.samples.samples import Array, Feed, Samples

# Converts one sample to a model's input: names, shapes and types.
#
# Data that does not fit is refused. Calibrating on something else would go unnoticed until the quantized model is used,
# and the cause would then be hard to find.


def check_names(names: Mapping[str, object], inputs: Sequence[TensorSpec], kind: str = "") -> None:
    """Raise StageError if *names*, in data of *kind*, are not those of the *inputs*."""
    wanted = {spec.name for spec in inputs}
    missing, unknown = sorted(wanted - names.keys()), sorted(names.keys() - wanted)
    if missing or unknown:
        raise StageError(
            "The data does not have the model's inputs:"
            + (f" {', '.join(missing)} missing" if missing else "")
            + (" and" if missing and unknown else "")
            + (f" {', '.join(unknown)} not an input" if unknown else "")
            + ".",
            advice=f"The inputs are: {', '.join(sorted(wanted))}."
            + (" Each .npy file, or folder of them, is called after its input." if kind == "npy" else ""),
        )


def fit(arrays: Mapping[str, Array], inputs: Sequence[TensorSpec], where: str) -> Feed:
    """Return one sample in the shapes and types of the model's *inputs*; a missing batch axis is added.

    Raises:
        StageError: names, shapes or values do not fit; *where* names the sample in the message.
    """
    check_names(arrays, inputs)
    return {spec.name: _cast(_shape(arrays[spec.name], spec, where), spec, where) for spec in inputs}


def _shape(array: Array, spec: TensorSpec, where: str) -> Array:
    shape = spec.shape
    if shape == (UNKNOWN_RANK,):
        return array
    if array.ndim == len(shape) - 1 and (shape[0] == 1 or isinstance(shape[0], str)):
        array = array[np.newaxis]
    fits = array.ndim == len(shape) and all(
        isinstance(wanted, str) or wanted == found for wanted, found in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise StageError(
            f"Input {spec.name!r} takes the shape {list(shape)}, but {where} of the data has {list(array.shape)}."
        )
    return array


def _cast(array: Array, spec: TensorSpec, where: str) -> Array:
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError as error:
        raise StageError(
            f"Input {spec.name!r} is of type {spec.dtype}, and models are run here on tensors of numbers only.",
            advice="The precision fp32 with --no-validate builds it.",
        ) from error
    if np.can_cast(array.dtype, dtype, "same_kind"):
        converted = np.asarray(array, dtype)  # numpy may have turned an array without axes into a number
        if dtype.kind not in "iu" or np.array_equal(converted, array):
            return converted
    raise StageError(
        f"Input {spec.name!r} is of type {dtype.name}, and the values of {where} of the data, of type"
        f" {array.dtype.name}, do not fit into it."
    )


_SAVE = "Save it with numpy.savez or numpy.save."


@dataclass(frozen=True)
class _Stack:
    """An array in a file, or in its *member*, whose first axis counts the samples."""

    file: Path
    member: str | None
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    column_major: bool

    def read(self, numbers: Sequence[int]) -> Iterator[Array]:
        """Yield the samples of these ascending *numbers*."""
        with _readable(self.file.name), _opened(self.file, self.member) as stream:
            if self.column_major:
                # One sample is spread over the whole file.
                array = np.lib.format.read_array(stream, allow_pickle=False)
                yield from (array[number] for number in numbers)
                return
            _header(stream)
            begin, shape = stream.tell(), self.shape[1:]
            size = math.prod(shape) * self.dtype.itemsize
            for number in numbers:
                stream.seek(begin + number * size)
                data = stream.read(size)
                if len(data) < size:
                    raise EOFError(f"it ends in sample {number}")
                yield np.frombuffer(data, self.dtype).reshape(shape)


def npz_samples(files: Sequence[Path], inputs: Sequence[TensorSpec]) -> Samples:
    """Read one file with arrays by input name, whose first axis counts the samples; or one file for each sample.

    Raises:
        StageError: a file cannot be read, or names or numbers of samples do not fit.
    """
    if len(files) > 1:
        return Samples.one_by_one("npz", len(files), lambda at: fit(_load_npz(files[at]), inputs, files[at].name))
    return _stacked("npz", _npz_stacks(files[0]), inputs)


def labelled_npz(
    file: Path, inputs: Sequence[TensorSpec], label_of: Callable[[Sequence[str]], str]
) -> tuple[Samples, Callable[[Sequence[int]], Iterator[Any]]]:
    """Return the samples in *file*, and a function that reads the labels of given sample numbers.

    *label_of* returns the name of the array with the labels, one for each sample. Raises as :func:`npz_samples`.
    """
    stacks = _npz_stacks(file)
    label = label_of(list(stacks))
    _count(stacks)
    labels = stacks.pop(label)
    return _stacked("npz", stacks, inputs), lambda numbers: (value.tolist() for value in labels.read(numbers))


def npy_samples(folder: Path, files: Sequence[Path], inputs: Sequence[TensorSpec]) -> Samples:
    """Read ``<input>.npy``, whose first axis counts the samples, or a folder ``<input>`` with a file for each sample.

    Raises as :func:`npz_samples`.
    """
    if all(file.parent == folder for file in files):
        return _stacked("npy", {file.stem: _stack(file) for file in files}, inputs)
    by_input: dict[str, list[Path]] = {}
    for file in files:
        by_input.setdefault(file.parent.relative_to(folder).as_posix(), []).append(file)
    count = _common_count({name: len(paths) for name, paths in by_input.items()})
    check_names(by_input, inputs, "npy")

    def make(number: int) -> Feed:
        return fit({name: _load_npy(paths[number]) for name, paths in by_input.items()}, inputs, f"sample {number}")

    return Samples.one_by_one("npy", count, make)


def _npz_stacks(file: Path) -> dict[str, _Stack]:
    with _readable(file.name), ZipFile(file) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
    return {name: _stack(file, member) for name, member in members.items()}


def _opened(file: Path, member: str | None) -> IO[bytes]:
    if member is None:
        return file.open("rb")
    with ZipFile(file) as archive:
        return archive.open(member)  # it keeps the file open


def _stack(file: Path, member: str | None = None) -> _Stack:
    with _readable(file.name), _opened(file, member) as stream:
        shape, column_major, dtype = _header(stream)
        if dtype.hasobject:
            raise ValueError("it holds Python objects, and reading those could run anything")
    return _Stack(file, member, shape, dtype, column_major)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"it has version {version} of the format, which is for arrays with named fields")
    return read(stream)


def _stacked(kind: str, stacks: Mapping[str, _Stack], inputs: Sequence[TensorSpec]) -> Samples:
    check_names(stacks, inputs, kind)
    count = _count(stacks)

    def read(numbers: Sequence[int]) -> Iterator[Feed]:
        streams = [stack.read(numbers) for stack in stacks.values()]
        for number, *arrays in zip(numbers, *streams, strict=True):
            yield fit(dict(zip(stacks, arrays, strict=True)), inputs, f"sample {number}")

    return Samples(kind, range(count), read)


def _count(stacks: Mapping[str, _Stack]) -> int:
    flat = [name for name, stack in stacks.items() if not stack.shape]
    if flat:
        raise StageError(f"The data of {flat[0]!r} is a single number; its first axis must count the samples.")
    return _common_count({name: stack.shape[0] for name, stack in stacks.items()})


def _common_count(counts: Mapping[str, int]) -> int:
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        raise StageError(f"The data has different numbers of samples: {text}.")
    return min(counts.values())


def _load_npz(file: Path) -> dict[str, Array]:
    with _readable(file.name), ExitStack() as opened:
        content = np.load(file, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise ValueError("it is not an archive of arrays")
        return dict(opened.enter_context(content))


def _load_npy(file: Path) -> Array:
    with _readable(file.name):
        array = np.load(file, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is not a single array")
        return array


@contextmanager
def _readable(file: str) -> Iterator[None]:
    """Convert numpy's and zipfile's errors about a malformed file to StageError. Pickle is never used."""
    try:
        yield
    except (OSError, ValueError, EOFError, BadZipFile, NotImplementedError) as error:
        raise StageError(f"The data {file} cannot be read: {explanation(error)}.", advice=_SAVE) from error
