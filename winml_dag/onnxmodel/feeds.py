"""Random inputs for a model: the same seed results in the same numbers for any input order, machine or process.

Which values are valid (token ids below the vocabulary's size) is known when a model is exported. It is stored in the
model's metadata, ``winml.io.inputs``, and read from there.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from winml_dag.canonical import canonical_json
from winml_dag.errors import InputError
from winml_dag.onnxmodel.dataflow import Bounds, index_bounds
from winml_dag.onnxmodel.inspect import NO_TENSOR, UNKNOWN_DIMENSION, UNKNOWN_RANK, TensorSpec, inspect_model

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession

INPUTS_KEY = "winml.io.inputs"
OUTPUTS_KEY = "winml.io.outputs"

Distribution = Literal["uniform", "normal"]

# Small enough to be a valid index into any vocabulary or table of positions.
_DEFAULT_INTEGERS = (0.0, 10.0)
_ORT_TYPES = {"float": "float32", "double": "float64"}


def write_io_specs(model: ModelProto, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Write the specs of inputs and outputs to the model's metadata, replacing existing ones."""
    texts = {
        INPUTS_KEY: canonical_json([spec.to_json() for spec in inputs]),
        OUTPUTS_KEY: canonical_json([spec.to_json() for spec in outputs]),
    }
    kept = [(entry.key, entry.value) for entry in model.metadata_props if entry.key not in texts]
    del model.metadata_props[:]
    for key, value in (*kept, *texts.items()):
        model.metadata_props.add(key=key, value=value)


def model_inputs(source: Path | InferenceSession) -> tuple[TensorSpec, ...]:
    """Return the inputs of a model file or of an ONNX Runtime session, with the value ranges in its metadata.

    Raises:
        InputError: the file cannot be read, or its metadata is malformed.
    """
    if isinstance(source, Path):
        summary = inspect_model(source)
        specs, metadata = summary.inputs, summary.metadata
    else:
        specs = tuple(
            TensorSpec(
                argument.name,
                _from_ort(argument.type),
                tuple(UNKNOWN_DIMENSION if dim is None else dim for dim in argument.shape),
            )
            for argument in source.get_inputs()
        )
        metadata = source.get_modelmeta().custom_metadata_map
    ranges = _value_ranges(metadata.get(INPUTS_KEY, "[]"))
    found = tuple(replace(spec, value_range=ranges.get(spec.name)) for spec in specs)
    if not isinstance(source, Path):
        return found
    unknown = [spec.name for spec in found if spec.value_range is None and spec.dtype.lstrip("u").startswith("int")]
    bounds = index_bounds(source, unknown) if unknown else {}
    return tuple(_within(spec, bounds[spec.name]) if spec.name in bounds else spec for spec in found)


def _within(spec: TensorSpec, bounds: Bounds) -> TensorSpec:
    """Return *spec* with a range of values if the usual ones exceed *bounds*."""
    first, end = (1.0, 2.0) if _is_mask(spec.name) else _usual_integers(spec.name)
    low, high = float(math.ceil(max(bounds.low, first))), float(math.floor(min(bounds.high, end - 1)))
    if (low, high) == (first, end - 1):
        return spec
    if low > high:
        # A different range altogether, such as -1, or ids from 100.
        low = bounds.low if math.isfinite(bounds.low) else bounds.high - (end - first) + 1
        high = max(low, min(bounds.high, low + (end - first) - 1))
    return replace(spec, value_range=(float(low), float(high + 1)))


def inputs_of_both(reference: Path | InferenceSession, candidate: Path | InferenceSession) -> tuple[TensorSpec, ...]:
    """Return the inputs of *reference* with its open sizes taken from *candidate*, so that both can be run on them.

    Types are those of the reference: float16 would degrade its inputs. Raises InputError as :func:`model_inputs`.
    """
    others = {spec.name: spec for spec in model_inputs(candidate)}
    return tuple(_narrowed(spec, others.get(spec.name, spec)) for spec in model_inputs(reference))


def _narrowed(spec: TensorSpec, other: TensorSpec) -> TensorSpec:
    value_range = spec.value_range or other.value_range
    if spec.value_range is not None and other.value_range is not None:
        (low, high), (first, end) = spec.value_range, other.value_range
        value_range = (max(low, first), min(high, end)) if max(low, first) < min(high, end) else spec.value_range
    if spec.shape == (UNKNOWN_RANK,):
        return replace(spec, shape=other.shape, value_range=value_range)
    if len(spec.shape) != len(other.shape):
        return replace(spec, value_range=value_range)
    sizes = zip(spec.shape, other.shape, strict=True)
    return replace(
        spec, shape=tuple(mine if isinstance(mine, int) else theirs for mine, theirs in sizes), value_range=value_range
    )


