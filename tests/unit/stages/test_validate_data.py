"""The inputs of validate, its thresholds, and models without a reference."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from quantization_samples import model_of

from winml_dag.cli.stage_lines import broken_lines
from winml_dag.engine.stage import Workspace
from winml_dag.errors import MeasuredError, StageError
from winml_dag.onnxmodel.compare import Agreement, OutputComparison
from winml_dag.stages.figures import OutputFigures
from winml_dag.stages.quality import AS_IT_IS, MINIMUM_COSINE, Bounds, minimum_cosine
from winml_dag.stages.target import RunTarget
from winml_dag.stages.validate import ValidateConfig, ValidateFields, run

SHAPE = [2, 3]
CPU = RunTarget("CPUExecutionProvider", "cpu")


def model(op: str = "Identity", output: str = "y", added: float = 0.0) -> onnx.ModelProto:
    """Return *op* of ``x`` plus a number."""
    nodes = [helper.make_node("Add", ["x", "number"], ["s"]), helper.make_node(op, ["s"], [output])]
    number = {"number": np.array(added, np.float32)}
    return model_of(nodes, {"x": (TensorProto.FLOAT, SHAPE)}, {output: SHAPE}, number)


def validate(
    folder: Path,
    candidate: onnx.ModelProto,
    reference: onnx.ModelProto | None = None,
    input_data: dict[str, np.ndarray] | None = None,
    **fields,
) -> dict:
    """Run validate in *folder* and return its report."""
    inputs = {"model": folder / "model"}
    inputs |= {} if reference is None else {"reference": folder / "reference"}
    inputs |= {} if input_data is None else {"input_data": folder / "input_data"}
    for path in (*inputs.values(), folder / "report"):
        path.mkdir(parents=True)
    onnx.save(candidate, inputs["model"] / "model.onnx")
    if reference is not None:
        onnx.save(reference, inputs["reference"] / "model.onnx")
    if input_data is not None:
        np.savez(inputs["input_data"] / "data.npz", **input_data)
    given = {"min_cosine": None, **fields}
    report = run(ValidateConfig(ValidateFields(**given), CPU), Workspace(inputs, {"report": folder / "report"}))
    assert json.loads((folder / "report" / "validation.json").read_text()) == report
    return report


def rows(*values: float) -> dict[str, np.ndarray]:
    """Return a sample for each of *values*, filled with that value."""
    return {"x": np.array([np.full(SHAPE, value) for value in values], np.float32)}


@pytest.mark.parametrize(("samples", "run_on"), [(None, 4), (2, 2), (9, 4)])
def test_all_inputs_that_the_user_gives_are_run_unless_he_says_how_many(tmp_path, samples, run_on):
    report = validate(tmp_path, model(), model(), rows(1, 2, 3, 4), samples=samples, seed=None)
    assert (report["samples"], report["data"], report["inputs"]) == (run_on, "npz", "validate.input_data")
    assert report["held_out"] is True
    assert report["quality"]["samples"] == run_on


def test_a_model_that_is_wrong_on_an_input_of_the_users_only_fails(tmp_path):
    candidate, reference = model("Sqrt"), model("Abs")
    assert validate(tmp_path / "random", candidate, reference)["inputs"] == "validate.seed"
    with pytest.raises(StageError, match=r"NaN .* on 2 npz samples where the reference has numbers"):
        validate(tmp_path / "given", candidate, reference, rows(1, -1), samples=None)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"z": np.zeros((4, 2, 3), np.float32)}, "x missing and z not an input"),
        ({"x": np.zeros((4, 5, 3), np.float32)}, r"takes the shape \[2, 3\], but sample 0"),
    ],
)
def test_inputs_that_do_not_fit_are_complained_of_under_the_name_of_their_field(tmp_path, data, complaint):
    with pytest.raises(StageError, match=f"^validate.input_data: .*{complaint}"):
        validate(tmp_path, model(), model(), data, samples=None)


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ({"min_cosine": 0.99999}, "cosine 0.9.*, below validate.min_cosine of 0.99999"),
        ({"min_sqnr_db": 40.0}, "signal to noise .* dB, below validate.min_sqnr_db of 40"),
        ({"max_abs_error": 0.05}, "largest error 0.1, above validate.max_abs_error of 0.05"),
    ],
)
def test_a_bound_that_is_not_kept_is_named_with_its_field_and_the_output(tmp_path, bound, words):
    with pytest.raises(StageError, match=f"Output 'y' is too far from the reference on 3 random samples: {words}"):
        validate(tmp_path / "broken", model(added=0.1), model(), **bound)
    loose = {"min_cosine": 0.9, "min_sqnr_db": 5.0, "max_abs_error": 0.2}
    report = validate(tmp_path / "kept", model(added=0.1), model(), **loose)
    assert {name: report[name] for name in loose} == loose


def test_when_a_bound_is_not_kept_the_figures_of_all_outputs_are_told(tmp_path):
    """Of the three outputs, the first is exact, and the others are 0.1 and 0.2 too large."""
    names = ("exact", "near", "far")

    def three(*added: float) -> onnx.ModelProto:
        nodes = [helper.make_node("Add", ["x", f"n_{name}"], [name]) for name in names]
        numbers = {f"n_{name}": np.array(number, np.float32) for name, number in zip(names, added, strict=True)}
        return model_of(nodes, {"x": (TensorProto.FLOAT, SHAPE)}, dict.fromkeys(names, SHAPE), numbers)

    with pytest.raises(MeasuredError, match=r"^Output 'near' .*; 1 more of 3 outputs too\.") as failed:
        validate(tmp_path, three(0.0, 0.1, 0.2), three(0.0, 0.0, 0.0), min_cosine=0.5, max_abs_error=0.05)
    told = failed.value.metrics
    assert {name: figures["max_abs_error"] for name, figures in told["outputs"].items()} == {
        "exact": 0.0,
        "near": 0.1,
        "far": 0.2,
    }
    assert told["broken"] == {"near": ["max_abs_error"], "far": ["max_abs_error"]}
    assert (told["min_cosine"], told["max_abs_error"], told["min_sqnr_db"]) == (0.5, 0.05, None)
    heads, *lines = broken_lines(told)
    assert heads.split() == ["output", "cosine", "lowest", "SQNR", "largest", "error", "top-1"]
    assert [(line.split()[0], line.endswith("not kept: max_abs_error")) for line in lines] == [
        ("exact", False),
        ("near", True),
        ("far", True),
    ]
    assert not list(broken_lines({}))


def test_a_bound_for_decisions_needs_an_output_with_decisions(tmp_path):
    """Negating all scores changes every best class."""
    given = {"min_top1_agreement": 0.5, "samples": None}
    data = {"x": np.arange(24, dtype=np.float32).reshape(4, 2, 3)}
    with pytest.raises(StageError, match="no output of the model has scores of classes"):
        validate(tmp_path / "none", model(), model(), data, **given)
    with pytest.raises(StageError, match=r"the same best class in 0 of 8 decisions, below validate.min_top1_agreement"):
        validate(tmp_path / "other", model("Neg", "logits"), model(output="logits"), data, **given)
    assert validate(tmp_path / "same", model(output="logits"), model(output="logits"), data, **given)


def test_a_model_of_fixed_sizes_is_held_against_one_that_leaves_them_open(tmp_path):
    reference = model()
    for value in (*reference.graph.input, *reference.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "n"
    assert validate(tmp_path, model(), reference)["outputs"]["y"]["cosine"] == 1.0


def test_only_what_is_below_breaks_a_bound():
    exact = OutputComparison("y", (4,), 0.9, 20.0, 0.5, 0, 0)
    figures = OutputFigures(exact, exact, 0.9, Agreement(9, 10))
    kept = Bounds(min_cosine=0.9, min_sqnr_db=20.0, max_abs_error=0.5, min_top1_agreement=0.9)
    assert not list(kept.broken_by(figures))
    assert not list(Bounds().broken_by(figures))
    tighter = dataclasses.replace(kept, min_cosine=0.91, min_sqnr_db=20.1, max_abs_error=0.49, min_top1_agreement=0.91)
    assert len(list(tighter.broken_by(figures))) == 4


def test_bounds_that_nobody_gives_are_those_of_the_precision():
    assert Bounds().completed("w8a16") == Bounds(min_cosine=MINIMUM_COSINE["w8a16"], min_sqnr_db=0.5)
    assert Bounds(min_sqnr_db=20.0).completed("w8a16").min_sqnr_db == 20.0
    # Explicit thresholds take precedence.
    assert Bounds(min_cosine=-1.0).completed("w8a16") == Bounds(min_cosine=-1.0)


def test_a_result_that_is_twice_as_large_is_no_result(tmp_path):
    """Its cosine is 1."""
    twice = model_of([helper.make_node("Add", ["x", "x"], ["y"])], {"x": (TensorProto.FLOAT, SHAPE)}, {"y": SHAPE}, {})
    with pytest.raises(StageError, match=r"signal to noise .* dB, below validate.min_sqnr_db of 0.5 \(cosine 1,"):
        validate(tmp_path, twice, model(), **dataclasses.asdict(Bounds().completed(AS_IT_IS)))


def test_every_precision_has_a_bound_and_what_came_quantized_the_loosest():
    assert minimum_cosine("w8a8") == MINIMUM_COSINE["w8a8"]
    assert minimum_cosine(AS_IT_IS) == min(MINIMUM_COSINE.values())


def test_a_model_without_a_reference_has_to_load_run_and_give_numbers(tmp_path):
    report = validate(tmp_path / "sound", model("Abs"))
    assert report["reference"] is False
    assert (report["samples"], report["all_ones_finite"]) == (3, True)
    assert "quality" not in report
    with pytest.raises(StageError, match=r"Output 'y' has 6 NaN and 0 infinite values on 3 random samples, and there"):
        validate(tmp_path / "broken", model("Sqrt", added=-2.0))
    with pytest.raises(StageError, match=r"6 infinite values on inputs of ones, and there is no reference"):
        validate(tmp_path / "on ones", model("Reciprocal", added=-1.0))


@pytest.mark.parametrize("candidate", ["Sqrt", "Abs"])
def test_nan_of_the_float_model_is_a_failure_whatever_was_made_of_it(tmp_path, candidate):
    of_float = r"Output 'y' of the float model has 12 NaN and 0 infinite values on 3 npz samples\."
    with pytest.raises(StageError, match=of_float) as failed:
        validate(tmp_path / "a", model(candidate), model("Sqrt"), rows(1, -1, -2), samples=None)
    assert "validate.input_data" in failed.value.advice
    assert "--no-validate" in failed.value.advice
    assert validate(tmp_path / "b", model("Sqrt"), model("Sqrt"), rows(1, 2), samples=None)["warnings"] == []


def test_infinities_fail_unless_the_result_has_numbers_in_their_place(tmp_path):
    """A mask, with infinities and with integer limits."""

    def masked(low: float) -> onnx.ModelProto:
        nodes = [helper.make_node("Where", ["keep", "x", "low"], ["y"])]
        constants = {"keep": np.array([True, True, False]), "low": np.array(low, np.float32)}
        return model_of(nodes, {"x": (TensorProto.FLOAT, SHAPE)}, {"y": SHAPE}, constants)

    with pytest.raises(StageError, match="Output 'y' of the float model has 0 NaN and 6 infinite values on 3 random"):
        validate(tmp_path / "floats", masked(-np.inf), masked(-np.inf))
    with pytest.raises(StageError, match="Output 'y' has 0 NaN and 6 infinite values on 3 random samples where"):
        validate(tmp_path / "overflow", masked(-np.inf), masked(-3.4e38))
    report = validate(tmp_path / "integers", masked(-2.0), masked(-np.inf))
    assert "'y' of the float model has 0 NaN and 6 infinite values on 3 random samples" in report["warnings"][0]
    assert report["quality"]["cosine"] == 1.0


def test_a_float_model_without_any_number_proves_nothing(tmp_path):
    with pytest.raises(StageError, match="Output 'y' of the float model has 0 NaN and 18 infinite values"):
        validate(tmp_path, model(), model("Reciprocal", added=-1.0), rows(1, 1, 1), samples=None)


def test_an_output_of_another_kind_of_values_is_told_of(tmp_path):
    truth = model_of(
        [helper.make_node("Greater", ["x", "x"], ["y"])], {"x": (TensorProto.FLOAT, SHAPE)}, {"y": SHAPE}, {}
    )
    truth.graph.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    with pytest.raises(StageError, match="values of type bool, but its reference's are float32"):
        validate(tmp_path, truth, model())


def test_an_output_that_is_no_tensor_is_told_of(tmp_path):
    several = model_of(
        [helper.make_node("SplitToSequence", ["x"], ["y"], axis=0)], {"x": (TensorProto.FLOAT, SHAPE)}, {"y": SHAPE}, {}
    )
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    several.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(tensor))
    with pytest.raises(StageError, match="'y' is a list, and only tensors of numbers can be compared"):
        validate(tmp_path, several, several)
