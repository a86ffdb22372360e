"""Tables of an installed winml-cli: which parts are used, and that built-in tables take precedence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from winml_dag.ep.registry import QNN, Target
from winml_dag.ep.support import Case, Level, Operand, Quantized, table_files
from winml_dag.ep.support.table import read_support
from winml_dag.ep.support.winmlcli import WinmlCliRules
from winml_dag.errors import StageError, UsageError

NPU = Target(QNN, "npu")


def cell(value: object) -> str:
    """Return a condition in the format of these files: JSON with type annotations."""
    return json.dumps(_tagged(value))


def _tagged(value: object) -> dict[str, Any]:
    if isinstance(value, tuple):
        return {"t": "tuple", "v": [_tagged(each) for each in value]}
    kind = {bool: "bool", int: "int", str: "str", type(None): "none"}[type(value)]
    return {"t": kind, "v": value}


def write(folder: Path, name: str, *rows: tuple[dict[str, object], list[bool]]) -> Path:
    inner = folder / "QNNExecutionProvider_NPU"
    inner.mkdir(exist_ok=True)
    path = inner / name
    table = pyarrow.Table.from_pylist(
        [
            {**{key: cell(value) for key, value in row.items()}, "compile_run_success": result, "run_reason": None}
            for row, result in rows
        ]
    )
    pyarrow.parquet.write_table(table, path)
    return path


def softmax(rank: int, dtype: str = "float32", opset: int = 17, quantized: Quantized | None = None) -> Case:
    return Case("Softmax", "", opset, (Operand(dtype, (2,) * rank),), (), (("axis", -1),), quantized)


def row(rank: int, dtype: str, *, axis: int = -1) -> dict[str, object]:
    return {
        "T_Softmax": dtype,
        "input_dim": rank,
        "input_is_constant": False,
        "input_is_fixed_shape": True,
        "input_dynamic_axes": (),
        "attr_axis": axis,
        "attr_axis_is_none": False,
        "input_shape_is_nice": "nobody knows",
    }


@pytest.fixture
def rules(tmp_path: Path) -> WinmlCliRules:
    paths = [
        write(
            tmp_path,
            "Softmax_QNNExecutionProvider_NPU_ai.onnx_opset13.parquet",
            (row(4, "FLOAT"), [True, True]),
            (row(6, "FLOAT"), [False, True]),
            (row(4, "DOUBLE"), [False, False]),
            (row(3, "FLOAT"), [True, True]),
            (row(3, "FLOAT"), [False, True]),
        ),
        write(
            tmp_path,
            "Softmax_QNNExecutionProvider_NPU_ai.onnx_opset13_qdq.parquet",
            (row(6, "FLOAT"), [True, True]),
        ),
    ]
    return WinmlCliRules(paths)


def test_compiled_and_run_is_supported_run_alone_partial_and_neither_unsupported(rules: WinmlCliRules) -> None:
    assert rules.verdict(softmax(4)).level is Level.SUPPORTED
    assert rules.verdict(softmax(6)).level is Level.PARTIAL
    assert rules.verdict(softmax(4, "float64")).level is Level.UNSUPPORTED
    assert rules.verdict(softmax(6, quantized=Quantized("uint8", ""))).level is Level.SUPPORTED


def test_rows_that_do_not_fit_or_disagree_say_nothing(rules: WinmlCliRules) -> None:
    assert "says nothing" in rules.verdict(softmax(5)).reason
    assert "says different things" in rules.verdict(softmax(3)).reason
    assert rules.verdict(softmax(4, opset=11)).level is Level.UNKNOWN
    assert rules.verdict(Case("Mish", "", 18, (), ())).level is Level.UNKNOWN


def test_ours_comes_first_and_theirs_fills_what_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path,
        "Softmax_QNNExecutionProvider_NPU_ai.onnx_opset13.parquet",
        (row(4, "FLOAT"), [False, False]),
    )
    write(
        tmp_path,
        "OfNobody_QNNExecutionProvider_NPU_com.example_opset1.parquet",
        ({"x_dim": 1}, [True, True]),
    )
    monkeypatch.setenv("WINMLCLI_RULES_DIR", str(tmp_path))
    given = tmp_path / "given"
    given.mkdir()
    for place, path in enumerate(table_files(NPU)):  # as a stage finds them
        (given / f"{place}_{path.name}").write_bytes(path.read_bytes())
    tables, support = read_support(given)
    assert [table.about.ep for table in tables][:1] == ["QNNExecutionProvider"]
    assert support.verdict(softmax(4)).level is Level.SUPPORTED
    assert support.verdict(Case("OfNobody", "com.example", 1, (), ())).level is Level.SUPPORTED


def test_a_folder_that_is_not_there_and_a_missing_pyarrow_are_said(
    rules: WinmlCliRules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINMLCLI_RULES_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=r"WINMLCLI_RULES_DIR names .*nowhere"):
        table_files(NPU)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StageError, match="take pyarrow to read"):
        rules.verdict(softmax(4))
    monkeypatch.undo()
    damaged = write(tmp_path, "Relu_QNNExecutionProvider_NPU_ai.onnx_opset6.parquet", ({"X_dim": 1}, [True, True]))
    damaged.write_bytes(b"no parquet")
    with pytest.raises(StageError, match=r"Relu_.*\.parquet is not a table"):
        WinmlCliRules([damaged]).verdict(Case("Relu", "", 17, (), ()))
