"""Support tables: their verdict on measured forms, on others, and on incomplete cases; how they are measured."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from winml_dag.ep.registry import CPU, QNN, Target
from winml_dag.ep.support import Case, Level, Operand, Outcome, Quantized, table_files, table_name
from winml_dag.ep.support.table import (
    About,
    Support,
    SupportTable,
    form_of,
    read_support,
    read_table,
    rows_of,
    table_bytes,
)
from winml_dag.ep.support.winmlcli import WinmlCliRules
from winml_dag.errors import InputError, StageError, UsageError
from winml_dag.stages.opsupport import agree, forms, measure

ABOUT = About("QNNExecutionProvider", "npu", "2.7.0", "2.51.0", "1.31.1", "1.23.2", {"soc_model": "60"}, True, 23)
TAKEN, LEFT, FAILS = Outcome(True, True), Outcome(False, True), Outcome(False, False)
NPU = Target(QNN, "npu")

dtypes = st.sampled_from(["float32", "float16", "int64"])


def relu(rank: int, dtype: str = "float32", **other: object) -> Case:
    return replace(Case("Relu", "", 17, (Operand(dtype, (2,) * rank),), (Operand(dtype),)), **other)


def table(rows: list[tuple[Case, Outcome]], path: Path) -> SupportTable:
    path.write_bytes(table_bytes(ABOUT, rows_of(rows)))
    return read_table(path)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(dtypes, st.integers(0, 5)), min_size=1, max_size=15), seed=st.integers(0, 9))
def test_table_reproduces_measured_levels(
    rows: list[tuple[str, int]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def does(dtype: str, rank: int) -> Outcome:
        return FAILS if dtype == "float16" and rank > 3 else LEFT if dtype == "int64" or rank == 0 else TAKEN

    measured = [(relu(rank, dtype), does(dtype, rank)) for dtype, rank in rows for _ in range(3)]
    folder = tmp_path_factory.mktemp("tables")
    one = table(measured, folder / "one")
    table(random.Random(seed).sample(measured, len(measured)), folder / "other")
    assert (folder / "one").read_bytes() == (folder / "other").read_bytes()
    for case, outcome in measured:
        assert one.verdict(case).level == outcome.level


def test_properties_that_never_mattered_are_ignored(tmp_path: Path) -> None:
    rows = [(relu(rank), TAKEN if rank < 5 else LEFT) for rank in (1, 2, 3, 4, 5, 6) for _ in range(2)]
    found = table(rows, tmp_path / "table")
    larger = found.verdict(relu(3, inputs=(Operand("float32", (7, 1, 30)),), opset=13))
    assert larger.level is Level.SUPPORTED
    assert larger.reason.startswith("it runs, measured 2 times on QNN npu 2.7.0 (SDK 2.51.0)")
    assert found.verdict(relu(6)).level is Level.PARTIAL
    assert len(table(rows[:8], tmp_path / "equal").rows) == 1


WRONG_RESULT = Outcome(True, True, agrees=False)


@pytest.mark.parametrize(
    ("outcomes", "level", "reason"),
    [
        ([FAILS] * 2, Level.UNKNOWN, ", which is too few to decide"),
        ([FAILS] * 3, Level.UNSUPPORTED, "no session can be made with it, measured 3 times"),
        ([TAKEN, LEFT], Level.UNKNOWN, "differ, by its sizes or values"),
        ([WRONG_RESULT] * 2, Level.PARTIAL, "with other numbers"),
    ],
)
def test_verdict_reports_failures_and_differing_results(
    outcomes: list[Outcome], level: Level, reason: str, tmp_path: Path
) -> None:
    rows = [*((relu(3), outcome) for outcome in outcomes), *[(relu(2), TAKEN)] * 7]
    found = table(rows, tmp_path / "table").verdict(relu(3))
    assert (found.level, reason in found.reason) == (level, True)


def test_unmeasured_form_is_unknown_with_reason(tmp_path: Path) -> None:
    found = table([(relu(2), TAKEN), (relu(2, "float16"), TAKEN)], tmp_path / "table")
    assert found.verdict(relu(2, "int8")).reason == "Relu was not measured with inputs of type int8"
    integers = found.verdict(relu(2, quantized=Quantized("uint8", "")))
    assert integers.reason == "Relu was not measured with the integer types uint8/"
    assert found.verdict(relu(2, op_type="Mish")).level is Level.UNKNOWN
    assert found.verdict(relu(2, "")).reason == "Relu was not measured with inputs of type unknown"
    # An opset that onnxruntime does not load is unsupported.
    assert found.verdict(relu(2, opset=23)).level is Level.SUPPORTED
    assert found.verdict(relu(2, opset=24)).level is Level.UNSUPPORTED


def operator(op_type: str, *inputs: Operand, opset: int = 17, **attributes: int | tuple[int, ...]) -> Case:
    return Case(op_type, "", opset, inputs, (Operand(),), tuple(sorted(attributes.items())))


DATA, SHAPE = Operand("float32", (2, 3)), Operand("int64", (5,), constant=True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(operator("Softmax", DATA), operator("Softmax", DATA, axis=-1), id="the default axis"),
        pytest.param(operator("Softmax", DATA, opset=11), operator("Softmax", DATA, axis=1), id="the old default"),
        pytest.param(operator("Concat", DATA, axis=0), operator("Concat", DATA, axis=-2), id="from the end"),
        pytest.param(operator("Relu", DATA), operator("Relu", Operand("float32", (8, 9))), id="other sizes"),
    ],
)
def test_equivalent_uses_have_the_same_form(one: Case, other: Case) -> None:
    assert form_of(one) == form_of(other)


@pytest.mark.parametrize(
    ("case", "rank"),
    [
        (operator("Reshape", DATA, SHAPE), 5),
        (operator("Unsqueeze", DATA, Operand("int64", (4,), constant=True)), 6),
        (operator("Unsqueeze", DATA, axes=(0, 1)), 4),
        (operator("Gather", DATA, Operand("int64", (1, 1, 1))), 4),
        (operator("Relu", Operand("float32", None)), None),
    ],
)
def test_form_rank_is_larger_of_input_and_result(case: Case, rank: int | None) -> None:
    assert f"rank {rank}" in form_of(case)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"{}"),
        gzip.compress(b'{"format":1}\n'),
        gzip.compress(b'{"format":2}\n')[:-9],
        gzip.compress(b'{"format":2}\n')[:10] + b"\xff" * 20,
        gzip.compress(b'{"format":2}\n[["","Relu"],{"guessed":1}]\n'),
    ],
    ids=["empty", "no gzip", "no format", "an earlier format", "cut short", "overwritten", "another outcome"],
)
def test_damaged_or_foreign_table_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "qnn_npu.support"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"qnn_npu\.support"):
        read_table(path)


def test_first_table_with_verdict_is_used(tmp_path: Path) -> None:
    mine = table([(relu(2), LEFT)], tmp_path / "mine")
    theirs = table([(relu(2), TAKEN), (relu(2, "float16"), TAKEN)], tmp_path / "theirs")
    both = Support([mine, theirs])
    assert both.verdict(relu(2)).level is Level.PARTIAL
    assert both.verdict(relu(2, "float16")).level is Level.SUPPORTED
    assert Support([]).verdict(relu(2)).level is Level.UNKNOWN


def test_user_table_precedes_shipped_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINML_DAG_SUPPORT_DIR", str(tmp_path))
    own = tmp_path / table_name(NPU)
    table([(relu(2), LEFT)], own)
    first, second = table_files(NPU)
    assert (first, second.name) == (own, own.name)
    assert table_files(NPU, asks=True) == (own,)
    monkeypatch.setenv("WINML_DAG_SUPPORT_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="nowhere"):
        table_files(NPU)


def test_shipped_qnn_table_has_expected_verdicts() -> None:
    path = table_files(NPU)[0]
    assert path.stat().st_size < 2**20
    on_npu = read_table(path)
    assert on_npu.about.ep == QNN.name
    assert on_npu.about.sdk_version
    assert "soc_model" in on_npu.about.options
    weights = Operand("float32", (4, 3, 3, 3), constant=True)
    conv = Case("Conv", "", 17, (Operand("float32", (1, 3, 14, 14)), weights), (Operand("float32"),))
    for case in (relu(4), conv, replace(conv, quantized=Quantized("uint8", "uint8"))):
        assert on_npu.verdict(case).level is Level.SUPPORTED, case
    # No open sizes, and no double precision.
    opened = replace(conv, inputs=(Operand("float32", (None, 3, 14, 14)), weights))
    assert on_npu.verdict(opened).level is Level.PARTIAL
    assert on_npu.verdict(relu(2, "float64")).level is not Level.SUPPORTED


def test_reading_table_imports_no_heavy_modules() -> None:
    code = (
        "import sys\n"
        "from winml_dag.ep.registry import QNN, Target\n"
        "from winml_dag.ep.support import Case, Operand, table_files\n"
        "from winml_dag.ep.support.table import Support, read_table\n"
        "table = read_table(table_files(Target(QNN, 'npu'))[0])\n"
        "print(table.verdict(Case('Relu', '', 17, (Operand('float32', (1, 2)),), ())).level)\n"
        "print(sorted({'onnx', 'onnxruntime', 'numpy', 'pyarrow', 'pydantic'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["supported", "[]"]


# Measuring an execution provider for a table: what one measurement says, and which forms of a test are measured.


ON_CPU = Target(CPU, "cpu")
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def model(types: str, body: str) -> onnx.ModelProto:
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> g ({types}[2, 3] x, {types}[3] b) => ({types}[2, 3] y) {{ {body} }}'
    )
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize(
    ("types", "body", "outcome"),
    [
        ("float", "y = Add(x, b)", Outcome(compiled=True, ran=True)),
        ("double", "y = Erf(x)", Outcome(compiled=False, ran=False)),
        ("float", "a = Add(x, b) y = Relu(a)", None),
    ],
    ids=["runs", "no kernel", "two operators"],
)
def test_operator_is_measured_by_running_it(types: str, body: str, outcome: Outcome | None) -> None:
    inputs = [X.astype(np.float64 if types == "double" else np.float32), np.ones(3, X.dtype)]
    found = measure(model(types, body).SerializeToString(), inputs, ON_CPU)
    assert (found and found[1]) == outcome


def test_forms_include_constant_and_open_size_variants() -> None:
    found = list(forms(model("float", "y = Add(x, b)"), [X, np.ones(3, np.float32)]))
    assert [len(inputs) for _, inputs in found] == [2, 1, 2]
    cases = [measure(made.SerializeToString(), inputs, ON_CPU) for made, inputs in found]
    assert [case and case[0].inputs for case in cases] == [
        (Operand("float32", (2, 3)), Operand("float32", (3,))),
        (Operand("float32", (2, 3)), Operand("float32", (3,), constant=True)),
        (Operand("float32", (None, 3)), Operand("float32", (3,))),
    ]
    assert numpy_helper.to_array(found[1][0].graph.initializer[0]).tolist() == [1, 1, 1]


def test_results_agree_within_half_precision_tolerance() -> None:
    wanted = np.linspace(-1, 1, 100, dtype=np.float32)
    assert agree([wanted * 1.01], [wanted])
    assert not agree([wanted + 0.5], [wanted])
    assert not agree([wanted[:50]], [wanted])
    assert agree([np.full(3, 7.0)], [np.full(3, np.inf)])  # no number to compare with


# Tables of an installed winml-cli: which parts are used, and that built-in tables take precedence.


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


def test_compiled_and_run_flags_map_to_support_level(rules: WinmlCliRules) -> None:
    assert rules.verdict(softmax(4)).level is Level.SUPPORTED
    assert rules.verdict(softmax(6)).level is Level.PARTIAL
    assert rules.verdict(softmax(4, "float64")).level is Level.UNSUPPORTED
    assert rules.verdict(softmax(6, quantized=Quantized("uint8", ""))).level is Level.SUPPORTED


def test_unmatched_or_conflicting_rows_are_unknown(rules: WinmlCliRules) -> None:
    assert "says nothing" in rules.verdict(softmax(5)).reason
    assert "says different things" in rules.verdict(softmax(3)).reason
    assert rules.verdict(softmax(4, opset=11)).level is Level.UNKNOWN
    assert rules.verdict(Case("Mish", "", 18, (), ())).level is Level.UNKNOWN


def test_own_table_takes_precedence_over_winml_cli_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_missing_rules_folder_or_pyarrow_is_reported(
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
