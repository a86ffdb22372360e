"""Several models in one binary. QNN's emulator cannot load these, so only the contents are checked."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from ep_stage_runs import compile_config, compiled, quantized, requires_qnn, run_stage, small_network
from metadata_samples import describe, said
from onnx import helper

from winml_dag.ep.availability import resolve_target
from winml_dag.ep.registry import is_arm
from winml_dag.errors import UsageError
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.sidecar import write_renamed
from winml_dag.pipeline.assess.builtmodel import find_built_model, measured_on
from winml_dag.stages.shared import FINALIZE_SHARED, shared_compile_stage

pytestmark = requires_qnn


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[Path]:
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
def shared(models, tmp_path_factory):
    return _run(models, tmp_path_factory.mktemp("shared"))


def test_models_share_one_binary_that_has_the_graphs_of_all_and_keep_their_metadata(models, shared):
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
    for number, model in enumerate(models):
        assert said(onnx.load(folder / f"model_{number}.onnx")) == said(onnx.load(model))


def test_bytes_are_the_same_in_another_folder_and_the_order_of_models_matters(models, shared, tmp_path):
    assert _run(models, tmp_path / "again").files() == shared.files()
    assert _run(models[::-1], tmp_path / "other").files() != shared.files()


def test_an_error_says_of_which_model_it_is(models, tmp_path):
    model = onnx.load(models[1])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(model, tmp_path / "open.onnx")
    failed = _run([models[0], tmp_path / "open.onnx"], tmp_path / "failed")
    assert failed.error.startswith("Model 2 of 2: QNNExecutionProvider compiles fixed shapes only")


@pytest.mark.skipif(is_arm(), reason="here is the device")
def test_the_final_models_refer_to_the_one_binary_by_its_final_name(shared, tmp_path):
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


def test_a_binary_of_one_model_is_not_shared_whatever_it_is_called(models, tmp_path):
    folder = compiled(tmp_path / "alone", models[0]).outputs / "model"
    (tmp_path / "my_shared_qnn.bin").write_bytes((folder / "compiled_qnn.bin").read_bytes())
    write_renamed(folder / "compiled.onnx", tmp_path / "my.onnx", {"compiled_qnn.bin": "my_shared_qnn.bin"})
    assert measured_on(find_built_model(tmp_path / "my.onnx"), "qnn", None) == resolve_target("qnn", None)
