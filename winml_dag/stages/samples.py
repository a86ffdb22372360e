"""Calibration data as a model takes it: arrays from .npz and .npy files, or lines of text through its tokenizer.

Data that does not fit is refused. Calibrating on something else instead would go unnoticed until the quantized model is
used, and then be looked for everywhere but here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import Distribution, InputSpec, random_feed
from winml_dag.onnxmodel.inspect import UNKNOWN_RANK

Array: TypeAlias = NDArray[np.generic]
Feed: TypeAlias = Mapping[str, Array]

_SAVE = "Save it with numpy.savez or numpy.save."


@dataclass(frozen=True)
class Samples:
    """Data to run a model on: ``numbers`` of samples, each of which ``make`` makes anew whenever it is asked for, so
    that not all are in memory at once.

    Of all samples of one source, some at the end are kept back for validation, at most half of them, and calibration
    takes of the others. So a model is never judged by what its ranges come from, unless there is but one sample.

    ``kind``: npz, npy, text or random.
    """

    kind: str
    numbers: Sequence[int]
    make: Callable[[int], Feed]

    @property
    def count(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Feed]:
        return map(self.make, self.numbers)

    def to_calibrate(self, count: int, keep_back: int) -> Samples:
        """The first *count* of those that are left when *keep_back* are kept back for validation."""
        return replace(self, numbers=self.numbers[: min(count, self.count - self._kept_back(keep_back))])

    def held_out(self, keep_back: int) -> Samples:
        """Those that :meth:`to_calibrate` keeps back; the only sample when there is no other."""
        return replace(self, numbers=self.numbers[-max(1, self._kept_back(keep_back)) :])

    def _kept_back(self, wanted: int) -> int:
        return min(wanted, self.count // 2)


def random_samples(inputs: Sequence[InputSpec], count: int, seed: int, distribution: str, purpose: str = "") -> Samples:
    """Random values within each input's range; for another *purpose* the same seed gives others.

    Raises:
        StageError: for a distribution that is not known.
    """
    known = get_args(Distribution)
    if distribution not in known:
        raise StageError(f"Unknown distribution {distribution!r}.", advice=f"Known are: {', '.join(known)}.")
    chosen = cast(Distribution, distribution)
    return Samples("random", range(count), lambda number: random_feed(inputs, f"{seed}{purpose}", number, chosen))


def read_samples(folder: Path, inputs: Sequence[InputSpec], processor: Path | None) -> Samples:
    """The calibration data in *folder*, which is one of these:

    - one .npz file: arrays by input name, whose first axis counts the samples;
    - several .npz files, in the order of their names: one sample each;
    - .npy files: ``<input>.npy``, whose first axis counts the samples, or a folder ``<input>`` with one file a sample;
    - .txt files: one text a line, for the tokenizer in *processor*.

    Raises:
        StageError: when there is no data, or it does not fit the model's inputs.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    kinds = {path.suffix.lower() for path in files}
    if kinds == {".npz"}:
        samples = _stacked_npz(files[0], inputs) if len(files) == 1 else _single_npz(files, inputs)
    elif kinds == {".npy"}:
        samples = _npy(folder, files, inputs)
    elif kinds == {".txt"}:
        samples = _text(files, inputs, processor)
    else:
        raise StageError(
            f"Calibration data must be .npz files, .npy files or .txt files, but there is: {', '.join(sorted(kinds))}."
            if kinds
            else "There is no file in the calibration data.",
        )
    if not samples.count:
        raise StageError("There is no sample in the calibration data.")
    return samples


def _stacked_npz(file: Path, inputs: Sequence[InputSpec]) -> Samples:
    return _stacked("npz", _load_npz(file), inputs)


def _single_npz(files: Sequence[Path], inputs: Sequence[InputSpec]) -> Samples:
    return Samples("npz", range(len(files)), lambda index: fit(_load_npz(files[index]), inputs, files[index].name))


def _npy(folder: Path, files: Sequence[Path], inputs: Sequence[InputSpec]) -> Samples:
    if all(file.parent == folder for file in files):
        return _stacked("npy", {file.stem: _load_npy(file) for file in files}, inputs)
    by_input: dict[str, list[Path]] = {}
    for file in files:
        by_input.setdefault(file.parent.relative_to(folder).as_posix(), []).append(file)
    counts = {name: len(paths) for name, paths in by_input.items()}
    count = _common_count(counts)
    _check_names(by_input, inputs)

    def make(index: int) -> Feed:
        return fit({name: _load_npy(paths[index]) for name, paths in by_input.items()}, inputs, f"sample {index}")

    return Samples("npy", range(count), make)


def _stacked(kind: str, arrays: Mapping[str, Array], inputs: Sequence[InputSpec]) -> Samples:
    _check_names(arrays, inputs)
    flat = [name for name, array in arrays.items() if array.ndim == 0]
    if flat:
        raise StageError(
            f"The calibration data of {flat[0]!r} is a single number; its first axis must count the samples."
        )
    count = _common_count({name: len(array) for name, array in arrays.items()})
    return Samples(
        kind,
        range(count),
        lambda index: fit({name: array[index] for name, array in arrays.items()}, inputs, f"sample {index}"),
    )


