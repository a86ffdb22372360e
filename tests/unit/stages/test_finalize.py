from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from ep_stage_runs import compiled, loaded, make_models, requires_qnn
from onnx import helper, numpy_helper
from optimize_samples import graph, outputs

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import InputError, StageError
from winml_dag.onnxmodel import files
from winml_dag.onnxmodel.files import save_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.stages import finalize
from winml_dag.stages.finalize import FinalizeConfig, OffloadFields, run


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    made = Workspace({"model": Path("in")}, {"model": Path("out")})
    for folder in (*made.inputs.values(), *made.outputs.values()):
        folder.mkdir()
    return made


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of this file's models count as large."""
    for module in (files, finalize):
        monkeypatch.setattr(module, "EXTERNAL_DATA_THRESHOLD", 1024)


def _linear() -> onnx.ModelProto:
    """Return ``y = x @ w``, with a fixed shape, as compilers need it."""
    weight = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    return graph("g (float[1, 64] x) => (float[1, 64] y) { y = MatMul (x, w) }", w=weight)


def _finalize(workspace: Workspace) -> tuple[JsonObject, list[str]]:
    metrics = run(FinalizeConfig(), workspace)
    json.dumps(metrics)
    folder = workspace.outputs["model"]
    return metrics, sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _same_results(one: str, other: str) -> None:
    x = {"x": np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)}
    np.testing.assert_array_equal(*(outputs(onnx.load(path), x)[0] for path in (one, other)))


def test_single_file_model_keeps_its_bytes(workspace: Workspace) -> None:
    model = _linear()
    model.producer_name = "somebody"  # not canonical, which finalize must keep
    content = model.SerializeToString()
    Path("in/quantized.onnx").write_bytes(content)
    metrics, names = _finalize(workspace)
    assert names == ["model.onnx"]
    assert Path("out/model.onnx").read_bytes() == content
    assert metrics == {"size_bytes": len(content), "external_data": False}


def test_small_external_data_is_inlined(workspace: Workspace) -> None:
    onnx.save(_linear(), "in/m.onnx", save_as_external_data=True, location="weights.bin")
    metrics, names = _finalize(workspace)
    assert names == ["model.onnx"]
    assert metrics["external_data"] is False
    _same_results("out/model.onnx", "in/m.onnx")


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ["model.onnx", "small one.onnx"])
def test_large_weights_keep_bytes_under_final_name(workspace: Workspace, name: str) -> None:
    save_model(_linear(), Path("in/optimized.onnx"))
    metrics = run(FinalizeConfig(name), workspace)
    assert sorted(path.name for path in Path("out").iterdir()) == [name, f"{name}.data"]
    assert Path(f"out/{name}.data").read_bytes() == Path("in/optimized.onnx.data").read_bytes()
    assert metrics["external_data"] is True
    assert metrics["size_bytes"] == sum(path.stat().st_size for path in Path("out").iterdir())
    assert inspect_model(Path("out", name)).external_data == (f"{name}.data",)
    _same_results(f"out/{name}", "in/optimized.onnx")


@pytest.mark.usefixtures("large")
def test_large_inline_weights_move_to_external_file(workspace: Workspace) -> None:
    Path("in/m.onnx").write_bytes(_linear().SerializeToString())
    metrics, names = _finalize(workspace)
    assert names == ["model.onnx", "model.onnx.data"]
    assert metrics["external_data"] is True


def _compiled(sidecar: str, *, left: bool = False) -> onnx.ModelProto:
    """Return an EPContext node with its binary in *sidecar*; *left*: an operator stays on the CPU."""
    context = helper.make_node(
        "EPContext", ["x"], ["c"], "part", domain="com.microsoft", embed_mode=0, ep_cache_context=sidecar, source="QNN"
    )
    model = _linear()
    del model.graph.node[:]
    last = helper.make_node("MatMul", ["c", "w"], ["y"], "left") if left else helper.make_node("Identity", ["c"], ["y"])
    model.graph.node.extend([context, last] if left else [context])
    if not left:
        context.output[0] = "y"
        del model.graph.initializer[:]
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def _pair(sidecar: str = "compiled_qnn.bin", *, left: bool = False) -> onnx.ModelProto:
    model = _compiled(sidecar, left=left)
    path = Path("in", sidecar)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"binary")
    Path("in/compiled.onnx").write_bytes(model.SerializeToString())
    return model


