"""Support tables: their verdict on measured cases, on others, and on incomplete cases."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.canonical import canonical_json
from winml_dag.ep.registry import CPU, QNN, Target
from winml_dag.ep.support import table_files, table_name
from winml_dag.ep.support.case import Case, Level, Operand, Outcome, Quantized, case_json, case_of_json
from winml_dag.ep.support.features import features
from winml_dag.ep.support.table import (
    ANY_OPERATOR,
    About,
    Support,
    SupportTable,
    evidence_by_types,
    evidence_of,
    read_table,
    table_bytes,
)
from winml_dag.errors import InputError, UsageError

ABOUT = About("QNNExecutionProvider", "npu", "2.7.0", "2.51.0", "1.31.1", "1.23.2", {"soc_model": "60"}, True, 23)
TAKEN, LEFT, FAILS = Outcome(True, True), Outcome(False, True), Outcome(False, False)
IMAGE, NOTHING = Operand("float32", (1, 3, 8, 8)), None
SHIPPED = [Target(CPU, "cpu"), Target(QNN, "npu")]

dtypes = st.sampled_from(["float32", "float16", "int64"])
operands = st.builds(
    Operand, dtypes, st.lists(st.sampled_from([1, 2, 8, None]), max_size=4).map(tuple), constant=st.booleans()
)
cases = st.builds(
    Case,
    st.just("Conv"),
    st.just(""),
    st.integers(11, 21),
    st.lists(operands | st.none(), min_size=1, max_size=3).map(tuple),
    st.lists(operands, min_size=1, max_size=2).map(tuple),
    st.sampled_from([(), (("group", 1),), (("auto_pad", "VALID"), ("pads", (0, 1)))]),
    st.none() | st.sampled_from([Quantized("uint8", "uint8"), Quantized("uint16", "int8", True)]),
)


def relu(rank: int, dtype: str = "float32", **other: object) -> Case:
    return replace(Case("Relu", "", 17, (Operand(dtype, (2,) * rank),), (Operand(dtype),)), **other)


def table(rows: list[tuple[Case, Outcome]], path: Path) -> SupportTable:
    path.write_bytes(table_bytes(ABOUT, {("", rows[0][0].op_type): evidence_of(rows, {"axis": -1})}))
    return read_table(path)


@given(cases)
def test_a_case_is_one_text_and_back(case: Case) -> None:
    assert case_of_json(json.loads(canonical_json(case_json(case)))) == case


@settings(max_examples=25, deadline=None)
@given(
    rows=st.dictionaries(
        st.tuples(st.integers(11, 21), dtypes, st.integers(0, 5)), st.just(TAKEN), min_size=1, max_size=15
    ),
    seed=st.integers(0, 9),
)
def test_a_table_says_of_measured_cases_what_was_measured(
    rows: dict[tuple[int, str, int], Outcome], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # The behaviour of this provider depends only on a few features of the case.
    def does(opset: int, dtype: str, rank: int) -> Outcome:
        return FAILS if opset > 17 and rank > 3 else LEFT if dtype == "int64" or rank == 0 else TAKEN

    measured = [(relu(rank, dtype, opset=opset), does(opset, dtype, rank)) for opset, dtype, rank in rows]
    folder = tmp_path_factory.mktemp("tables")
    one = table(measured, folder / "one")
    other = table(random.Random(seed).sample(measured, len(measured)), folder / "other")
    assert (folder / "one").read_bytes() == (folder / "other").read_bytes()
    for case, outcome in measured:
        found = one.verdict(case).level
        assert found == other.verdict(case).level
        # Few measurements suffice for supported, but not for unsupported.
        assert found == outcome.level or (found is Level.UNKNOWN and outcome == FAILS)


def test_what_never_made_a_difference_is_not_asked_for(tmp_path: Path) -> None:
    rows = [(relu(rank), TAKEN if rank < 5 else LEFT) for rank in (1, 2, 3, 4, 5, 6)]
    found = table(rows, tmp_path / "table")
    larger = found.verdict(relu(3, inputs=(Operand("float32", (7, 1, 30)),)))
    assert larger.level is Level.SUPPORTED
    assert "rank of input 0 <= 4: all 4 taken and run (QNN npu 2.7.0 (SDK 2.51.0)" in larger.reason
    assert found.verdict(relu(6)).level is Level.PARTIAL


@pytest.mark.parametrize(("measured", "level"), [(1, Level.UNKNOWN), (2, Level.UNKNOWN), (3, Level.UNSUPPORTED)])
def test_few_failures_of_a_form_leave_it_unknown(measured: int, level: Level, tmp_path: Path) -> None:
    failed = [relu(3, opset=13 + number) for number in range(measured)]
    rows = [*((case, FAILS) for case in failed), *((relu(2, opset=opset), TAKEN) for opset in range(13, 20))]
    found = table(rows, tmp_path / "table").verdict(relu(3))
    assert found.level is level
    assert f"all {measured} refused: no session can be made" in found.reason
    assert (", which is too few to tell" in found.reason) == (level is Level.UNKNOWN)


def test_other_operators_of_the_same_types_cannot_speak_for_one_that_failed(tmp_path: Path) -> None:
    """They can count against it."""
    for outcome, level in ((TAKEN, Level.UNKNOWN), (FAILS, Level.UNSUPPORTED)):
        others = [(replace(relu(rank, "float16"), op_type=f"Other{opset}", opset=opset), outcome)
                  for rank in range(1, 6) for opset in range(7, 13)]  # fmt: skip
        path = tmp_path / f"{level}"
        evidence = {("", "Relu"): evidence_of([(relu(3, "float16"), FAILS)], {})}
        path.write_bytes(table_bytes(ABOUT, {**evidence, ANY_OPERATOR: evidence_by_types(others)}))
        assert read_table(path).verdict(relu(3, "float16")).level is level


def test_types_and_words_that_were_not_measured_are_unknown_with_the_reason(tmp_path: Path) -> None:
    found = table([(relu(2), TAKEN), (relu(2, "float16"), TAKEN)], tmp_path / "table")
    assert "no Relu was measured whose type of input 0 is int8" in found.verdict(relu(2, "int8")).reason
    assert "whose activations is uint8" in found.verdict(relu(2, quantized=Quantized("uint8", ""))).reason
    other = found.verdict(relu(2, op_type="Mish"))
    assert (other.level, other.compiled) == (Level.UNKNOWN, None)
    assert "Mish was not measured on QNN npu" in other.reason


def operator(op_type: str, *inputs: Operand | None, opset: int = 17, **attributes: int | tuple[int, ...]) -> Case:
    return Case(op_type, "", opset, inputs, (Operand(),), tuple(sorted(attributes.items())))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            operator("Resize", IMAGE, NOTHING, Operand("float32", (4,), True, (1, 1, 2, 2))),
            operator("Resize", IMAGE, NOTHING, NOTHING, Operand("int64", (4,), True, (1, 3, 16, 16))),
            id="scales or sizes",
        ),
        pytest.param(operator("Transpose", IMAGE), operator("Transpose", IMAGE, perm=(3, 2, 1, 0)), id="all reversed"),
        pytest.param(operator("Softmax", IMAGE), operator("Softmax", IMAGE, axis=-1), id="the last axis"),
        pytest.param(
            operator("Softmax", IMAGE, opset=11), operator("Softmax", IMAGE, opset=11, axis=1), id="the second"
        ),
    ],
)
def test_what_is_the_same_is_asked_for_by_the_same_features(one: Case, other: Case) -> None:
    asked = {"scale", "scale is whole", "perm[0]", "perm[3]", "axis from the end", "length of axis"}
    found = [{name: value for name, value in features(each, {}).items() if name in asked} for each in (one, other)]
    assert found[0] == found[1]
    assert found[0]


def test_a_bias_for_each_column_is_told_from_one_that_is_spread() -> None:
    def gemm(bias: tuple[int, ...], **attributes: int) -> object:
        inputs = (Operand("float32", (2, 8)), Operand("float32", (8, 4), True), Operand("float32", bias, True))
        return features(operator("Gemm", *inputs, **attributes), {})["bias is spread"]

    assert [gemm((4,)), gemm((1,)), gemm(()), gemm((1, 4)), gemm((8,), transB=1)] == [0, 1, 1, 0, 0]


def test_an_opset_that_onnxruntime_does_not_load_is_unsupported(tmp_path: Path) -> None:
    found = table([(relu(2), TAKEN)], tmp_path / "table")
    assert found.verdict(relu(2, opset=23)).level is Level.SUPPORTED
    assert found.verdict(relu(2, opset=24)).level is Level.UNSUPPORTED


def test_a_default_that_is_written_out_is_the_one_that_is_left_out(tmp_path: Path) -> None:
    def softmax(attributes: tuple[tuple[str, int], ...]) -> Case:
        return replace(relu(3), op_type="Softmax", attributes=attributes)

    found = table([(softmax((("axis", -1),)), TAKEN), (softmax((("axis", 0),)), LEFT)], tmp_path / "table")
    assert found.verdict(softmax(())).level is Level.SUPPORTED


def test_what_the_model_does_not_tell_matters_only_where_outcomes_differ_by_it(tmp_path: Path) -> None:
    unknown = relu(0, inputs=(Operand("float32", None),))
    by_rank = [(relu(rank), TAKEN if rank < 3 else LEFT) for rank in (1, 2, 3, 4)]
    verdict = table(by_rank, tmp_path / "by_rank").verdict(unknown)
    assert verdict.level is Level.UNKNOWN
    assert "rank of input 0" in verdict.reason
    by_type = [(relu(2), TAKEN), (relu(3), TAKEN), (relu(2, "int8"), LEFT)]
    assert table(by_type, tmp_path / "by_type").verdict(unknown).level is Level.SUPPORTED


def test_a_wrong_result_is_partial_and_says_so(tmp_path: Path) -> None:
    found = table([(relu(2), Outcome(True, True, agrees=False))], tmp_path / "table").verdict(relu(2))
    assert found.level is Level.PARTIAL
    assert "gave other numbers" in found.reason


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"{}"),
        gzip.compress(b'{"format":99}\n'),
        gzip.compress(b'{"format":1}\n')[:-9],
        gzip.compress(b'{"format":1}\n')[:10] + b"\xff" * 20,
    ],
    ids=["empty", "no gzip", "no format", "another format", "cut short", "overwritten"],
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


def test_a_users_own_table_comes_before_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(QNN, "npu")
    monkeypatch.setenv("WINML_DAG_SUPPORT_DIR", str(tmp_path))
    own = tmp_path / table_name(target)
    table([(relu(2), LEFT)], own)
    first, second, *_ = table_files(target)
    assert (first, second.name) == (own, own.name)
    monkeypatch.setenv("WINML_DAG_SUPPORT_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="nowhere"):
        table_files(target)


@pytest.mark.parametrize("target", SHIPPED, ids=lambda target: target.ep.alias)
def test_shipped_tables_are_small_and_say_what_they_were_measured_with(target: Target) -> None:
    path = table_files(target)[0]
    assert path.stat().st_size < 2**20
    about = read_table(path).about
    assert (about.ep, about.device) == (target.ep.name, target.device)
    assert about.onnxruntime
    assert about.cases > 1000
    assert (about.sdk_version != "", "soc_model" in about.options) == (target.ep == QNN, target.ep == QNN)


def test_shipped_tables_know_what_every_user_of_the_provider_knows() -> None:
    on_npu, on_cpu = (Support([read_table(path) for path in table_files(target)]) for target in reversed(SHIPPED))
    weights = Operand("float32", (4, 3, 3, 3), constant=True)
    conv = Case("Conv", "", 17, (Operand("float32", (1, 3, 14, 14)), weights), (Operand("float32"),))
    for case in (relu(4), conv, replace(conv, quantized=Quantized("uint8", "uint8"))):
        assert (on_npu.verdict(case).level, on_cpu.verdict(case).level) == (Level.SUPPORTED, Level.SUPPORTED), case
    # No open sizes, and no double precision.
    opened = replace(conv, inputs=(Operand("float32", (None, 3, 14, 14)), weights))
    assert on_npu.verdict(opened).level is Level.PARTIAL
    assert on_cpu.verdict(opened).level is Level.SUPPORTED
    assert on_npu.verdict(relu(2, "float64")).level is not Level.SUPPORTED


def test_an_operator_whose_newest_version_the_cpu_lacks_is_there_in_older_opsets() -> None:
    (on_cpu,) = [Support([read_table(path) for path in table_files(target)]) for target in SHIPPED if target.ep != QNN]
    operands = (Operand("float32", (1, 3, 8, 8)), Operand("float32", (2, 4)), Operand("int64", (2,), constant=True))
    for opset, level in ((10, Level.SUPPORTED), (17, Level.SUPPORTED), (22, Level.UNSUPPORTED)):
        assert on_cpu.verdict(Case("RoiAlign", "", opset, operands, (Operand("float32"),))).level is level, opset


def test_asking_a_table_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from winml_dag.ep.registry import QNN, Target\n"
        "from winml_dag.ep.support.case import Case, Operand\n"
        "from winml_dag.ep.support import table_files\n"
        "from winml_dag.ep.support.table import Support, read_table\n"
        "table = read_table(table_files(Target(QNN, 'npu'))[0])\n"
        "print(table.verdict(Case('Relu', '', 17, (Operand('float32', (1, 2)),), ())).level)\n"
        "print(sorted({'onnx', 'onnxruntime', 'numpy', 'pyarrow', 'pydantic'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["supported", "[]"]
