"""``winml-dag analyze``: a model on targets with tables, and on one that is asked; live and cached."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from analysis_samples import LEFT, TAKEN, cases_of, table
from scenario import Project

from winml_dag.configuration import SUPPORT_VARIABLE

pytestmark = pytest.mark.slow

GELU = (
    '<ir_version: 8, opset_import: ["": 20]> g (float[2, 4] x) => (float[2, 4] y) '
    "<float three = {3}, float bend = {0.044715}, float steep = {0.7978846}, float one = {1}, float half = {0.5}> "
    "{ p = Pow(x, three) q = Mul(p, bend) s = Add(x, q) t = Mul(s, steep) f = Tanh(t) a = Add(f, one) h = Mul(x, half) "
    "y = Mul(h, a) }"
)
# From classical machine learning.
UNKNOWN = (
    '<ir_version: 8, opset_import: ["": 20, "ai.onnx.ml": 3]> g (float[2, 4] x) => (float[2, 4] y) '
    '{ n = Relu(x) y = ai.onnx.ml.Normalizer <norm = "L2"> (n) }'
)


@pytest.fixture(scope="module")
def shared(shared: Project) -> Project:
    """The same with more models, and a table of the user's own for QNN."""
    folder = shared.folder
    (folder / "kept.json").write_text("{}", encoding="utf-8")
    gelu = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(GELU))
    onnx.save(gelu, folder / "gelu.onnx")
    unknown = onnx.parser.parse_model(UNKNOWN)
    middle = onnx.helper.make_tensor_value_info("n", onnx.TensorProto.FLOAT, [2, 4])
    unknown.graph.value_info.append(middle)
    onnx.save(unknown, folder / "unknown.onnx")
    rows = [(case, LEFT if case.op_type == "Tanh" else TAKEN) for case in cases_of(gelu)]
    fused = replace(rows[-1][0], op_type="Gelu", inputs=rows[-1][0].inputs[:1], attributes=(("approximate", "tanh"),))
    (folder / "support").mkdir()
    (folder / "support" / "qnn_npu.support").write_bytes(table([*rows, (fused, TAKEN)]))
    return shared


Analyze = Callable[..., dict[str, Any]]


@pytest.fixture
def analyzed(shared: Project, monkeypatch: pytest.MonkeyPatch) -> Analyze:
    """Runs the command with the user's table."""
    monkeypatch.setenv(SUPPORT_VARIABLE, str(shared.folder / "support"))
    return lambda code, *arguments: shared.told("analyze", *arguments, code=code)


def test_cpu_model_is_supported_and_second_analysis_is_cached(shared: Project, analyzed: Analyze) -> None:
    first = analyzed(0, "model.onnx", "-o", "result.json")
    again = analyzed(0, "-m", "model.onnx", "--ep", "cpu")
    assert (first["analyzed"], again["analyzed"]) == ("live", "cached")
    assert first["supported"] is True
    assert first["targets"][0]["nodes"] == {"supported": 5, "partial": 0, "unsupported": 0, "unknown": 0}
    assert first["targets"] == again["targets"]
    result = json.loads((shared.folder / "result.json").read_text(encoding="utf-8"))
    assert result == first["analysis"]
    assert result["metadata"]["model_path"] == "model.onnx"
    assert result["analysis_timestamp"] == first["made_at"] == again["made_at"]
    assert result["results"][0]["runtime_support"] is True
    text = shared.says("analyze", "model.onnx")
    assert "cached, analyzed" in text
    assert "5 nodes of 3 operators" in text


def test_all_measured_targets_are_reported(shared: Project, analyzed: Analyze) -> None:
    found = analyzed(1, "gelu.onnx", "--ep", "all", "-o", "all.json")
    by_name = {(each["execution_provider"], each["device"]): each["nodes"] for each in found["targets"]}
    assert by_name["CPUExecutionProvider", "cpu"]["supported"] == 8
    assert by_name["QNNExecutionProvider", "npu"]["partial"] == 1
    result = json.loads((shared.folder / "all.json").read_text(encoding="utf-8"))
    assert [(each["ep_type"], each["device_type"]) for each in result["results"]] == list(by_name)
    assert result["metadata"]["detected_pattern_count"] == {"SUBGRAPH/GeluPattern": 1}