def test_binary_is_renamed_with_model_and_nothing_else_changes(
    workspace: Workspace,
) -> None:
    model = _pair()
    run(FinalizeConfig("a much longer name than the one before.onnx"), workspace)
    names = ["a much longer name than the one before.onnx", "a much longer name than the one before_qnn.bin"]
    assert sorted(path.name for path in Path("out").iterdir()) == names
    assert Path("out", names[1]).read_bytes() == b"binary"
    (attribute,) = (each for each in model.graph.node[0].attribute if each.name == "ep_cache_context")
    attribute.s = names[1].encode()
    assert Path("out", names[0]).read_bytes() == model.SerializeToString()


def test_foreign_compiled_model_files_are_renamed_beside_it(workspace: Workspace) -> None:
    onnx.save(
        _compiled("parts/context.bin", left=True),
        "in/compiled.onnx",
        save_as_external_data=True,
        location="context.bin",
        size_threshold=0,
    )
    Path("in/parts").mkdir()
    Path("in/parts/context.bin").write_bytes(b"binary")
    weights = Path("in/context.bin").read_bytes()
    metrics, names = _finalize(workspace)
    assert names == ["model.onnx", "model_2_context.bin", "model_context.bin"]
    assert [Path("out", name).read_bytes() for name in names[1:]] == [b"binary", weights]
    after = inspect_model(Path("out/model.onnx"))
    assert (after.external_data, after.ep_context[0].sidecar) == (("model_context.bin",), "model_2_context.bin")
    assert metrics["external_data"] is True


@pytest.mark.parametrize("name", ["../compiled_qnn.bin", "/tmp/compiled_qnn.bin", "nul.bin", "a:b.bin"])
def test_unsafe_binary_name_is_refused(workspace: Workspace, name: str) -> None:
    Path("in/compiled.onnx").write_bytes(_compiled(name).SerializeToString())
    with pytest.raises(InputError, match="not a plain name inside"):
        _finalize(workspace)


def test_full_offload_allows_only_edge_conversions_on_cpu(workspace: Workspace) -> None:
    _pair(left=True)
    with pytest.raises(StageError, match=r"1 of the operators stay on the CPU: left \(MatMul\)"):
        run(FinalizeConfig(compile=OffloadFields(require_full_offload=True)), workspace)
    assert not any(Path("out").iterdir())
    model = _compiled("compiled_qnn.bin")
    nodes = model.graph.node
    nodes[0].input[0], nodes[0].output[0] = "qx", "qy"
    nodes.insert(0, helper.make_node("QuantizeLinear", ["x", "scale"], ["qx"], "in"))
    nodes.append(helper.make_node("DequantizeLinear", ["qy", "scale"], ["y"], "out"))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "scale"))
    Path("in/compiled.onnx").write_bytes(model.SerializeToString())
    run(FinalizeConfig(compile=OffloadFields(require_full_offload=True)), workspace)
    assert Path("out/model.onnx").is_file()


def test_missing_external_data_is_named(workspace: Workspace) -> None:
    onnx.save(_linear(), "in/m.onnx", save_as_external_data=True, location="weights.bin")
    Path("in/weights.bin").unlink()
    with pytest.raises(InputError, match=r"weights\.bin, which m\.onnx needs"):
        _finalize(workspace)


@requires_qnn
@pytest.mark.slow
@pytest.mark.parametrize("embed", [False, True])
def test_compiled_npu_model_loads_under_final_name(workspace: Workspace, tmp_path: Path, embed: bool) -> None:
    outcome = compiled(tmp_path / "compile", make_models(tmp_path).w8a16, embed_context=embed)
    for name, content in outcome.files().items():
        Path("in", name).write_bytes(content)
    before = inspect_model(Path("in/compiled.onnx"))
    assert before.is_compiled
    assert before.ep_context[0].embed_mode == int(embed)
    assert before.ep_context[0].source in ("QNN", "QNNExecutionProvider")
    _, names = _finalize(workspace)
    assert names == (["model.onnx"] if embed else ["model.onnx", "model_qnn.bin"])
    # Moved together, with the model renamed: they still belong together.
    Path("out").rename("moved")
    session = loaded(Path("moved/model.onnx").rename("moved/other name.onnx").resolve())
    (given,) = session.get_inputs()
    assert session.run(None, {given.name: np.ones(given.shape, np.float32)})[0].any()
