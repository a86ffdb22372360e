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
from winml_dag.errors import InputError
from winml_dag.onnxmodel.files import save_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.stages.finalize import FinalizeConfig, run


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    made = Workspace({"model": Path("in")}, {"model": Path("out")})
    for folder in (*made.inputs.values(), *made.outputs.values()):
        folder.mkdir()
    return made


def _linear(size: int = 64) -> onnx.ModelProto:
    """``y = x @ w``, in a fixed shape, as compilers want it."""
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
    model.producer_name = "somebody"  # not canonical, and none of our business here
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


def test_a_compiled_model_keeps_its_bytes_and_the_names_of_its_binaries(workspace: Workspace) -> None:
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context="parts/compiled_qnn.bin"
    )
    model = _linear()
    del model.graph.node[:]
    model.graph.node.append(node)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, "in/compiled.onnx", save_as_external_data=True, location="rest.data")
    Path("in/parts").mkdir()
    Path("in/parts/compiled_qnn.bin").write_bytes(b"binary")
    Path("in/unrelated.bin").write_bytes(b"nobody refers to this")
    given = {name: Path("in", name).read_bytes() for name in ("compiled.onnx", "parts/compiled_qnn.bin", "rest.data")}
    metrics, names = _finalize(workspace)
    assert names == ["model.onnx", "parts/compiled_qnn.bin", "rest.data"]
    assert [Path("out", name).read_bytes() for name in names] == list(given.values())
    assert metrics["external_data"] is True


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
    compiler = ort.ModelCompiler(options, "qdq.onnx", embed_compiled_data_into_model=False, flags=flags)
    compiler.compile_to_file("in/compiled.onnx")
else:
    session = ort.InferenceSession("out/model.onnx", options)
    print(session.run(None, Samples.left[0])[0].shape)
"""


@pytest.mark.slow
def test_a_model_compiled_for_an_npu_loads_under_its_final_name(workspace: Workspace) -> None:
    pytest.importorskip("onnxruntime_qnn")
    onnx.save(_linear(), "float.onnx")
    compiled = subprocess.run([sys.executable, "-c", _COMPILE, "compile"], capture_output=True, text=True)
    if compiled.stderr.strip().endswith("no device"):
        pytest.skip("the QNN execution provider offers no device here")
    assert compiled.returncode == 0, compiled.stderr
    before = inspect_model(Path("in/compiled.onnx"))
    assert before.is_compiled
    assert before.ep_context[0].embed_mode == 0
    assert before.ep_context[0].source in ("QNN", "QNNExecutionProvider")
    _, names = _finalize(workspace)
    assert names == sorted(["model.onnx", str(before.ep_context[0].sidecar)])
    loaded = subprocess.run([sys.executable, "-c", _COMPILE, "load"], capture_output=True, text=True)
    assert "(1, 64)" in loaded.stdout, loaded.stderr
