from __future__ import annotations

import shutil

import onnx
import pytest
from ep_stage_runs import Models, compile_config, make_models, requires_qnn, run_stage, small_network

from winml_dag.ep.registry import OPENVINO, QNN, find_ep, installed
from winml_dag.errors import StageError
from winml_dag.stages.compile import COMPILE
from winml_dag.stages.compiled import read_compiled

pytestmark = requires_qnn


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def beside(models, tmp_path_factory):
    return run_stage(COMPILE, tmp_path_factory.mktemp("beside"), compile_config(), {"model": {"m.onnx": models.w8a8}})


def test_a_quantized_model_becomes_one_partition_with_its_binary_beside_it(beside):
    files = beside.files()
    assert files.keys() == {"compiled.onnx", "compiled_qnn.bin"}
    metrics = beside.metrics
    assert metrics["ep_context_partitions"] == 1
    assert metrics["nodes_on_cpu"] == {}
    assert metrics["edge_quantization_nodes"] == 2
    assert metrics["binary_size_bytes"] == len(files["compiled_qnn.bin"])
    assert metrics["ep_sdk_version"].startswith("v2.")
    assert ":73:60:" in metrics["ep_compatibility_info"]


def _untimed(outcome):
    return {name: value for name, value in outcome.metrics.items() if name != "compile_time_seconds"}


def test_bytes_are_the_same_from_another_folder_name_and_hash_seed(models, beside, tmp_path):
    again = run_stage(
        COMPILE, tmp_path / "elsewhere" / "x", compile_config(), {"model": {"renamed.onnx": models.w8a8}}, hash_seed=7
    )
    assert again.files() == beside.files()


def test_no_path_of_this_machine_is_in_the_bytes(beside):
    for content in beside.files().values():
        assert str(beside.outputs.parent).encode() not in content
        assert b"site-packages" not in content


def test_both_compilers_give_the_same_bytes(models, beside, tmp_path):
    config = compile_config(compiler="ort_session")
    assert run_stage(COMPILE, tmp_path, config, {"model": {"m.onnx": models.w8a8}}).files() == beside.files()


def test_a_binary_can_be_embedded(models, tmp_path):
    outcome = run_stage(COMPILE, tmp_path, compile_config(embed_context=True), {"model": {"m.onnx": models.w8a8}})
    assert outcome.files().keys() == {"compiled.onnx"}
    assert 0 < outcome.metrics["binary_size_bytes"] < len(outcome.files()["compiled.onnx"])


def test_weights_in_a_file_beside_the_model_are_found(models, beside, tmp_path):
    model = tmp_path / "source" / "external.onnx"
    model.parent.mkdir()
    onnx.save_model(
        onnx.load(models.w8a8), model, save_as_external_data=True, location="weights.data", size_threshold=0
    )
    files = {"external.onnx": model, "weights.data": model.parent / "weights.data"}
    outcome = run_stage(COMPILE, tmp_path / "run", compile_config(), {"model": files})
    assert outcome.files().keys() == {"compiled.onnx", "compiled_qnn.bin"}
    assert _untimed(outcome) == _untimed(beside)


def test_a_float_model_compiles_whole(models, tmp_path):
    outcome = run_stage(COMPILE, tmp_path, compile_config(), {"model": {"m.onnx": models.float32}})
    assert outcome.metrics["ep_context_partitions"] == 1
    assert outcome.metrics["nodes_on_cpu"] == {}


def test_a_shape_computed_in_the_graph_does_not_split_it(tmp_path):
    model = tmp_path / "computed.onnx"
    onnx.save(small_network(computed_shape=True), model)
    outcome = run_stage(COMPILE, tmp_path / "run", compile_config(), {"model": {"m.onnx": model}})
    assert outcome.metrics["ep_context_partitions"] == 1
    assert outcome.metrics["nodes_on_cpu"] == {}


def test_a_dynamic_dimension_is_refused_by_its_name(tmp_path):
    model = tmp_path / "dynamic.onnx"
    onnx.save(small_network(batch="batch"), model)
    outcome = run_stage(COMPILE, tmp_path / "run", compile_config(), {"model": {"m.onnx": model}})
    assert "'pixels'" in outcome.error
    assert "batch" in outcome.error
    assert outcome.files() == {}


def test_an_option_file_reaches_the_compiler_and_what_it_leaves_to_the_cpu_is_named(models, tmp_path):
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
    ("config", "words"),
    [
        (compile_config({"soc_model": "99999"}), "cannot compile"),
        (compile_config({"enable_htp_fp16_precision": "1"}), "soc_model"),
        (compile_config(compiler="qairt"), "qairt"),
        (compile_config({}, execution_provider="CPUExecutionProvider", device="cpu"), "ahead of time"),
    ],
)
def test_what_cannot_be_compiled_fails_with_a_sentence_and_no_file(models, tmp_path, config, words):
    outcome = run_stage(COMPILE, tmp_path, config, {"model": {"m.onnx": models.w8a8}})
    assert words in outcome.error
    assert outcome.advice
    assert "\n" not in outcome.error
    assert "onnxruntime_src" not in outcome.error
    assert "compiled.onnx" not in outcome.files()


@pytest.mark.skipif(installed(OPENVINO), reason="needs an environment without OpenVINO")
def test_a_provider_that_is_not_here_says_how_to_get_it(models, tmp_path):
    config = compile_config({}, execution_provider=OPENVINO.name)
    outcome = run_stage(COMPILE, tmp_path, config, {"model": {"m.onnx": models.w8a8}})
    assert OPENVINO.name in outcome.error
    assert outcome.advice == find_ep("openvino").how_to_get


def test_a_process_that_compiles_a_second_time_is_stopped(models, tmp_path):
    with pytest.raises(RuntimeError, match="fresh one"):
        run_stage(COMPILE, tmp_path, compile_config(), {"model": {"m.onnx": models.w8a8}}, times=2)


def test_a_compiler_that_compiled_nothing_has_failed_whatever_it_says(models, tmp_path):
    with pytest.raises(StageError, match="wrote no compiled model"):
        read_compiled(tmp_path / "none.onnx", QNN, embedded=False)
    shutil.copy(models.w8a8, tmp_path / "copy.onnx")
    with pytest.raises(StageError, match="compiled no part of the model"):
        read_compiled(tmp_path / "copy.onnx", QNN, embedded=False)
