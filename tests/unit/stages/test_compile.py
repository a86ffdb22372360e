"""The stage compile, with QNN's emulator: one model, and several that share a binary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from ep_stage_runs import (
    Models,
    compile_config,
    compiled,
    loaded,
    make_models,
    quantized,
    requires_qnn,
    run_stage,
    small_network,
)
from metadata_samples import describe, said
from onnx import helper
from optimize_samples import graph, outputs

from winml_dag.engine.stage import Workspace, read_config
from winml_dag.ep.availability import installed, resolve_target
from winml_dag.ep.providers.openvino import OPENVINO
from winml_dag.ep.registry import QNN, is_arm
from winml_dag.errors import StageError, UsageError
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.sidecar import write_renamed
from winml_dag.pipeline.assess.builtmodel import find_built_model, measured_on
from winml_dag.stages.compile import COMPILE, CompileConfig, run
from winml_dag.stages.compiled import read_compiled
from winml_dag.stages.compiler import GIVE_SIZES
from winml_dag.stages.shared import FINALIZE_SHARED, shared_compile_stage

pytestmark = requires_qnn


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    """The model in 8 bits has metadata."""
    made = make_models(tmp_path_factory.mktemp("models"))
    onnx.save(describe(onnx.load(made.w8a8)), made.w8a8)
    return made


@pytest.fixture(scope="module")
def beside(models, tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("beside"), models.w8a8)


def test_quantized_model_becomes_one_partition_with_external_binary(models, beside):
    files = beside.files()
    assert files.keys() == {"compiled.onnx", "compiled_qnn.bin"}
    metrics = beside.metrics
    assert metrics["ep_context_partitions"] == 1
    assert metrics["nodes_on_cpu"] == {}
    assert metrics["edge_quantization_nodes"] == 2
    assert metrics["binary_size_bytes"] == len(files["compiled_qnn.bin"])
    assert metrics["ep_sdk_version"].startswith("v2.")
    assert ":73:60:" in metrics["ep_compatibility_info"]
    assert said(onnx.load(beside.outputs / "model" / "compiled.onnx")) == said(onnx.load(models.w8a8))


def test_bytes_contain_no_path_and_do_not_depend_on_folder_hash_seed_or_compiler(models, beside, tmp_path):
    files, config = {"model": {"renamed.onnx": models.w8a8}}, compile_config(compiler="ort_session")
    assert run_stage(COMPILE, tmp_path / "elsewhere" / "x", config, files, hash_seed=7).files() == beside.files()
    for content in beside.files().values():
        assert str(beside.outputs.parent).encode() not in content
        assert b"site-packages" not in content


def test_external_weights_are_found(models, beside, tmp_path):
    model = tmp_path / "source" / "external.onnx"
    model.parent.mkdir()
    onnx.save_model(
        onnx.load(models.w8a8), model, save_as_external_data=True, location="weights.data", size_threshold=0
    )
    files = {"external.onnx": model, "weights.data": model.parent / "weights.data"}
    outcome = run_stage(COMPILE, tmp_path / "run", compile_config(), {"model": files})
    assert outcome.files().keys() == {"compiled.onnx", "compiled_qnn.bin"}
    measured = {"compile_time_seconds": 0, "peak_memory_bytes": 0}
    assert outcome.metrics | measured == beside.metrics | measured


def test_computed_shape_does_not_split_and_context_can_be_embedded(tmp_path):
    model = describe(small_network(computed_shape=True))
    outcome = compiled(tmp_path, model, embed_context=True)
    assert (outcome.metrics["ep_context_partitions"], outcome.metrics["nodes_on_cpu"]) == (1, {})
    assert outcome.files().keys() == {"compiled.onnx"}
    assert 0 < outcome.metrics["binary_size_bytes"] < len(outcome.files()["compiled.onnx"])
    assert said(onnx.load(outcome.outputs / "model" / "compiled.onnx")) == said(model)


def test_option_file_is_applied_and_cpu_nodes_are_listed(models, tmp_path):
    affinity = tmp_path / "affinity.json"
    affinity.write_text('{"op_type": {"Conv": "cpu"}}')
    inputs = {"model": {"m.onnx": models.w8a8}, "option_files": {"op_affinity/affinity.json": affinity}}
    options = compile_config()["compile"]["provider_options"] | {"op_affinity": "/somewhere/affinity.json"}
    outcome = run_stage(COMPILE, tmp_path / "run", compile_config(options), inputs)
    assert outcome.metrics["nodes_on_cpu"]["Conv"] == 2
    left = outcome.metrics["cpu_nodes"]
    assert [node["name"] for node in left if node["op_type"] == "Conv"] == ["conv1", "conv2"]
    assert len(left) == sum(outcome.metrics["nodes_on_cpu"].values())


@pytest.mark.parametrize(
    ("options", "words"),
    [({"soc_model": "99999"}, "cannot compile"), ({"enable_htp_fp16_precision": "1"}, "soc_model")],
)
def test_compile_failure_gives_one_sentence_and_no_file(models, tmp_path, options, words):
    outcome = compiled(tmp_path, models.w8a8, options)
    assert words in outcome.error
    assert outcome.advice
    assert "\n" not in outcome.error
    assert "onnxruntime_src" not in outcome.error
    assert "compiled.onnx" not in outcome.files()


@pytest.mark.parametrize(
    ("batch", "fields", "words", "advice"),
    [
        (1, {"compiler": "qairt"}, "The compiler 'qairt' is not available", "Use ort or ort_session."),
        (1, {"execution_provider": "CPUExecutionProvider", "device": "cpu"}, "ahead of time", "Remove compile."),
        ("batch", {}, "input 'pixels' has the dynamic dimension batch", GIVE_SIZES),
        pytest.param(
            *(1, {"execution_provider": OPENVINO.name, "provider_options": {}}, OPENVINO.name, OPENVINO.how_to_get),
            marks=pytest.mark.skipif(installed(OPENVINO), reason="needs an environment without OpenVINO"),
        ),
    ],
)
def test_refusal_precedes_compiler_and_process_compiles_only_once(tmp_path, monkeypatch, batch, fields, words, advice):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("winml_dag.stages.compiler._used", False)
    Path("model").mkdir()
    onnx.save(small_network(batch=batch), "model/m.onnx")
    config = read_config(CompileConfig, compile_config(**fields))
    workspace = Workspace({"model": Path("model")}, {"model": Path("out")})
    with pytest.raises(StageError, match=words) as refused:
        run(config, workspace)
    assert refused.value.advice == advice
    with pytest.raises(RuntimeError, match="fresh one"):
        run(config, workspace)


def test_unsupported_model_lists_its_operators(tmp_path):
    model = graph(
        """g (float[1, 4] x) => (float[1, 4] y) <int64 n = {3}, bool go = {1}> {
        y = Loop (n, go, x) <body = inner (int64 i, bool c, float[1, 4] v) => (bool d, float[1, 4] w)
            <float[1] one = {1.0}> { d = Identity(c) w = Add(v, one) }> }""",
        17,
    )
    outcome = compiled(tmp_path, model)
    assert "cannot compile this model: it took none of its operators (Loop)." in outcome.error
    assert "winml-dag analyze" in outcome.advice
    assert "precision" not in outcome.advice


def test_operator_refused_in_other_layout_is_named(tmp_path):
    model = graph(
        """g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) <float s = {0.02}, uint16 z = {32768}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) [here] a = LRN <size = 3> (d)
        r = QuantizeLinear(a, s, z) y = DequantizeLinear(r, s, z) }""",
        21,
    )
    outcome = compiled(tmp_path, model)
    assert "it asked for LRN node 'here'" in outcome.error
    assert "com.ms.internal" not in outcome.error
    assert '{"op_type": {"LRN": "cpu"}}' in outcome.advice


def test_model_without_outputs_is_named(models, tmp_path):
    model = onnx.load(models.w8a8)
    del model.graph.output[:]
    assert compiled(tmp_path, model).advice == "It has no outputs."


def test_product_of_converted_bytes_fails_with_advice_that_helps(tmp_path):
    text = """g (uint8[1, 8] x) => (float[1, 8] y)
            <float s = {0.02}, uint16 z = {0}, float[8] t = TTT, uint8[8] n = NNN> {
        f = Cast <to = 1> (x) q = QuantizeLinear(f, s, z) d = DequantizeLinear(q, s, z)
        v = DequantizeLinear <axis = 1> (w, t, n) a = MatMul(d, v)
        r = QuantizeLinear(a, s, z) y = DequantizeLinear(r, s, z) }"""
    text = text.replace("TTT", f"{{{', '.join(['0.02'] * 8)}}}").replace("NNN", f"{{{', '.join(['128'] * 8)}}}")
    weights = np.random.default_rng(0).integers(0, 256, (8, 8)).astype(np.uint8)
    outcome = compiled(tmp_path, graph(text, 21, w=weights))
    assert "quant.per_channel: false" in outcome.advice


@pytest.mark.parametrize("compiler", ["ort", "ort_session"])
def test_if_branch_weights_are_compiled_wherever_stored(tmp_path, compiler):
    random = np.random.default_rng(0)
    shared, outer, inner = (random.normal(size=(8, 8)).astype(np.float32) for _ in range(3))
    model = graph(
        """g (float[1, 8] x, bool c) => (float[1, 8] y) {
        a = MatMul(x, shared)
        i = If (c) <then_branch = one () => (float[1, 8] t) { m = MatMul(a, shared) n = MatMul(m, outer) t = Selu(n) },
                    else_branch = two () => (float[1, 8] e) { e = MatMul(a, outer) }>
        y = MatMul(i, shared) }""",
        17,
        shared=shared,
        outer=outer,
    )
    other = model.graph.node[1].attribute[1].g
    other.initializer.append(onnx.numpy_helper.from_array(inner, "inner"))
    other.node[0].input[1] = "inner"
    outcome = compiled(tmp_path, model, compiler=compiler)
    on_npu = loaded(outcome)
    assert outcome.metrics["ep_context_partitions"] == 2
    given = (tmp_path / "model.onnx").read_bytes()
    assert (tmp_path / "run" / "inputs" / "model" / "m.onnx").read_bytes() == given
    assert [each.name for each in onnx.load(outcome.outputs / "model" / "compiled.onnx").graph.output] == ["y"]
    for way in (True, False):
        feeds = {"x": random.normal(size=(1, 8)).astype(np.float32), "c": np.asarray(way)}
        np.testing.assert_allclose(on_npu.run(None, feeds)[0], outputs(model, feeds)[0], rtol=0.02, atol=0.2)


def test_duplicate_output_is_kept(models, tmp_path):
    model = onnx.load(models.w8a8)
    model.graph.output.append(model.graph.output[0])
    session = loaded(compiled(tmp_path, model))
    (input_,) = session.get_inputs()
    one, other = session.run(None, {input_.name: np.ones(input_.shape, np.float32)})
    assert one.any()
    np.testing.assert_array_equal(one, other)


def test_float16_operator_failure_advises_float32_exclusion(tmp_path):
    text = (
        "(float16[2, 8] x, float16[8, 8] w) => (float16[2, 8] y) { a = MatMul(x, w) b = Softsign(a) y = MatMul(b, w) }"
    )
    outcome = compiled(tmp_path, graph(f"g {text}", 18))
    assert "has to be replaced by others" in outcome.error
    assert "(MatMul, Softsign)" in outcome.error
    assert "already compiled" not in outcome.error
    assert "quant.fp16_op_block_list" in outcome.advice


def test_unloadable_compiled_model_reports_cause_and_advice(tmp_path):
    # QNN supports up to five dimensions, so the Unsqueeze stays on the CPU, between conversions.
    model = graph(
        """g (float[1, 4, 8, 8] x) => (float[1, 1, 4, 1, 8, 8] y)
            <float s = {0.02}, float t = {0.01}, uint8 z = {128}, uint8 n = {0}, int64[2] axes = {0, 3}> {
            q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, s, z)
            a = Conv <pads = [1, 1, 1, 1]> (d, v)
            aq = QuantizeLinear(a, s, z) ad = DequantizeLinear(aq, s, z) u = Unsqueeze(ad, axes)
            uq = QuantizeLinear(u, t, n) y = DequantizeLinear(uq, t, n)
        }""",
        17,
        w=np.random.default_rng(0).integers(0, 256, (4, 4, 3, 3)).astype(np.uint8),
    )
    with pytest.raises(StageError, match="it moves a QuantizeLinear") as raised:
        loaded(compiled(tmp_path, model))
    assert "inferred types" not in str(raised.value)
    assert "quant.nodes_to_exclude" in raised.value.advice


def test_missing_compiled_model_is_a_failure(models):
    for path, words in (
        (models.w8a8.with_name("none.onnx"), "no compiled model"),
        (models.w8a8, "no part of the model"),
    ):
        with pytest.raises(StageError, match=words):
            read_compiled(path, QNN, embedded=False)


# Several models in one binary. QNN's emulator cannot load these, so only the contents are checked.


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[Path]:
    """The same weights twice, after different operators."""
    folder = tmp_path_factory.mktemp("models")
    network = small_network()
    onnx.save(network, folder / "float0.onnx")
    network.graph.node[-1].output[0] = "before"
    network.graph.node.append(helper.make_node("Relu", ["before"], ["scores"], "last"))
    onnx.save(network, folder / "float1.onnx")
    made = [quantized(folder / f"float{number}.onnx", folder / f"{number}.onnx", "w8a16") for number in (0, 1)]
    onnx.save(describe(onnx.load(made[0])), made[0])
    return made


def _run(models: list[Path], folder: Path, **fields: object):
    inputs = {f"model_{number}": {"m.onnx": model} for number, model in enumerate(models)}
    return run_stage(shared_compile_stage(len(models)), folder, compile_config(**fields), inputs)


@pytest.fixture(scope="module")
def shared(pair, tmp_path_factory):
    return _run(pair, tmp_path_factory.mktemp("shared"))


def test_shared_models_have_one_binary_and_keep_metadata(pair, shared):
    files = shared.files()
    assert files.keys() == {"model_0.onnx", "model_1.onnx", "model_0_qnn.bin"}
    folder = shared.outputs / "model"
    found = [inspect_model(folder / f"model_{number}.onnx").ep_context for number in (0, 1)]
    assert [context.sidecar for contexts in found for context in contexts] == ["model_0_qnn.bin"] * 2
    for (context,) in found:
        assert context.partition.encode() in files["model_0_qnn.bin"]
    assert shared.metrics["ep_context_partitions"] == 2
    assert shared.metrics["binary_size_bytes"] == len(files["model_0_qnn.bin"])
    assert [model["ep_context_partitions"] for model in shared.metrics["models"]] == [1, 1]
    for number, model in enumerate(pair):
        assert said(onnx.load(folder / f"model_{number}.onnx")) == said(onnx.load(model))


def test_shared_bytes_depend_on_model_order_not_folder(pair, shared, tmp_path):
    assert _run(pair, tmp_path / "again").files() == shared.files()
    assert _run(pair[::-1], tmp_path / "other").files() != shared.files()


def test_error_names_the_failed_model(pair, tmp_path):
    model = onnx.load(pair[1])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(model, tmp_path / "open.onnx")
    failed = _run([pair[0], tmp_path / "open.onnx"], tmp_path / "failed")
    assert failed.error.startswith("Model 2 of 2: QNNExecutionProvider compiles fixed shapes only")


@pytest.mark.skipif(is_arm(), reason="here is the device")
def test_finalized_models_reference_shared_binary_by_final_name(shared, tmp_path):
    folder = shared.outputs / "model"
    inputs = {"model": {name: folder / name for name in shared.files()}}
    config = {"files": ["short.onnx", "long.onnx"], "compile": {"require_full_offload": True}}
    done = run_stage(FINALIZE_SHARED, tmp_path, config, inputs)
    assert done.error == ""
    files = done.files()
    assert files.keys() == {"short.onnx", "long.onnx", "short_shared_qnn.bin"}
    assert files["short_shared_qnn.bin"] == shared.files()["model_0_qnn.bin"]
    assert inspect_model(done.outputs / "model" / "long.onnx").files == ("long.onnx", "short_shared_qnn.bin")
    # The emulator crashes when it loads them.
    for name in ("short.onnx", "long.onnx"):
        for ep in ("qnn", None):
            with pytest.raises(UsageError, match="shares its binary with other models"):
                measured_on(find_built_model(done.outputs / "model" / name), ep, None)


def test_single_model_binary_is_not_treated_as_shared(pair, tmp_path):
    folder = compiled(tmp_path / "alone", pair[0]).outputs / "model"
    (tmp_path / "my_shared_qnn.bin").write_bytes((folder / "compiled_qnn.bin").read_bytes())
    write_renamed(folder / "compiled.onnx", tmp_path / "my.onnx", {"compiled_qnn.bin": "my_shared_qnn.bin"})
    assert measured_on(find_built_model(tmp_path / "my.onnx"), "qnn", None) == resolve_target("qnn", None)
