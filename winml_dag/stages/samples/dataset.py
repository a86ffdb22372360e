"""Samples from rows of tables: which column becomes which input, directly or through the model's processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.stages.samples import IMAGE_COLUMN, TEXT_COLUMNS
from winml_dag.stages.samples.fit import fit
from winml_dag.stages.samples.images import open_image
from winml_dag.stages.samples.processor import Processor
from winml_dag.stages.samples.samples import Array, Feed, Samples
from winml_dag.stages.samples.tables import Row, chosen_rows, read_tables

_MAP = "Set columns_mapping, such as {{text: {0}}}: the model's inputs, text, text_pair or image -> a column."


def dataset_samples(
    files: Sequence[Path], inputs: Sequence[InputSpec], processor: Processor, mapping: Mapping[str, str]
) -> Samples:
    """Each row a sample.

    Raises:
        StageError: when columns are missing, or do not make what the model takes.
    """
    table = read_tables(files)
    roles = _roles(table.columns, inputs, mapping)
    columns = sorted(set(roles.values()))

    def read(numbers: Sequence[int]) -> Iterator[Feed]:
        for number, row in chosen_rows(table, numbers, columns):
            values = {role: _value(row, column, number) for role, column in roles.items()}
            arrays = _arrays(values, processor, number)
            if missing := sorted({spec.name for spec in inputs} - arrays.keys()):
                raise StageError(
                    f"Neither a column nor the model's processor makes its input {', '.join(missing)}.",
                    advice=_MAP.format(table.columns[0]),
                )
            yield fit(arrays, inputs, f"row {number}")

    return Samples("dataset", range(table.count), read)


def _roles(columns: Sequence[str], inputs: Sequence[InputSpec], mapping: Mapping[str, str]) -> Mapping[str, str]:
    """Column by what it is for."""
    known = [*(spec.name for spec in inputs), *TEXT_COLUMNS, IMAGE_COLUMN]
    if unknown := sorted(mapping.keys() - set(known)):
        raise StageError(
            f"columns_mapping: {unknown[0]!r} is neither an input of the model nor text, text_pair or image.",
            advice=f"Known are: {', '.join(known)}.",
        )
    if missing := sorted(set(mapping.values()) - set(columns)):
        raise StageError(
            f"columns_mapping: the data has no column {missing[0]!r}.",
            advice=f"It has: {', '.join(columns)}.",
        )
    # A second text is not added to the first because a column happens to have that name.
    names = [name for name in known if name in columns and name != "text_pair"]
    roles = mapping or {name: name for name in names}
    if not roles:
        raise StageError(
            f"None of the columns of the data ({', '.join(columns)}) is called like an input of the model,"
            " text or image.",
            advice=_MAP.format(columns[0] if columns else "sentence"),
        )
    return roles


def _value(row: Row, column: str, number: int) -> Any:
    value = row[column]
    if value is None:
        raise StageError(f"Column {column!r} of the data has no value in row {number}.", advice="Take that row away.")
    return value


def _arrays(values: Mapping[str, Any], processor: Processor, number: int) -> Mapping[str, Array]:
    arrays: dict[str, Array] = {}
    for role, value in values.items():
        if role == IMAGE_COLUMN:
            arrays |= processor.of_image(open_image(_image_bytes(value, number), f"row {number}"))
        elif role not in TEXT_COLUMNS:
            arrays[role] = _array(value, role, number)
    if "text" in values:
        pair = values.get("text_pair")
        arrays |= processor.of_text(str(values["text"]), None if pair is None else str(pair))
    return arrays


def _image_bytes(value: Any, number: int) -> bytes:
    """Images are bytes, or, as `datasets` writes them, bytes beside a path."""
    content = value.get("bytes") if isinstance(value, Mapping) else value
    if not isinstance(content, bytes):
        raise StageError(
            f"Row {number} of the data does not hold an image, but {str(value)[:40]!r}.",
            advice="Give the images as files: a folder of them.",
        )
    return content


def _array(value: Any, name: str, number: int) -> Array:
    try:
        array = np.asarray(float(value) if isinstance(value, str) else value)
        if array.dtype.hasobject:
            raise ValueError("its lists are of different lengths")
    except ValueError as error:
        raise StageError(f"Row {number} of the data has no array for input {name!r}: {explanation(error)}.") from error
    return array
