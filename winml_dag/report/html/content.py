"""What the page is told: a report as JSON without what repeats, since a sweep of 500 builds has thousands of stages.

Parts that are None or empty are left out. Texts of stages stand once, in ``texts``, and stages are rows of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.pipeline.sweep.result import StageRun
from winml_dag.report.compare import Comparison
from winml_dag.report.row import Report, Row

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_STAGE_COLUMNS = tuple(field.name for field in fields(StageRun))
_PACKED = ("stages", "versions")
_DIGITS = 7


class _Pool:
    """Values that repeat, each once; what stands for one is its place."""

    def __init__(self) -> None:
        self.values: list[JsonValue] = []
        self._places: dict[object, int] = {}

    def place(self, key: object, value: JsonValue) -> int:
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(value)
        return self._places[key]


def content_of(report: Report, comparison: Comparison | None) -> JsonObject:
    """All that the page shows. Numbers that JSON has no words for become ``"Infinity"``, ``"-Infinity"`` or nothing."""
    texts, versions = _Pool(), _Pool()
    rows: list[JsonValue] = [_row(row, texts, versions) for row in report.rows]
    return {
        **_members(report, without=("rows",)),
        "rows": rows,
        "stage_columns": list(_STAGE_COLUMNS),
        "texts": texts.values,
        "versions": versions.values,
        "comparison": None if comparison is None else _compared(comparison),
    }


def _row(row: Row, texts: _Pool, versions: _Pool) -> JsonObject:
    return {
        **_members(row, without=_PACKED),
        "stages": [_stage(stage, texts) for stage in row.stages],
        "versions": versions.place(tuple(sorted(row.versions.items())), _mapping(row.versions)),
    }


def _stage(stage: StageRun, texts: _Pool) -> JsonValue:
    """A row of ``stage_columns``; a text is its place in ``texts``."""
    values = (_plain(getattr(stage, name)) for name in _STAGE_COLUMNS)
    return [texts.place(value, value) if isinstance(value, str) else value for value in values]


def _compared(comparison: Comparison) -> JsonObject:
    rows: list[JsonValue] = [
        {**_members(row), "is_regression": row.is_regression, "is_improvement": row.is_improvement}
        for row in comparison.rows
    ]
    return {**_members(comparison, without=("rows",)), "rows": rows}


def _members(value: DataclassInstance, without: Iterable[str] = ()) -> JsonObject:
    names = (field.name for field in fields(value) if field.name not in without)
    plain = ((name, _plain(getattr(value, name))) for name in names)
    return {name: told for name, told in plain if told is not None and told != "" and told != [] and told != {}}


def _mapping(value: Mapping[str, object]) -> JsonObject:
    return {_well_formed(str(name)): _plain(one) for name, one in value.items()}


def _plain(value: object) -> JsonValue:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _well_formed(str(value))
    if isinstance(value, Mapping):
        return _mapping(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _members(value)
    if isinstance(value, Iterable):
        return [_plain(one) for one in value]
    raise TypeError(f"a report holds no {type(value).__name__}")


def _number(value: float) -> JsonValue:
    if math.isnan(value):
        return None
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else f"{'-' * (value < 0)}Infinity"


def _well_formed(text: str) -> str:
    """*text* as Unicode has it: names of files may hold bytes that mean no letter, and an address cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")
