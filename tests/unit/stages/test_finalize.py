from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import InputError, StageError
from winml_dag.onnxmodel.files import save_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.stages.finalize import FinalizeConfig, OffloadFields, run


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    made = Workspace({"model": Path("in")}, {"model": Path("out")})
    for folder in (*made.inputs.values(), *made.outputs.values()):
        folder.mkdir()
    return made


def _linear(size: int = 64) -> onnx.ModelProto:
    """Return ``y = x @ w``, with a fixed shape, as compilers need it."""
    weight = numpy_helper.from_array(np.linspace(-1, 1, size * size, dtype=np.float32).reshape(size, size), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, size])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _finalize(workspace: Workspace) -> tuple[JsonObject, list[str]]:
    metrics = run(FinalizeConfig(), workspace)
    json.dumps(metrics)
    folder = workspace.outputs["model"]
    return metrics, sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _output(path: Path, size: int) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.linspace(-1, 1, size, dtype=np.float32).reshape(1, size)})[0]


def test_a_model_in_one_file_keeps_its_very_bytes(workspace: Workspace) -> None:
    model = _linear()
    model.producer_name = "somebody"  # not canonical, which finalize must keep
    content = model.SerializeToString()
    Path("in/quantized.onnx").write_bytes(content)
    metrics, names = _finalize(workspace)
    assert names == ["model.onnx"]
    assert Path("out/model.onnx").read_bytes() == content
    assert metrics == {"size_bytes": len(content), "external_data": False}


def test_small_external_data_comes_inside(workspace: Workspace) -> None:
    onnx.save(_linear(), "in/m.onnx", save_as_external_data=True, location="weights.bin")
    metrics, names = _finalize(workspace)
    assert names == ["model.onnx"]
    assert metrics["external_data"] is False
    np.testing.assert_array_equal(_output(Path("out/model.onnx"), 64), _output(Path("in/m.onnx"), 64))


def test_large_weights_keep_their_bytes_under_the_final_name(workspace: Workspace) -> None:
    size = 5121  # just over 100 MiB
    save_model(_linear(size), Path("in/optimized.onnx"))
    metrics, names = _finalize(workspace)
    assert names == ["model.onnx", "model.onnx.data"]
    assert Path("out/model.onnx.data").read_bytes() == Path("in/optimized.onnx.data").read_bytes()
    assert metrics["external_data"] is True
    assert metrics["size_bytes"] == sum(path.stat().st_size for path in Path("out").iterdir())
    np.testing.assert_array_equal(_output(Path("out/model.onnx"), size), _output(Path("in/optimized.onnx"), size))


def test_the_weights_of_a_model_with_a_name_of_its_own_have_that_name_too(workspace: Workspace) -> None:
    save_model(_linear(5121), Path("in/quantized.onnx"))
    run(FinalizeConfig("small one.onnx"), workspace)
    assert sorted(path.name for path in Path("out").iterdir()) == ["small one.onnx", "small one.onnx.data"]
    assert inspect_model(Path("out/small one.onnx")).external_data == ("small one.onnx.data",)
    np.testing.assert_array_equal(_output(Path("out/small one.onnx"), 5121), _output(Path("in/quantized.onnx"), 5121))


def test_large_weights_inside_move_out(workspace: Workspace) -> None:
    Path("in/m.onnx").write_bytes(_linear(5121).SerializeToString())
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


def test_a_binary_gets_the_name_of_its_model_and_the_node_says_so_and_nothing_else_changes(
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


def test_files_of_a_compiled_model_from_elsewhere_come_beside_it_under_its_name(workspace: Workspace) -> None:
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
def test_a_binary_with_an_unsafe_name_is_refused(workspace: Workspace, name: str) -> None:
    Path("in/compiled.onnx").write_bytes(_compiled(name).SerializeToString())
    with pytest.raises(InputError, match="not a plain name inside"):
        _finalize(workspace)


def test_full_offload_is_required_of_all_but_conversions_at_the_edges(workspace: Workspace) -> None:
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


def test_a_missing_binary_is_named(workspace: Workspace) -> None:
    onnx.save(_linear(), "in/m.onnx", save_as_external_data=True, location="weights.bin")
    Path("in/weights.bin").unlink()
    with pytest.raises(InputError, match=r"weights\.bin, which m\.onnx needs"):
        _finalize(workspace)


_COMPILE = """
import numpy as np, onnxruntime as ort, onnxruntime_qnn, sys
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
class Samples(CalibrationDataReader):
    left = [{"x": np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)}] * 2
    def get_next(self):
        return self.left.pop() if self.left else None
ort.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
options = ort.SessionOptions()
devices = [device for device in ort.get_ep_devices() if device.ep_name == "QNNExecutionProvider"][:1]
if not devices:
    sys.exit("no device")
settings = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": "60", "htp_arch": "73"}
options.add_provider_for_devices(devices, settings)
if sys.argv[1] == "compile":
    quantize_static("float.onnx", "qdq.onnx", Samples(), activation_type=QuantType.QUInt16)
    flags = ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
    for embed, target in ((False, "in/compiled.onnx"), (True, "embedded/compiled.onnx")):
        compiler = ort.ModelCompiler(options, "qdq.onnx", embed_compiled_data_into_model=embed, flags=flags)
        compiler.compile_to_file(target)
else:
    for model in ("moved/other name.onnx", "moved/embedded.onnx"):
        print(ort.InferenceSession(model, options).run(None, Samples.left[0])[0].shape)
"""


@pytest.mark.slow
def test_a_model_compiled_for_an_npu_loads_under_its_final_name(workspace: Workspace) -> None:
    pytest.importorskip("onnxruntime_qnn")
    onnx.save(_linear(), "float.onnx")
    Path("embedded").mkdir()
    compiled = subprocess.run([sys.executable, "-c", _COMPILE, "compile"], capture_output=True, text=True)
    if compiled.stderr.strip().endswith("no device"):
        pytest.skip("the QNN execution provider offers no device here")
    assert compiled.returncode == 0, compiled.stderr
    before = inspect_model(Path("in/compiled.onnx"))
    assert before.is_compiled
    assert before.ep_context[0].embed_mode == 0
    assert before.ep_context[0].source in ("QNN", "QNNExecutionProvider")
    _, names = _finalize(workspace)
    assert names == ["model.onnx", "model_qnn.bin"]
    # Moved together, with the model renamed: they still belong together.
    Path("moved").mkdir()
    Path("out/model.onnx").rename("moved/other name.onnx")
    Path("out/model_qnn.bin").rename("moved/model_qnn.bin")
    Path("embedded/compiled.onnx").rename("in/compiled.onnx")
    _, names = _finalize(workspace)
    assert names == ["model.onnx"]
    Path("out/model.onnx").rename("moved/embedded.onnx")
    loaded = subprocess.run([sys.executable, "-c", _COMPILE, "load"], capture_output=True, text=True)
    assert loaded.stdout.count("(1, 64)") == 2, loaded.stderr
