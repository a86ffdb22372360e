from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from ep_stage_runs import Models, compile_config, make_models, requires_qnn, run_stage
from onnx import TensorProto, helper, numpy_helper

from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.stages.compile import COMPILE
from winml_dag.stages.quality import MINIMUM_COSINE
from winml_dag.stages.samples.samples import random_samples
from winml_dag.stages.validate import VALIDATE

CPU = {"execution_provider": "CPUExecutionProvider", "device": "cpu", "provider_options": {}}
NPU = compile_config()["compile"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


def validate(folder, candidate, reference, target=CPU, data=None, **fields):
    files = candidate if isinstance(candidate, dict) else {"candidate.onnx": candidate}
    config = {"validate": {"min_cosine": 0.95, **fields}, "target": target}
    inputs = {"model": files, "reference": {"reference.onnx": reference}}
    return run_stage(VALIDATE, folder, config, inputs if data is None else {**inputs, "data": {"data.npz": data}})


def compiled(models, precision, folder) -> dict:
    outcome = run_stage(COMPILE, folder, compile_config(), {"model": {"m.onnx": getattr(models, precision)}})
    assert not outcome.error
    return {name: outcome.outputs / "model" / name for name in outcome.files()}


def elementwise(path, op: str, outputs: tuple[str, ...] = ("y",)) -> object:
    """Save a model whose outputs are *op* of ``1 - x``."""
    nodes = [helper.make_node("Sub", ["one", "x"], ["difference"])]
    nodes += [helper.make_node(op, ["difference"], [name]) for name in outputs]
    graph = helper.make_graph(
        nodes,
        "elementwise",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in outputs],
        [numpy_helper.from_array(np.float32(1), "one")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_a_model_agrees_with_itself(models, tmp_path):
    outcome = validate(tmp_path, models.float32, models.float32, min_cosine=1.0)
    assert outcome.error == ""
    assert outcome.metrics["execution_provider"] == "CPUExecutionProvider"
    same = {"cosine": 1.0, "cosine_min": 1.0, "sqnr_db": None, "scale": 1.0, "max_abs_error": 0.0}
    assert outcome.metrics["outputs"] == {"scores": same}
    on = {"samples": 3, "data": "random", "held_out": True}
    assert outcome.metrics["quality"] == {"output": "scores", **same, "top1_agreed": None, "top1_of": None, **on}


def test_a_classifiers_scores_are_compared_by_the_class_that_wins(models, tmp_path):
    outcome = validate(tmp_path, models.w8a16, models.float32, classifies=True, samples=8)
    figures = outcome.metrics["outputs"]["scores"]
    assert figures["top1_of"] == 8
    session, quantized = (onnxruntime.InferenceSession(path) for path in (models.float32, models.w8a16))
    inputs = model_inputs(models.float32)
    agreed = 0
    for feed in random_samples(inputs, 8, 0, "uniform", purpose="validate"):
        agreed += session.run(None, feed)[0].argmax() == quantized.run(None, feed)[0].argmax()
    assert figures["top1_agreed"] == agreed
    assert outcome.metrics["quality"]["top1_agreed"] == agreed


def text_model(path, noise_at_padding: float) -> object:
    """Save token embeddings: ``hidden`` is a row of a table, plus a number wherever the mask is 0."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Equal", ["attention_mask", "zero"], ["is_padding"]),
        helper.make_node("Unsqueeze", ["is_padding", "last"], ["padding"]),
        helper.make_node("Where", ["padding", "noise", "no_noise"], ["added"]),
        helper.make_node("Add", ["rows", "added"], ["hidden"]),
    ]
    graph = helper.make_graph(
        nodes,
        "text",
        [helper.make_tensor_value_info(name, TensorProto.INT64, [1, 8]) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [1, 8, 4])],
        [
            numpy_helper.from_array(random.standard_normal((10, 4)).astype(np.float32), "table"),
            numpy_helper.from_array(np.int64(0), "zero"),
            numpy_helper.from_array(np.float32(noise_at_padding), "noise"),
            numpy_helper.from_array(np.float32(0), "no_noise"),
            numpy_helper.from_array(np.array([2]), "last"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_padding_of_a_text_counts_only_where_it_is_no_number(tmp_path):
    ids = np.arange(32).reshape(4, 1, 8) % 10
    mask = (np.arange(8) < 5).astype(np.int64)[None, None].repeat(4, axis=0)
    np.savez(tmp_path / "data.npz", input_ids=ids, attention_mask=mask)
    reference = text_model(tmp_path / "reference.onnx", 0.0)
    data = tmp_path / "data.npz"
    outcome = validate(tmp_path / "a", text_model(tmp_path / "a.onnx", 100.0), reference, data=data)
    assert outcome.error == ""
    assert outcome.metrics["outputs"]["hidden"]["cosine"] == 1.0
    overflow = validate(tmp_path / "b", text_model(tmp_path / "b.onnx", np.inf), reference, data=data)
    assert "'hidden' has" in overflow.error


def test_one_broken_sample_among_good_ones_shows_in_the_lowest_cosine(tmp_path):
    """Abs differs from Identity for negative values: here, in the last sample that runs."""
    x = np.linspace(-1, 0, 24).reshape(4, 2, 3)
    x[3] = np.linspace(1, 3, 6).reshape(2, 3)
    np.savez(tmp_path / "data.npz", x=x)
    reference, candidate = elementwise(tmp_path / "r.onnx", "Identity"), elementwise(tmp_path / "c.onnx", "Abs")
    outcome = validate(tmp_path / "run", candidate, reference, data=tmp_path / "data.npz", min_cosine=-1.0)
    quality = outcome.metrics["quality"]
    assert (quality["data"], quality["samples"], quality["held_out"]) == ("npz", 2, True)
    assert quality["cosine_min"] < -0.9 < quality["cosine"]
    assert quality["output"] == "y"


def test_the_worst_output_speaks_for_the_model(tmp_path):
    reference = elementwise(tmp_path / "reference.onnx", "Identity", outputs=("good", "bad"))
    candidate = onnx.load(reference)
    candidate.graph.node[2].op_type = "Exp"
    onnx.save(candidate, tmp_path / "candidate.onnx")
    outcome = validate(tmp_path / "run", tmp_path / "candidate.onnx", reference, min_cosine=-1.0)
    outputs = outcome.metrics["outputs"]
    assert outputs["bad"]["cosine"] < outputs["good"]["cosine"] == 1.0
    assert outcome.metrics["quality"]["output"] == "bad"
    assert outcome.metrics["quality"]["cosine"] == outputs["bad"]["cosine"]


def test_the_report_says_what_the_metrics_say_and_is_the_same_every_time(models, tmp_path):
    first = validate(tmp_path / "a", models.w8a16, models.float32)
    second = validate(tmp_path / "b", models.w8a16, models.float32)
    assert first.files() == second.files()
    assert json.loads(first.files()["validation.json"]) == first.metrics


@pytest.mark.parametrize(("given", "samples"), [(20, 3), (4, 2), (2, 1), (1, 1)])
def test_the_last_samples_are_run_which_calibration_leaves_alone(tmp_path, given, samples):
    # They differ where 1 - x is negative.
    model, reference = elementwise(tmp_path / "sqrt.onnx", "Sqrt"), elementwise(tmp_path / "abs.onnx", "Abs")
    x = np.zeros((given, 2, 3), np.float32)
    x[: given - samples] = 2
    np.savez(tmp_path / "data.npz", x=x)
    outcome = validate(tmp_path / "v", model, reference, data=tmp_path / "data.npz")
    assert outcome.error == ""
    assert (outcome.metrics["samples"], outcome.metrics["held_out"]) == (samples, True)
    x[given - samples] = 2
    np.savez(tmp_path / "data.npz", x=x)
    assert "NaN" in validate(tmp_path / "w", model, reference, data=tmp_path / "data.npz").error


@requires_qnn
@pytest.mark.parametrize("precision", ["w8a8", "w8a16", "float32"])
def test_a_compiled_model_runs_on_its_provider_and_keeps_its_bound(models, tmp_path, precision):
    files = compiled(models, precision, tmp_path / "compile")
    bound = MINIMUM_COSINE["fp32" if precision == "float32" else precision]
    outcome = validate(tmp_path / "validate", files, models.float32, NPU, min_cosine=bound)
    assert outcome.error == ""
    assert outcome.metrics["execution_provider"] == "QNNExecutionProvider"
    assert outcome.metrics["assigned_nodes"]["QNNExecutionProvider"] == {"EPContext": 1}


@requires_qnn
def test_a_compiled_model_fails_on_a_target_that_cannot_load_it(models, tmp_path):
    outcome = validate(tmp_path / "v", compiled(models, "w8a8", tmp_path / "c"), models.float32, CPU)
    assert "CPUExecutionProvider cannot load" in outcome.error


@requires_qnn
def test_a_provider_that_takes_no_part_of_the_model_is_a_failure(models, tmp_path):
    target = {**NPU, "provider_options": {"soc_model": "99999"}}
    outcome = validate(tmp_path, models.w8a8, models.float32, target)
    assert "on the CPU" in outcome.error


@requires_qnn
def test_a_provider_that_cannot_be_created_is_a_failure(models, tmp_path):
    target = {**NPU, "provider_options": {"enable_htp_fp16_precision": "1"}}
    outcome = validate(tmp_path, models.w8a8, models.float32, target)
    assert "soc_model" in outcome.error


def test_a_model_below_its_bound_is_named_with_its_figures(models, tmp_path):
    outcome = validate(tmp_path, models.w8a8, models.float32, min_cosine=0.9999999)
    assert "'scores'" in outcome.error
    assert "cosine 0.9" in outcome.error
    assert "higher precision" in outcome.advice
    assert outcome.files() == {}


def test_infinities_on_ones_are_a_failure_even_if_random_inputs_are_fine(tmp_path):
    reference = elementwise(tmp_path / "reference.onnx", "Identity")
    candidate = elementwise(tmp_path / "candidate.onnx", "Reciprocal")
    outcome = validate(tmp_path / "run", candidate, reference, min_cosine=-1.0)
    assert "'y'" in outcome.error
    assert "6 infinite" in outcome.error


def test_infinities_that_the_float_model_has_too_are_a_failure_of_that(tmp_path):
    model = elementwise(tmp_path / "m.onnx", "Reciprocal")
    outcome = validate(tmp_path / "run", model, model)
    assert "'y' of the float model has 0 NaN and 6 infinite values on inputs of ones" in outcome.error
    assert "--no-validate" in outcome.advice


def test_a_half_precision_model_gets_its_inputs_in_half_precision(models, tmp_path):
    from onnxruntime.transformers.float16 import convert_float_to_float16

    half = tmp_path / "half.onnx"
    onnx.save(convert_float_to_float16(onnx.load(models.float32), keep_io_types=False), half)
    outcome = validate(tmp_path / "run", half, models.float32, min_cosine=MINIMUM_COSINE["fp16"])
    assert outcome.error == ""
    assert 0.999 < outcome.metrics["outputs"]["scores"]["cosine"] <= 1


def test_outputs_that_the_reference_does_not_have_are_named(tmp_path):
    reference = elementwise(tmp_path / "reference.onnx", "Neg")
    candidate = elementwise(tmp_path / "candidate.onnx", "Neg", outputs=("y", "z"))
    outcome = validate(tmp_path / "run", candidate, reference)
    assert "y, z" in outcome.error


def test_another_seed_compares_other_samples(models, tmp_path):
    first = validate(tmp_path / "a", models.w8a8, models.float32, seed=0)
    other = validate(tmp_path / "b", models.w8a8, models.float32, seed=1)
    assert first.metrics["outputs"] != other.metrics["outputs"]