def _common_count(counts: Mapping[str, int]) -> int:
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        raise StageError(f"The calibration data has different numbers of samples: {text}.")
    return min(counts.values())


def _load_npz(file: Path) -> dict[str, Array]:
    content = _load(file)
    if not isinstance(content, dict):
        raise StageError(f"The calibration data {file.name} is not an archive of arrays.", advice=_SAVE)
    return content


def _load_npy(file: Path) -> Array:
    content = _load(file)
    if isinstance(content, dict):
        raise StageError(f"The calibration data {file.name} is not a single array.", advice=_SAVE)
    return content


def _load(file: Path) -> dict[str, Array] | Array:
    """What numpy finds in *file*; never by way of pickle, which could run anything."""
    try:
        content = np.load(file, allow_pickle=False)
        return content if isinstance(content, np.ndarray) else dict(content)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise StageError(f"The calibration data {file.name} cannot be read: {error}", advice=_SAVE) from error


def _check_names(names: Mapping[str, object], inputs: Sequence[InputSpec]) -> None:
    wanted = {spec.name for spec in inputs}
    missing, unknown = sorted(wanted - names.keys()), sorted(names.keys() - wanted)
    if missing or unknown:
        raise StageError(
            "The calibration data does not have the model's inputs:"
            + (f" {', '.join(missing)} missing" if missing else "")
            + (" and" if missing and unknown else "")
            + (f" {', '.join(unknown)} not an input" if unknown else "")
            + ".",
            advice=f"The inputs are: {', '.join(sorted(wanted))}.",
        )


def fit(arrays: Mapping[str, Array], inputs: Sequence[InputSpec], where: str) -> Feed:
    """One sample in the shapes and types of the model's *inputs*; a missing batch axis is added.

    Raises:
        StageError: when names, shapes or values do not fit; *where* says in the sentence which sample it is.
    """
    _check_names(arrays, inputs)
    return {spec.name: _cast(_shape(arrays[spec.name], spec, where), spec, where) for spec in inputs}


def _shape(array: Array, spec: InputSpec, where: str) -> Array:
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
            f"Input {spec.name!r} takes the shape {list(shape)}, but {where} of the calibration data has"
            f" {list(array.shape)}."
        )
    return array


def _cast(array: Array, spec: InputSpec, where: str) -> Array:
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError as error:
        raise StageError(f"Input {spec.name!r} is of type {spec.dtype}, of which there are no arrays.") from error
    if np.can_cast(array.dtype, dtype, "same_kind"):
        converted = array.astype(dtype)
        if dtype.kind not in "iu" or np.array_equal(converted, array):
            return converted
    raise StageError(
        f"Input {spec.name!r} is of type {dtype.name}, and the values of {where} of the calibration data, of type"
        f" {array.dtype.name}, do not fit into it."
    )


def _text(files: Sequence[Path], inputs: Sequence[InputSpec], processor: Path | None) -> Samples:
    if processor is None:
        raise StageError(
            "The calibration data is text, but the model comes without a tokenizer.",
            advice="Give a model folder that has one, or give arrays (.npz).",
        )
    lines = [line.strip() for file in files for line in _lines(file)]
    texts = [line for line in lines if line]
    tokenizer = _tokenizer(processor)
    return Samples("text", range(len(texts)), lambda index: _encode(tokenizer, texts[index], inputs))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise StageError(f"The calibration data {file.name} is not text in UTF-8: {error}") from error


def _tokenizer(folder: Path) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise StageError(
            "Calibrating on text needs the package transformers.", advice="pip install winml_dag[hf]"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise StageError(f"There is no tokenizer that can be loaded in the processor folder: {error}") from error
    if tokenizer.pad_token is None:
        # Decoders are trained without padding; the attention mask keeps whatever stands there from counting.
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise StageError("The tokenizer has no token to pad with.", advice="Give arrays (.npz) as calibration data.")
    return tokenizer


def _encode(tokenizer: Any, text: str, inputs: Sequence[InputSpec]) -> Feed:
    """*text* as the model takes it: padded or cut to the length of its inputs when that is fixed."""
    wanted = {spec.name: spec for spec in inputs}
    ids = wanted.get("input_ids")
    length = ids.shape[-1] if ids is not None and isinstance(ids.shape[-1], int) else None
    encoded = tokenizer(
        text,
        return_tensors="np",
        padding="max_length" if length is not None else False,
        truncation=length is not None,
        max_length=length,
        return_token_type_ids="token_type_ids" in wanted,
    )
    arrays = {name: np.asarray(array) for name, array in encoded.items() if name in wanted}
    if missing := sorted(wanted.keys() - arrays.keys()):
        raise StageError(
            f"The tokenizer does not make the model's input {', '.join(missing)}.",
            advice="Give arrays for all inputs (.npz) as calibration data.",
        )
    return fit(arrays, inputs, f"the text {text[:40]!r}")
