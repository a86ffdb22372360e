"""``sweep.json``: it is read back as written, and content from others is validated, not trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.errors import InputError
from winml_dag.pipeline.sweep.result import (
    FORMAT,
    SWEEP,
    CellResult,
    CellStatus,
    DecodeError,
    Measured,
    StageRun,
    SweepResult,
    read_sweep,
    sweep_of,
    text_of,
    write_sweep,
)

# What cannot be inferred of the types of fields.
REPORTS = st.dictionaries(st.text(max_size=9), st.integers() | st.text(max_size=9) | st.none(), max_size=2)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(Mapping, lambda kind: st.dictionaries(*map(st.from_type, get_args(kind)), max_size=2))
st.register_type_strategy(Measured, st.builds(Measured, measured=..., made_at=..., report=REPORTS, error=...))
SWEEPS = st.from_type(SweepResult).map(lambda sweep: replace(sweep, format=FORMAT))

SMALL = SweepResult(
    "small",
    "sweep.yaml",
    "2026-11-22T10:00:00Z",
    1.5,
    {"precision": ("fp32",)},
    (CellResult("fp32", {"precision": "fp32"}, "fp32", CellStatus.BUILT, stages=(StageRun("a", "a", "ran", "x"),)),),
)


@given(SWEEPS)
@settings(max_examples=30)
def test_what_is_written_is_read_again(sweep: SweepResult) -> None:
    assert sweep_of(text_of(sweep)) == sweep


def test_each_cell_has_a_line(tmp_path: Path) -> None:
    write_sweep(tmp_path, replace(SMALL, cells=SMALL.cells * 3))
    lines = (tmp_path / SWEEP).read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith('{"name": "fp32"')]) == 3
    assert read_sweep(tmp_path) == replace(SMALL, cells=SMALL.cells * 3)


def test_a_name_that_is_no_text_is_kept(tmp_path: Path) -> None:
    assert read_sweep(tmp_path) is read_sweep(tmp_path / "missing") is None
    odd = replace(SMALL, recipe="sweep-\udce9.yaml")
    write_sweep(tmp_path, odd)
    assert read_sweep(tmp_path) == odd


def edited(path: tuple[str | int, ...], value: object) -> bytes:
    whole: Any = json.loads(text_of(SMALL))
    at = whole
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(b"\xff\xfe", "not JSON", id="no text"),
        pytest.param(b"[" * 100_000, "not JSON", id="deep"),
        pytest.param(b'{"a": NaN}', "NaN is not valid in JSON", id="NaN"),
        pytest.param(b"[]", "it should be a dictionary", id="a list"),
        pytest.param(b"{}", "name is missing", id="another object"),
        pytest.param(edited(("format",), FORMAT + 1), f"its format is {FORMAT + 1}", id="newer"),
        pytest.param(edited(("cells",), {}), "cells should be a valid list", id="cells"),
        pytest.param(edited(("cells", 0, "status"), "done"), "cells.0.status should be 'built', ", id="status"),
        pytest.param(edited(("cells", 0, "folder"), None), "cells.0.folder should be a valid string", id="folder"),
        pytest.param(edited(("cells", 0, "values"), []), "cells.0.values should be a valid dictionary", id="values"),
        pytest.param(
            edited(("cells", 0, "stages", 0, "elapsed_seconds"), []),
            "elapsed_seconds should be a valid number",
            id="a list of numbers",
        ),
        pytest.param(edited(("cells", 0, "stages", 0, "cells"), 1.5), "cells should be a valid integer", id="fraction"),
        pytest.param(edited(("interrupted",), 3), "interrupted should be a valid boolean", id="number for truth value"),
        pytest.param(edited(("axes", "precision"), [1]), "axes.precision.0 should be a valid string", id="label"),
    ],
)
def test_whatever_else_lies_there_is_told(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / SWEEP).write_bytes(data)
    with pytest.raises(InputError) as told:
        read_sweep(tmp_path)
    assert said in str(told.value)
    assert str(tmp_path / SWEEP) in str(told.value)
    assert "choose another folder" in told.value.advice


@given(st.binary(max_size=60), st.integers(0, 5000))
def test_damage_is_never_more_than_a_sentence(noise: bytes, at: int) -> None:
    data = text_of(SMALL)
    at %= len(data)
    # Any other exception would be a traceback.
    with suppress(DecodeError):
        sweep_of(data[:at] + noise + data[at + len(noise) :])


def test_a_field_of_a_newer_version_is_passed_over() -> None:
    assert sweep_of(edited(("cells", 0, "mood"), "good")) == SMALL