def random_feeds(
    specs: Sequence[TensorSpec], seed: int, count: int, distribution: Distribution = "uniform"
) -> Iterator[dict[str, NDArray[np.generic]]]:
    """Yield *count* samples: an array for every input name. Dimensions that are not numbers become 1.

    Raises:
        InputError: an input's type has no random values (texts, sequences).
    """
    return (random_feed(specs, str(seed), index, distribution) for index in range(count))


def random_feed(
    specs: Sequence[TensorSpec], seed: str, index: int, distribution: Distribution = "uniform"
) -> dict[str, NDArray[np.generic]]:
    """Return one sample of :func:`random_feeds`; text seeds extend the numeric ones that users choose."""
    return {spec.name: _valid(spec, _sample(spec, _generator(seed, spec.name, index), distribution)) for spec in specs}


def _valid(spec: TensorSpec, values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return *values* adjusted so that a model can use them.

    Boxes on a page (left, top, right, bottom) end to the right of and below their start: models look up sizes. A mask
    does not hide the first token: if each token sees only those before it, as in CLIP's texts, the first would see
    nothing, and the result would depend on how the model represents infinity.
    """
    if spec.name == "bbox" and values.shape[-1:] == (4,):
        return np.sort(values.reshape(*values.shape[:-1], 2, 2), axis=-2).reshape(values.shape)
    if spec.name.endswith("attention_mask") and values.ndim and (spec.value_range or (0, 0))[1] > 1:
        values[..., 0] = 1
    return values


def _generator(seed: str, name: str, index: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}\0{name}\0{index}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))


def _sample(spec: TensorSpec, generator: np.random.Generator, distribution: Distribution) -> NDArray[np.generic]:
    shape = tuple(dim if isinstance(dim, int) else 1 for dim in spec.shape)
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "fiub":
        raise InputError(
            f"Input {spec.name!r} is {'no tensor' if spec.dtype == NO_TENSOR else f'of type {spec.dtype}'}, and models"
            " are run here on tensors of numbers only, so it is neither calibrated, validated nor measured.",
            advice="The precision fp32 with --no-validate builds it.",
        )
    is_default = spec.value_range is None
    if is_default and _is_mask(spec.name):
        return np.ones(shape, dtype)
    usual = (0.0, 1.0) if dtype.kind == "f" else (0.0, 2.0) if dtype.kind == "b" else _usual_integers(spec.name)
    low, high = spec.value_range or usual
    if dtype.kind == "f":
        if distribution == "normal":
            centre, deviation = (0.0, 1.0) if is_default else ((low + high) / 2, (high - low) / 6)
            values = centre + deviation * generator.standard_normal(shape)
            if is_default:
                return np.asarray(values, dtype)  # numpy turns an array without axes into a number
        else:
            values = low + (high - low) * generator.random(shape)
        first, end = np.asarray(low, dtype), np.asarray(high, dtype)
        # Rounding may reach the excluded bound.
        return np.asarray(np.clip(np.asarray(values, dtype), first, np.nextafter(end, first)))
    lowest, highest = math.ceil(low), max(math.ceil(high) - 1, math.ceil(low))
    bounds = np.iinfo(np.int64 if dtype.kind == "b" or dtype.name == "uint64" else dtype.name)
    if not bounds.min <= lowest <= highest <= bounds.max:
        raise InputError(f"The range of values [{low}, {high}) does not fit the type {dtype.name}.")
    if distribution == "normal":
        values = (lowest + highest) / 2 + (highest - lowest) / 6 * generator.standard_normal(shape)
        return np.asarray(np.clip(np.rint(values), lowest, highest), dtype)
    return np.asarray(generator.integers(lowest, highest, size=shape, endpoint=True), dtype)


def _usual_integers(name: str) -> tuple[float, float]:
    return (0.0, 2.0) if "token_type" in name else _DEFAULT_INTEGERS


def _is_mask(name: str) -> bool:
    return name.endswith("attention_mask") or name == "pixel_mask"


def _from_ort(text: str) -> str:
    """Return numpy's name of a type: ``float32`` for ``"tensor(float)"``."""
    if not (text.startswith("tensor(") and text.endswith(")")):
        return NO_TENSOR
    name = text.removeprefix("tensor(").removesuffix(")")
    return _ORT_TYPES.get(name, name)


def _value_ranges(text: str) -> dict[str, tuple[float, float]]:
    ranges = {}
    try:
        entries = json.loads(text)
        if not isinstance(entries, list):
            raise ValueError
        for entry in entries:
            name, bounds = entry["name"], entry.get("value_range")
            if not isinstance(name, str):
                raise ValueError
            if bounds is not None:
                low, high = map(_number, bounds)
                if low > high:
                    raise ValueError
                ranges[name] = (low, high)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise InputError(
            f"The model's metadata {INPUTS_KEY} is malformed: {text[:200]!r}.", advice="Export it again."
        ) from None
    return ranges


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError
    return float(value)
