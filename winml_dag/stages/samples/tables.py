"""Rows of tables in files: parquet, Arrow, JSON and CSV, read from front to back, so memory holds only a part.

These are the formats of data sets on a hub. Nothing is executed: the formats hold values, and a data set's script is
not read.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.stages.samples import kind_of

# Values as in the file: numbers, texts, lists, and bytes for an image.
Row: TypeAlias = Mapping[str, Any]

_BATCH_ROWS = 64


@dataclass(frozen=True)
class Table:
    """Rows of one file. ``columns``: their names; ``rows`` yields the rows from a number on, with the given columns."""

    count: int
    columns: tuple[str, ...]
    rows: Callable[[int, Sequence[str]], Iterator[Row]]


def read_tables(files: Sequence[Path]) -> Table:
    """Return the rows of all *files*, one file after the other.

    Raises:
        StageError: a file cannot be read, or lacks a column of the first.
    """
    tables = [_table(file) for file in files]
    for file, table in zip(files, tables, strict=True):
        if missing := sorted(set(tables[0].columns) - set(table.columns)):
            raise StageError(f"The data {file.name} has no column {missing[0]!r}, but {files[0].name} has.")

    def rows(first: int, columns: Sequence[str]) -> Iterator[Row]:
        for file, table in zip(files, tables, strict=True):
            if first < table.count:
                with _readable(file):
                    yield from table.rows(first, columns)
            first = max(0, first - table.count)

    return Table(sum(table.count for table in tables), tables[0].columns, rows)


def chosen_rows(table: Table, numbers: Sequence[int], columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
    """Yield the rows of these ascending *numbers*, each with its number.

    Raises:
        StageError: a row has no value in one of *columns*, or a file cannot be read.
    """
    if not numbers:
        return
    wanted = set(numbers)
    rows = enumerate(table.rows(numbers[0], columns), start=numbers[0])
    for at, row in islice(rows, numbers[-1] - numbers[0] + 1):
        if at in wanted:
            if lacking := next((column for column in columns if row[column] is None), None):
                raise StageError(f"Column {lacking!r} has no value in row {at} of the data.", advice="Remove that row.")
            yield at, row


def _table(file: Path) -> Table:
    with _readable(file):
        make = {"parquet": _parquet, "arrow": _arrow, "json": _json, "csv": _csv, "text": _text}
        return make[str(kind_of(file.name))](file)


def _parquet(file: Path) -> Table:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(file) as opened:
        names, total = tuple(opened.schema_arrow.names), opened.metadata.num_rows

    def rows(first: int, columns: Sequence[str]) -> Iterator[Row]:
        with ParquetFile(file) as opened:
            groups: list[int] = []
            begin = 0
            for group in range(opened.num_row_groups):
                size = opened.metadata.row_group(group).num_rows
                if groups or first < begin + size:
                    groups.append(group)
                else:
                    begin += size
            batches = opened.iter_batches(_BATCH_ROWS, row_groups=groups, columns=list(columns))
            yield from _rows_of(batches, first - begin)

    return Table(total, names, rows)


def _arrow(file: Path) -> Table:
    """Read what `datasets` saves: a stream of record batches, or the file format with an index at its end."""
    import pyarrow

    @contextmanager
    def batches() -> Iterator[tuple[tuple[str, ...], Iterator[Any]]]:
        with pyarrow.memory_map(str(file)) as mapped:
            try:
                stream = pyarrow.ipc.open_stream(mapped)
                yield tuple(stream.schema.names), iter(stream)
            except pyarrow.ArrowInvalid:
                mapped.seek(0)
                whole = pyarrow.ipc.open_file(mapped)
                yield tuple(whole.schema.names), map(whole.get_batch, range(whole.num_record_batches))

    with batches() as (names, found):
        total = sum(batch.num_rows for batch in found)

    def rows(first: int, columns: Sequence[str]) -> Iterator[Row]:
        with batches() as (_, found):
            yield from _rows_of((batch.select(list(columns)) for batch in found), first)

    return Table(total, names, rows)


def _rows_of(batches: Iterator[Any], skip: int) -> Iterator[Row]:
    for batch in batches:
        # A batch may have any size; only this many rows are converted to Python objects at a time.
        for begin in range(min(skip, batch.num_rows), batch.num_rows, _BATCH_ROWS):
            yield from batch.slice(begin, _BATCH_ROWS).to_pylist()
        skip = max(0, skip - batch.num_rows)


def _streamed(names: Sequence[str], values: Callable[[], Iterator[Row]]) -> Table:
    """Return the table of *values*, which always come from the first row on."""

    def rows(first: int, columns: Sequence[str]) -> Iterator[Row]:
        return ({name: row.get(name) for name in columns} for row in islice(values(), first, None))

    return Table(sum(1 for _ in values()), tuple(names), rows)


def _json(file: Path) -> Table:
    """Read one object a line, or one list of objects, which has to be read whole."""

    def values() -> Iterator[Row]:
        with file.open(encoding="utf-8-sig") as lines:
            is_list = lines.read(1) == "["
            lines.seek(0)
            for value in json.load(lines) if is_list else (json.loads(line) for line in lines if line.strip()):
                if not isinstance(value, dict):
                    raise ValueError(f"it has {json.dumps(value)[:40]} where an object with a row's columns should be")
                yield value

    return _streamed(list(dict.fromkeys(name for row in values() for name in row)), values)


def _csv(file: Path) -> Table:
    dialect = csv.excel_tab if file.suffix.lower() == ".tsv" else csv.excel

    def values() -> Iterator[Row]:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            yield from csv.DictReader(lines, dialect=dialect)

    with file.open(encoding="utf-8-sig", newline="") as lines:
        names = next(csv.reader(lines, dialect), [])
    return _streamed(names, values)


def _text(file: Path) -> Table:
    """Read one text a line, without blank lines."""

    def values() -> Iterator[Row]:
        with file.open(encoding="utf-8-sig") as lines:
            yield from ({"text": text} for line in lines if (text := line.strip()))

    return _streamed(["text"], values)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except StageError:
        raise
    except (OSError, ValueError, KeyError, RecursionError, csv.Error) as error:  # pyarrow's errors are ValueErrors
        raise StageError(
            f"The data {file.name} cannot be read: {explanation(error)}.", advice="Write it again, or remove it."
        ) from error
