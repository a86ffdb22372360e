"""Support tables: their verdict on measured forms, on others, and on incomplete cases."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.ep.registry import QNN, Target
from winml_dag.ep.support import Case, Level, Operand, Outcome, Quantized, table_files, table_name
from winml_dag.ep.support.table import About, Support, SupportTable, form_of, read_table, rows_of, table_bytes
from winml_dag.errors import InputError, UsageError

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
def test_a_table_says_of_measured_forms_what_was_measured(
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


def test_what_never_made_a_difference_is_not_asked_for(tmp_path: Path) -> None:
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
def test_failures_differences_and_wrong_results_are_told(
    outcomes: list[Outcome], level: Level, reason: str, tmp_path: Path
) -> None:
    rows = [*((relu(3), outcome) for outcome in outcomes), *[(relu(2), TAKEN)] * 7]
    found = table(rows, tmp_path / "table").verdict(relu(3))
    assert (found.level, reason in found.reason) == (level, True)


def test_forms_that_were_not_measured_are_unknown_with_the_reason(tmp_path: Path) -> None:
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
def test_the_same_use_has_the_same_form(one: Case, other: Case) -> None:
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
def test_the_rank_of_a_form_is_that_of_the_result_if_it_is_larger(case: Case, rank: int | None) -> None:
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
def test_a_damaged_table_or_one_of_another_format_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "qnn_npu.support"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"qnn_npu\.support"):
        read_table(path)


def test_the_first_table_that_knows_a_case_counts(tmp_path: Path) -> None:
    mine = table([(relu(2), LEFT)], tmp_path / "mine")
    theirs = table([(relu(2), TAKEN), (relu(2, "float16"), TAKEN)], tmp_path / "theirs")
    both = Support([mine, theirs])
    assert both.verdict(relu(2)).level is Level.PARTIAL
    assert both.verdict(relu(2, "float16")).level is Level.SUPPORTED
    assert Support([]).verdict(relu(2)).level is Level.UNKNOWN


def test_a_users_own_table_comes_first_and_alone_beside_the_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINML_DAG_SUPPORT_DIR", str(tmp_path))
    own = tmp_path / table_name(NPU)
    table([(relu(2), LEFT)], own)
    first, second = table_files(NPU)
    assert (first, second.name) == (own, own.name)
    assert table_files(NPU, asks=True) == (own,)
    monkeypatch.setenv("WINML_DAG_SUPPORT_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="nowhere"):
        table_files(NPU)


def test_the_shipped_table_knows_what_every_user_of_the_provider_knows() -> None:
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


def test_asking_a_table_imports_nothing_heavy() -> None:
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
