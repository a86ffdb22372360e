"""Rows of labelled data: which of them, and which of their columns."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winml_dag.errors import StageError
from winml_dag.stages.samples import TABLES, kind_of
from winml_dag.stages.samples.tables import Table, chosen_rows, read_tables


@dataclass(frozen=True)
class Rows:
    """``columns``: by role."""

    table: Table
    columns: Mapping[str, str]

    def __call__(self, numbers: Sequence[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Those of these *numbers*, which ascend: each with its number, and its values by role.

        Raises:
            StageError: for a value that is missing, and for a file that cannot be read.
        """
        for number, row in chosen_rows(self.table, numbers, sorted(set(self.columns.values()))):
            for column in self.columns.values():
                if row[column] is None:
                    raise StageError(f"Column {column!r} has no value in row {number}.", advice="Take that row away.")
            yield number, {role: row[column] for role, column in self.columns.items()}


def rows_of(folder: Path, task: str, wanted: Mapping[str, Sequence[str]], mapping: Mapping[str, str]) -> Rows:
    """The rows in *folder*, with the columns of the roles *wanted*, of which each has usual names.

    Raises:
        StageError: when the files are no tables, or lack a column.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if any(kind_of(file.name) not in TABLES for file in files):
        raise StageError(
            f"Data for {task} is a table, and {files[0].name} is none.",
            advice="Give CSV, JSON lines or parquet with the columns " + ", ".join(wanted) + ".",
        )
    table = read_tables(files)
    return Rows(table, dict(_columns(table.columns, task, wanted, mapping)))


def _columns(
    there: Sequence[str], task: str, wanted: Mapping[str, Sequence[str]], mapping: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    if unknown := sorted(mapping.keys() - wanted.keys()):
        raise StageError(
            f"eval.dataset.columns_mapping: {task} has nothing called {unknown[0]!r}.",
            advice=f"It has: {', '.join(wanted)}.",
        )
    for role, names in wanted.items():
        usual = (mapping[role],) if role in mapping else names
        column = next((name for name in usual if name in there), None)
        if column is None:
            raise StageError(
                f"The data has no column {' or '.join(usual)}, and {task} needs one ({role}); it has: "
                f"{', '.join(there)}.",
                advice=f"Set eval.dataset.columns_mapping (--column {role}=COLUMN).",
            )
        yield role, column


def chosen_numbers(count: int, most: int, seed: int | None) -> Sequence[int]:
    """*most* of *count*, ascending: the first ones, or with *seed* a choice of them."""
    if seed is None or most >= count:
        return range(min(most, count))
    return sorted(random.Random(seed).sample(range(count), most))
