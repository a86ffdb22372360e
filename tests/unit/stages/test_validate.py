"""What validate runs, how it compares, its thresholds, and models without a reference."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from ep_stage_runs import compile_config, make_models, requires_qnn, run_stage
from optimize_samples import graph
from quantization_samples import stored, weights
from validation_samples import NPU, validate

from winml_dag.cli.stage_lines import broken_lines
from winml_dag.errors import MeasuredError, StageError
from winml_dag.onnxmodel.compare import Agreement, OutputComparison
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.stages.compile import COMPILE
from winml_dag.stages.figures import OutputFigures
from winml_dag.stages.quality import AS_IT_IS, MINIMUM_COSINE, Bounds, minimum_cosine
from winml_dag.stages.samples.samples import random_samples


def model(op: str = "Identity", output: str = "y", added: float = 0.0) -> onnx.ModelProto:
    """Return *op* of ``x`` plus a number."""
    return graph(
        f"""g (float[2, 3] x) => (float[2, 3] {output}) <float number = {{{added}}}>
        {{ s = Add (x, number) {output} = {op} (s) }}"""
    )


def given(folder, *values: float, slot: str = "input_data") -> dict:
    """Return the input *slot* with a sample for each of *values*, filled with that value."""
    return {"slots": {slot: stored(folder, x=np.array([np.full((2, 3), value) for value in values], np.float32))}}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("models"))


def test_model_agrees_with_itself_and_progress_counts_samples(tmp_path):
    told: list[tuple[int, int | None, str]] = []
    report = validate(tmp_path, model(), model(), min_cosine=1.0, progress=lambda *words: told.append(words))
    assert told == [(done, 3, "samples") for done in range(4)]
    assert (report["execution_provider"], report["warnings"]) == ("CPUExecutionProvider", [])
    same = {"cosine": 1.0, "cosine_min": 1.0, "sqnr_db": None, "scale": 1.0, "max_abs_error": 0.0}
    assert report["outputs"] == {"y": same}
    on = {"samples": 3, "data": "random", "held_out": True}
    assert report["quality"] == {"output": "y", **same, "top1_agreed": None, "top1_of": None, **on}


def test_classifier_scores_are_compared_by_top_class(tmp_path):
    matrices = weights(8, 5), weights(8, 5) + weights(8, 5, seed=1)
    exact, noisy = (
        graph("g (float[1, 8] x) => (float[1, 5] scores) { scores = MatMul (x, w) }", w=w) for w in matrices
    )
    report = validate(tmp_path, noisy, exact, classifies=True, samples=8)
    feeds = list(random_samples(model_inputs(tmp_path / "model/model.onnx"), 8, 0, "uniform", purpose="validate"))
    agreed = sum(np.argmax(feed["x"] @ matrices[0]) == np.argmax(feed["x"] @ matrices[1]) for feed in feeds)
    assert 0 < agreed < 8
    for figures in (report["outputs"]["scores"], report["quality"]):
        assert (figures["top1_agreed"], figures["top1_of"]) == (agreed, 8)


def test_text_padding_counts_only_if_not_finite(tmp_path):
    def embedding(noise_at_padding: float) -> onnx.ModelProto:
        return graph(
            """g (int64[1, 8] input_ids, int64[1, 8] attention_mask) => (float[1, 8, 4] hidden)
            <int64 zero = {0}, float none = {0}, int64[1] last = {2}> {
            rows = Gather (table, input_ids) is_padding = Equal (attention_mask, zero)
            padding = Unsqueeze (is_padding, last) added = Where (padding, noise, none) hidden = Add (rows, added) }""",
            table=weights(10, 4),
            noise=np.array(noise_at_padding, np.float32),
        )

    mask = (np.arange(8) < 5).astype(np.int64)[None, None].repeat(4, axis=0)
    slots = {"data": stored(tmp_path / "data", input_ids=np.arange(32).reshape(4, 1, 8) % 10, attention_mask=mask)}
    report = validate(tmp_path / "a", embedding(100.0), embedding(0.0), slots=slots)
    assert report["outputs"]["hidden"]["cosine"] == 1.0
    with pytest.raises(StageError, match="'hidden' has"):
        validate(tmp_path / "b", embedding(np.inf), embedding(0.0), slots=slots)


def test_one_bad_sample_lowers_the_minimum_cosine(tmp_path):
    """Abs differs from Identity for negative values: here, in the last sample that runs."""
    data = given(tmp_path / "data", 1, 1, 1, -3, slot="data")
    quality = validate(tmp_path, model("Abs"), model(), min_cosine=-1.0, **data)["quality"]
    assert (quality["data"], quality["samples"], quality["held_out"], quality["output"]) == ("npz", 2, True, "y")
    assert quality["cosine_min"] < -0.9 < quality["cosine"]


def test_report_is_reproducible_and_seed_changes_samples(tmp_path):
    first, again, other = (
        validate(tmp_path / str(run), model(added=0.1), model(), seed=seed) for run, seed in enumerate((0, 0, 1))
    )
    assert first == again
    assert first["outputs"] != other["outputs"]


@pytest.mark.parametrize(("count", "samples"), [(20, 3), (4, 2), (2, 1), (1, 1)])
def test_last_samples_are_validated_on(tmp_path, count, samples):
    values = [-1.0] * (count - samples) + [1.0] * samples
    report = validate(tmp_path / "a", model("Sqrt"), model("Abs"), **given(tmp_path / "data", *values, slot="data"))
    assert (report["samples"], report["held_out"]) == (samples, True)
    values[-samples] = -1.0
    with pytest.raises(StageError, match="NaN"):
        validate(tmp_path / "b", model("Sqrt"), model("Abs"), **given(tmp_path / "data", *values, slot="data"))


class TestOnQnn:
    pytestmark = requires_qnn

    @pytest.mark.parametrize("precision", ["w8a8", "float32"])
    def test_compiled_model_runs_on_its_provider_within_bound(self, models, tmp_path, precision):
        files = {"model": {"m.onnx": getattr(models, precision)}}
        compiled = run_stage(COMPILE, tmp_path / "compile", compile_config(), files).outputs / "model"
        bound = MINIMUM_COSINE["fp32" if precision == "float32" else precision]
        reference = onnx.load(models.float32)
        report = validate(tmp_path / "validate", compiled, reference, target=NPU, min_cosine=bound)
        assert report["execution_provider"] == "QNNExecutionProvider"
        assert report["assigned_nodes"]["QNNExecutionProvider"] == {"EPContext": 1}
        with pytest.raises(StageError, match="CPUExecutionProvider cannot load"):
            validate(tmp_path / "cpu", compiled, reference)

    @pytest.mark.parametrize(
        ("options", "words"),
        [({"soc_model": "99999"}, "on the CPU"), ({"enable_htp_fp16_precision": "1"}, "soc_model")],
        ids=["takes no part of the model", "cannot be created"],
    )
    def test_provider_that_does_not_run_model_is_a_failure(self, models, tmp_path, options, words):
        target = dataclasses.replace(NPU, provider_options=options)
        with pytest.raises(StageError, match=words):
            validate(tmp_path, onnx.load(models.w8a8), onnx.load(models.float32), target=target)


def test_infinities_on_ones_are_a_failure(tmp_path):
    infinite = model("Reciprocal", added=-1.0)
    with pytest.raises(StageError, match=r"Output 'y' has .*6 infinite"):
        validate(tmp_path / "candidate", infinite, model())
    with pytest.raises(
        StageError, match="of the float model has 0 NaN and 6 infinite values on inputs of on"
    ) as failed:
        validate(tmp_path / "both", infinite, infinite)
    assert "--no-validate" in failed.value.advice


def test_half_precision_model_gets_half_precision_inputs(tmp_path):
    half = graph("g (float16[2, 3] x) => (float16[2, 3] y) { y = Exp (x) }")
    report = validate(tmp_path, half, model("Exp"), min_cosine=MINIMUM_COSINE["fp16"])
    assert 0.999 < report["outputs"]["y"]["cosine"] <= 1


@pytest.mark.parametrize(("samples", "run_on"), [(None, 4), (2, 2), (9, 4)])
def test_all_user_inputs_are_run_unless_limited(tmp_path, samples, run_on):
    report = validate(tmp_path, model(), model(), samples=samples, seed=None, **given(tmp_path / "data", 1, 2, 3, 4))
    assert (report["samples"], report["data"], report["inputs"]) == (run_on, "npz", "validate.input_data")
    assert (report["held_out"], report["quality"]["samples"]) == (True, run_on)


@pytest.mark.parametrize(
    ("candidate", "reference", "values", "words"),
    [
        # Nothing is wrong with them on random inputs.
        ("Sqrt", "Abs", (1, -1), r"NaN .* on 2 npz samples where the reference has numbers"),
        ("Sqrt", "Sqrt", (1, -1, -2), r"'y' of the float model has 12 NaN and 0 infinite values on 3 npz samples\."),
        ("Abs", "Sqrt", (1, -1, -2), r"'y' of the float model has 12 NaN and 0 infinite values on 3 npz samples\."),
        ("Identity", "Reciprocal", (0, 0, 0), r"'y' of the float model has 0 NaN and 18 infinite values"),
    ],
)
def test_nan_on_user_inputs_is_a_failure(tmp_path, candidate, reference, values, words):
    assert validate(tmp_path / "random", model(candidate), model(reference))["inputs"] == "validate.seed"
    with pytest.raises(StageError, match=words) as failed:
        validate(tmp_path / "given", model(candidate), model(reference), **given(tmp_path / "data", *values))
    if "float model" in words:
        assert "validate.input_data" in failed.value.advice
        assert "--no-validate" in failed.value.advice


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"z": np.zeros((4, 2, 3), np.float32)}, "x missing and z not an input"),
        ({"x": np.zeros((4, 5, 3), np.float32)}, r"takes the shape \[2, 3\], but sample 0"),
    ],
)
def test_mismatched_input_data_is_reported_with_field(tmp_path, data, complaint):
    with pytest.raises(StageError, match=f"^validate.input_data: .*{complaint}"):
        validate(tmp_path, model(), model(), samples=None, slots={"input_data": stored(tmp_path / "data", **data)})


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ({"min_cosine": 0.99999}, "cosine 0.9.*, below validate.min_cosine of 0.99999"),
        ({"min_sqnr_db": 40.0}, "signal to noise .* dB, below validate.min_sqnr_db of 40"),
        ({"max_abs_error": 0.05}, "largest error 0.1, above validate.max_abs_error of 0.05"),
    ],
)
def test_violated_bound_is_reported_with_field_and_output(tmp_path, bound, words):
    words = f"Output 'y' is too far from the reference on 3 random samples: {words}"
    with pytest.raises(StageError, match=words) as failed:
        validate(tmp_path / "broken", model(added=0.1), model(), **bound)
    assert failed.value.advice
    assert not list((tmp_path / "broken" / "report").iterdir())
    loose = {"min_cosine": 0.9, "min_sqnr_db": 5.0, "max_abs_error": 0.2}
    report = validate(tmp_path / "kept", model(added=0.1), model(), **loose)
    assert {name: report[name] for name in loose} == loose


def test_violated_bound_reports_figures_of_all_outputs(tmp_path):
    """Of the three outputs, the first is exact, and the others are 0.1 and 0.2 too large."""

    def three(near: float, far: float) -> onnx.ModelProto:
        return graph(
            f"""g (float[2, 3] x) => (float[2, 3] exact, float[2, 3] near, float[2, 3] far)
            <float none = {{0}}, float a = {{{near}}}, float b = {{{far}}}>
            {{ exact = Add (x, none) near = Add (x, a) far = Add (x, b) }}"""
        )

    with pytest.raises(MeasuredError, match=r"^Output 'near' .*; 1 more of 3 outputs too\.") as failed:
        validate(tmp_path, three(0.1, 0.2), three(0.0, 0.0), min_cosine=0.5, max_abs_error=0.05)
    assert "higher precision" in failed.value.advice
    told = failed.value.metrics
    errors = {name: figures["max_abs_error"] for name, figures in told["outputs"].items()}
    assert errors == {"exact": 0.0, "near": 0.1, "far": 0.2}
    assert told["broken"] == {"near": ["max_abs_error"], "far": ["max_abs_error"]}
    assert (told["min_cosine"], told["max_abs_error"], told["min_sqnr_db"]) == (0.5, 0.05, None)
    heads, *lines = broken_lines(told)
    assert heads.split() == ["output", "cosine", "lowest", "SQNR", "largest", "error", "top-1"]
    assert [line.split()[0] for line in lines] == ["exact", "near", "far"]
    assert [line.endswith("not kept: max_abs_error") for line in lines] == [False, True, True]
    assert not list(broken_lines({}))


def test_top1_bound_requires_output_with_decisions(tmp_path):
    """Negating all scores changes every best class."""
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    how = {"min_top1_agreement": 0.5, "samples": None, "slots": {"input_data": stored(tmp_path / "data", x=x)}}
    with pytest.raises(StageError, match="no output of the model has scores of classes"):
        validate(tmp_path / "none", model(), model(), **how)
    with pytest.raises(StageError, match=r"the same best class in 0 of 8 decisions, below validate.min_top1_agreement"):
        validate(tmp_path / "other", model("Neg", "logits"), model(output="logits"), **how)
    assert validate(tmp_path / "same", model(output="logits"), model(output="logits"), **how)


def test_doubled_output_is_refused(tmp_path):
    """Its cosine is 1."""
    twice = graph("g (float[2, 3] x) => (float[2, 3] y) { y = Add (x, x) }")
    with pytest.raises(StageError, match=r"signal to noise .* dB, below validate.min_sqnr_db of 0.5 \(cosine 1,"):
        validate(tmp_path, twice, model(), precision=AS_IT_IS)


def test_model_without_reference_must_load_run_and_be_finite(tmp_path):
    report = validate(tmp_path / "sound", model("Abs"))
    assert report["reference"] is False
    assert (report["samples"], report["all_ones_finite"]) == (3, True)
    assert "quality" not in report
    with pytest.raises(StageError, match=r"Output 'y' has 6 NaN and 0 infinite values on 3 random samples, and there"):
        validate(tmp_path / "broken", model("Sqrt", added=-2.0))
    with pytest.raises(StageError, match=r"6 infinite values on inputs of ones, and there is no reference"):
        validate(tmp_path / "on ones", model("Reciprocal", added=-1.0))


def test_infinities_fail_unless_result_is_finite_there(tmp_path):
    """A mask, with infinities and with integer limits."""

    def masked(low: float) -> onnx.ModelProto:
        text = "g (float[2, 3] x) => (float[2, 3] y) <bool[3] keep = {1, 1, 0}> { y = Where (keep, x, low) }"
        return graph(text, low=np.array(low, np.float32))

    with pytest.raises(StageError, match="Output 'y' of the float model has 0 NaN and 6 infinite values on 3 random"):
        validate(tmp_path / "floats", masked(-np.inf), masked(-np.inf))
    with pytest.raises(StageError, match="Output 'y' has 0 NaN and 6 infinite values on 3 random samples where"):
        validate(tmp_path / "overflow", masked(-np.inf), masked(-3.4e38))
    report = validate(tmp_path / "integers", masked(-2.0), masked(-np.inf))
    assert "'y' of the float model has 0 NaN and 6 infinite values on 3 random samples" in report["warnings"][0]
    assert report["quality"]["cosine"] == 1.0


def test_all_ones_check_uses_first_sample_without_float_inputs(tmp_path):
    def masked(low: float) -> onnx.ModelProto:
        text = """g (int64[2, 3] x) => (float[2, 3] y) <bool[3] keep = {1, 1, 0}>
        { f = Cast <to = 1> (x) y = Where (keep, f, low) }"""
        return graph(text, low=np.array(low, np.float32))

    assert validate(tmp_path / "finite", masked(-2.0), masked(-2.0))["all_ones_finite"] is True
    warnings = validate(tmp_path / "infinite", masked(-2.0), masked(-np.inf))["warnings"]
    assert [" on inputs of ones," in warning for warning in warnings] == [False, True]


def test_missing_or_incomparable_output_is_reported(tmp_path):
    both = graph("g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) { y = Neg (x) z = Neg (x) }")
    with pytest.raises(StageError, match="y, z"):
        validate(tmp_path / "missing", both, model("Neg"))
    truth = graph("g (float[2, 3] x) => (bool[2, 3] y) { y = Greater (x, x) }")
    with pytest.raises(StageError, match="values of type bool, but its reference's are float32"):
        validate(tmp_path / "bool", truth, model())
    several = graph("g (float[2, 3] x) => (seq(float[1, 3]) y) { y = SplitToSequence <axis = 0> (x) }")
    with pytest.raises(StageError, match="'y' is a list, and only tensors of numbers can be compared"):
        validate(tmp_path / "list", several, several)


def test_bounds_are_inclusive_and_default_to_those_of_precision():
    exact = OutputComparison("y", (4,), 0.9, 20.0, 0.5, 0, 0)
    figures = OutputFigures(exact, exact, 0.9, Agreement(9, 10))
    kept = Bounds(min_cosine=0.9, min_sqnr_db=20.0, max_abs_error=0.5, min_top1_agreement=0.9)
    assert not list(kept.broken_by(figures))
    assert not list(Bounds().broken_by(figures))
    tighter = dataclasses.replace(kept, min_cosine=0.91, min_sqnr_db=20.1, max_abs_error=0.49, min_top1_agreement=0.91)
    assert len(list(tighter.broken_by(figures))) == 4
    assert Bounds().completed("w8a16") == Bounds(min_cosine=MINIMUM_COSINE["w8a16"], min_sqnr_db=0.5)
    assert Bounds(min_sqnr_db=20.0).completed("w8a16").min_sqnr_db == 20.0
    # Explicit thresholds take precedence.
    assert Bounds(min_cosine=-1.0).completed("w8a16") == Bounds(min_cosine=-1.0)
    # What came quantized has the loosest.
    assert minimum_cosine(AS_IT_IS) == min(MINIMUM_COSINE.values())
