"""One sample as a model takes it: the names, shapes and types of its inputs.

Data that does not fit is refused. Calibrating on something else instead would go unnoticed until the quantized model is
used, and then be looked for everywhere but here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.onnxmodel.inspect import UNKNOWN_RANK
from winml_dag.stages.samples.samples import Array, Feed


def check_names(names: Mapping[str, object], inputs: Sequence[InputSpec]) -> None:
    """Raise StageError when *names* are not those of the *inputs*."""
    wanted = {spec.name for spec in inputs}
    missing, unknown = sorted(wanted - names.keys()), sorted(names.keys() - wanted)
    if missing or unknown:
        raise StageError(
            "The data does not have the model's inputs:"
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
    check_names(arrays, inputs)
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
            f"Input {spec.name!r} takes the shape {list(shape)}, but {where} of the data has {list(array.shape)}."
        )
    return array


def _cast(array: Array, spec: InputSpec, where: str) -> Array:
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError as error:
        raise StageError(
            f"Input {spec.name!r} is of type {spec.dtype}, and models are run here on tensors of numbers only.",
            advice="The precision fp32 with --no-validate builds it.",
        ) from error
    if np.can_cast(array.dtype, dtype, "same_kind"):
        converted = np.asarray(array, dtype)  # numpy may have made a number of an array without axes
        if dtype.kind not in "iu" or np.array_equal(converted, array):
            return converted
    raise StageError(
        f"Input {spec.name!r} is of type {dtype.name}, and the values of {where} of the data, of type"
        f" {array.dtype.name}, do not fit into it."
    )
