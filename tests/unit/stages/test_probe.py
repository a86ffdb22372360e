"""Trying cases: the case of a node, its test model, and that tables match the behaviour of providers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from winml_dag.ep.registry import CPU, Target
from winml_dag.ep.support import table_files
from winml_dag.ep.support.case import Case, Level, Operand, Outcome, Quantized
from winml_dag.ep.support.table import read_table
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.pipeline.assess.analysis import probe
from winml_dag.stages.probe.attempt import agree, attempt, confirmed
from winml_dag.stages.probe.cases import as_quantized, case_of
from winml_dag.stages.probe.measure import Measurements, measure, read_rows
from winml_dag.stages.probe.onenode import UnmakeableError, case_of_model, one_node
from winml_dag.stages.probe.samples.draft import OTHER_SIZES
from winml_dag.stages.probe.samples.every import cell_sample, cells, drawn, exports_sample
from winml_dag.store.store import Store

ON_CPU = Target(CPU, "cpu")
DATA = Operand("float32", (1, 3, 8, 8))
WEIGHTS = Operand("float32", (4, 3, 3, 3), constant=True)
RESULT = Operand("float32")
SEED = 4  # its first two samples are no variations of ONNX's tests, which take seconds to read
CONV = Case("Conv", "", 17, (DATA, WEIGHTS), (RESULT,), (("kernel_shape", (3, 3)),))

sizes = st.lists(st.sampled_from([1, 2, 3, None]), max_size=4).map(tuple)
numbers = st.sampled_from(["float32", "float16", "int64", "uint8", "bool"])
made = st.builds(
    lambda dims, dtype, constant, quantized, axis: Case(
        "Concat",
        "",
        21,
        (Operand(dtype, dims), Operand(dtype, (2, 9), constant=constant)),
        (Operand("" if dtype == "float32" and quantized else dtype),),
        (("axis", axis),),
        quantized if dtype == "float32" else None,
    ),
    sizes,
    numbers,
    st.booleans(),
    st.none() | st.sampled_from([Quantized("uint8", ""), Quantized("uint16", ""), Quantized("int8", "")]),
    st.integers(-2, 3),
)


@settings(deadline=None, max_examples=40)
@given(case=made)
def test_the_model_that_a_case_is_tried_with_is_that_case(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = case_of_model(one_node(case).model().SerializeToString(), tmp_path_factory.mktemp("model"))
    assert replace(found, outputs=()) == replace(case, outputs=())


def test_weights_between_conversions_are_known_by_their_integers(tmp_path: Path) -> None:
    case = replace(CONV, quantized=Quantized("uint16", "int8", True), outputs=(Operand(),))
    assert case_of_model(one_node(case).model().SerializeToString(), tmp_path) == case


def test_small_constants_count_with_their_values_and_large_ones_without(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.array([2, -1], np.int64), "shape")
    table = numpy_helper.from_array(np.zeros((2, 600), np.float32), "table")
    nodes = [helper.make_node("Reshape", ["table", "shape"], ["y"]), helper.make_node("Neg", ["y"], ["z"])]
    graph = helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
                              [table, shape])  # fmt: skip
    path = tmp_path / "model.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString()
    )
    model = read_model(path, values=True)
    reshape, neg = (case_of(node, Dataflow(model)) for node in model.graph.nodes)
    assert reshape.inputs == (Operand("float32", (2, 600), True), Operand("int64", (2,), True, (2, -1)))
    assert neg.inputs == (Operand(),)  # the file does not describe intermediate values
    assert neg.opset == 18


def test_only_floats_become_integers_and_only_weights_have_channels() -> None:
    assert as_quantized(CONV, "uint8", "int8", per_channel=True).quantized == Quantized("uint8", "int8", True)
    add = Case("Add", "", 17, (DATA, Operand("float32", (), True)), (RESULT,))
    assert as_quantized(add, "uint8", "int8", per_channel=True).quantized == Quantized("uint8", "")
    gather = Case("Gather", "", 17, (Operand("int64", (3,)), Operand("int64", ())), (Operand("int64"),))
    assert as_quantized(gather, "uint8", "int8") is gather


def test_an_attempt_tells_what_is_taken_and_in_the_providers_words_what_is_not() -> None:
    node = one_node(CONV)
    good = attempt(node.model().SerializeToString(), node.feeds(), ON_CPU, {})
    assert (good.level, good.words) == (Level.SUPPORTED, "")
    unknown = one_node(replace(CONV, op_type="Convolve"))
    refused = attempt(unknown.model().SerializeToString(), unknown.feeds(), ON_CPU, {})
    assert refused.level is Level.UNSUPPORTED
    assert "Convolve" in refused.words
    wrong = attempt(node.model().SerializeToString(), node.feeds(), ON_CPU, {}, [np.ones((1, 4, 6, 6), np.float32)])
    assert (wrong.compiled, wrong.ran, wrong.level) == (True, True, Level.PARTIAL)


def test_results_agree_within_what_small_numbers_of_an_npu_allow() -> None:
    wanted = np.linspace(-1, 1, 100, dtype=np.float32)
    assert agree([wanted * 1.01], [wanted])
    assert not agree([wanted + 0.5], [wanted])
    assert not agree([wanted[:50]], [wanted])
    assert agree([np.full(3, 7.0)], [np.full(3, np.inf)])  # no number to compare with


@pytest.mark.parametrize(
    "case",
    [
        replace(CONV, inputs=(Operand(), WEIGHTS)),
        replace(CONV, inputs=(Operand("float32", None), WEIGHTS)),
        Case("If", "", 17, (Operand("bool", ()),), (RESULT,), (("then_branch", "graph"),)),
    ],
)
def test_what_is_not_known_of_a_case_is_not_made_up(case: Case) -> None:
    with pytest.raises(UnmakeableError):
        one_node(case)


def test_a_wrong_result_counts_only_where_other_numbers_are_wrong_too() -> None:
    wrong = Outcome(True, True, False)
    assert confirmed(CONV, wrong, ON_CPU, {}) == Outcome(True, True)
    nobody_has_it = replace(CONV, op_type="Convolve")
    assert confirmed(nobody_has_it, wrong, ON_CPU, {}) == wrong
    not_known_whole = replace(CONV, inputs=(Operand("float32", None), WEIGHTS))
    assert confirmed(not_known_whole, wrong, ON_CPU, {}) == wrong


@pytest.mark.parametrize("op_type", ["Sigmoid", "Softmax", "Tanh"])
def test_what_is_always_within_bounds_is_quantized_to_the_bounds(op_type: str) -> None:
    case = Case(op_type, "", 21, (Operand("float32", (2, 3)),), (RESULT,), (), Quantized("uint16", ""))
    model = one_node(case).with_ranges([np.full((2, 3), 0.25, np.float32)]).model()
    scales = {tensor.name: float(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    assert scales["y0_out_scale"] == pytest.approx((2 if op_type == "Tanh" else 1) / 65535)


def test_every_operator_is_drawn_with_every_type_that_it_may_have() -> None:
    known = cells()
    for wanted in [("Abs", "uint64"), ("Where", "bool"), ("Conv", "float64"), ("Relu", "between int16")]:
        number = known.index(wanted)
        assert cell_sample(number, 1) is not None
        name, kind = wanted
        found = [cell_sample(number + turn * len(known), 1) for turn in range(3)]
        for sample in found:
            assert sample is not None
            assert sample.node.op_type == name
            if kind.startswith("between "):
                assert sample.node.quantized is not None
                assert sample.node.quantized.activations == kind.removeprefix("between ")
            else:
                assert kind in {str(array.dtype) for array in sample.node.inputs if array is not None}


def test_what_is_drawn_like_exports_is_mostly_what_they_are_made_of() -> None:
    found = [sample for seed in range(60) if (sample := exports_sample(seed)) is not None]
    assert len(found) > 30
    assert sum(sample.node.op_type in ("Add", "MatMul", "Reshape", "Transpose") for sample in found) > len(found) / 4
    assert any(sample.node.quantized is not None for sample in found)


def test_what_was_measured_is_not_measured_again_and_half_a_row_is(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    wanted = Measurements(ON_CPU, seed=SEED, first=0, last=1, held_back=True)
    measure(wanted, rows)
    whole = rows.read_text(encoding="utf-8")
    assert [outcome.level for _, outcome in read_rows(rows)] == [Level.SUPPORTED] * 2
    lines = whole.splitlines(keepends=True)
    rows.write_text("".join(lines[:-1]) + lines[-1][:9], encoding="utf-8")
    measure(wanted, rows)
    assert rows.read_text(encoding="utf-8") == "".join([*lines[:3], *lines[2:]])
    measure(wanted, rows)
    assert rows.read_text(encoding="utf-8") == "".join([*lines[:3], *lines[2:]])


def test_a_case_is_tried_once_and_remembered(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    unmakeable = replace(CONV, inputs=(Operand(), WEIGHTS))
    first = probe([CONV, unmakeable], ON_CPU, store)
    assert first.verdicts[CONV].level is Level.SUPPORTED
    assert "the type or the rank of its input 0 is not known" in first.verdicts[unmakeable].reason
    again = probe([CONV], ON_CPU, store)
    assert (first.ran, again.ran, again.verdicts[CONV]) == (1, 0, first.verdicts[CONV])


def test_the_shipped_table_says_of_cases_that_were_held_back_what_the_cpu_does(tmp_path: Path) -> None:
    """As in ``tests/benchmarks/support_precision.py``, which uses more cases, and QNN."""
    table = read_table(table_files(ON_CPU)[0])
    equal = total = 0
    for seed in range(900_000, 900_110):
        found = drawn(seed, OTHER_SIZES, varies_tests=False)
        if found is None:
            continue
        model = found.node.model().SerializeToString()
        outcome = attempt(model, found.node.feeds(), ON_CPU, {})
        total += 1
        equal += table.verdict(case_of_model(model, tmp_path)).level is outcome.level
    assert total > 80
    assert equal / total >= 0.95