@pytest.mark.parametrize("ep", ["dml", "cuda"])
def test_target_without_table_reports_unknown_operators(shared: Project, analyzed: Analyze, ep: str) -> None:
    found = analyzed(1, "gelu.onnx", "--ep", ep, "-o", f"{ep}.json")
    result = json.loads((shared.folder / f"{ep}.json").read_text(encoding="utf-8"))
    assert result == found["analysis"]
    (target,) = result["results"]
    unknown = ["OP/ai.onnx/Pow", "OP/ai.onnx/Mul", "OP/ai.onnx/Add", "OP/ai.onnx/Tanh"]
    assert target["classification"] == {"supported": [], "partial": [], "unsupported": [], "unknown": unknown}
    # As in winml-cli's own example: unknown operators are no warning.
    assert (target["runtime_support"], target["has_errors"], target["has_warnings"]) == (False, False, False)
    assert found["targets"][0]["proposed"] == {}
    (notice,) = found["notices"]
    assert "There is no table of what" in notice
    assert notice in " ".join(shared.says("analyze", "gelu.onnx", "--ep", ep, code=1).split())


def test_proposed_optimizations_are_written_as_optimize_config(shared: Project, analyzed: Analyze) -> None:
    found = analyzed(1, "gelu.onnx", "--ep", "qnn", "--optim-config", "optim.json")
    assert found["targets"][0]["proposed"].keys() == {"gelu_fusion"}
    assert json.loads((shared.folder / "optim.json").read_text(encoding="utf-8")) == {"optim": {"gelu_fusion": True}}
    shared.says("optimize", "-m", "gelu.onnx", "-c", "optim.json", "-o", "fused.onnx", "--quiet")
    assert analyzed(0, "fused.onnx", "--ep", "qnn")["targets"][0]["proposed"] == {}


def test_non_standard_operator_is_tested_once_and_cached(analyzed: Analyze) -> None:
    asked = analyzed(0, "unknown.onnx")
    assert asked["targets"][0]["nodes"] == {"supported": 2, "partial": 0, "unsupported": 0, "unknown": 0}
    again = analyzed(0, "unknown.onnx", "--run-unknown-op")
    assert (again["analyzed"], again["made_at"]) == ("cached", asked["made_at"])


def test_saved_nodes_are_runnable_models(shared: Project, analyzed: Analyze) -> None:
    found = analyzed(1, "gelu.onnx", "--ep", "qnn", "--save-node", "partial")
    (path,) = found["saved_nodes"]
    assert Path(path).name == "001_partial_Tanh.onnx"
    model = onnx.load(shared.folder / path)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Tanh"]
    onnxruntime.InferenceSession(shared.folder / path, providers=["CPUExecutionProvider"])
    assert analyzed(1, "gelu.onnx", "--ep", "qnn", "--save-node", "partial")["saved_nodes"] == [path]
    # Lint alone needs no table.
    assert analyzed(0, "model.onnx", "--ep", "vitisai", "--no-information")["analysis"]["lint"]["passed"] is True


@pytest.mark.parametrize(
    ("code", "arguments", "words"),
    [
        (2, ("model.onnx", "--ep", "all", "-d", "gpu"), "There are tables for: "),
        (2, ("model.onnx", "--no-information", "--run-unknown-op"), "--run-unknown-op"),
        (2, ("model.onnx", "--ep", "vitisai", "--run-unknown-op"), "is not installed here"),
        (2, ("model.onnx", "--ep", "all", "--optim-config", "optim.json", "-o", "never.json"), "one target"),
        (2, ("model.onnx", "--ep", "all", "--save-node", "unknown", "-o", "never.json"), "one target"),
        (2, ("model.onnx", "-o", "kept.json"), "is in the way"),
        (2, ("model.onnx", "-o", "model.onnx", "--overwrite"), "is the model that is read"),
        (2, ("model.onnx", "--ep", "qnn", "-o", "one.json", "--optim-config", "./one.json"), "named twice"),
        (1, ("model.onnx", "-o", "model.onnx/one.json"), "cannot be written"),
        (1, ("gelu.onnx", "--ep", "qnn", "--save-node", "partial", "--save-dir", "model.onnx"), "cannot be written"),
        (3, ("missing.onnx",), "missing.onnx"),
    ],
)
def test_invalid_analyze_arguments_are_refused(
    shared: Project, analyzed: Analyze, code: int, arguments: tuple[str, ...], words: str
) -> None:
    found = analyzed(code, *arguments)
    assert found["success"] is False
    assert words in found["errors"][0]
    assert onnx.load(shared.folder / "model.onnx").graph.node
    assert not (shared.folder / "never.json").exists()
