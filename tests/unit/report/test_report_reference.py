"""The documentation of report files names every field and every column."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from winml_dag.report.compare import Bound, Change, Compared, Comparison
from winml_dag.report.files import COLUMNS
from winml_dag.report.row import Accuracy, Latency, Placement, Quality, Report, Row, Size

_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "report.md"
_FORMS = (Report, Row, Size, Latency, Quality, Accuracy, Placement, Comparison, Compared, Change, Bound)


@pytest.fixture(scope="module")
def page() -> str:
    return _PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", _FORMS, ids=[form.__name__ for form in _FORMS])
def test_every_field_is_named(form: Any, page: str) -> None:
    named = set(re.findall(r"`(\w+)`", page))
    assert {field.name for field in fields(form)} <= named


def test_the_columns_are_those_in_their_order(page: str) -> None:
    listed = page.rpartition("before it.")[2]
    assert re.findall(r"`(\w+)`", listed) == list(COLUMNS)
