"""``winml-dag perf``: a model file, an output folder and a recipe; live, cached, and written to a folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from scenario import Project, needs_qnn

from winml_dag.configuration import ENVIRONMENTS_VARIABLE
from winml_dag.ep.registry import QNN, Target, is_emulated
from winml_dag.stages.perf.latency import EMULATED

pytestmark = pytest.mark.slow

OPENVINO = Path(__file__).parents[2] / ".venv-openvino"

# The minimum that gives a result: the numbers do not matter here.
FEW = ("--loads", "1", "--warmup", "1", "--iterations", "3")


def test_model_is_measured_once_and_then_cached(shared: Project) -> None:
    """In a separate process, as for users."""
    first = shared.with_processes().told("perf", "model.onnx", *FEW)
    again = shared.told("perf", "-m", "model.onnx", *FEW)

    assert (first["measured"], again["measured"]) == ("live", "cached")
    same = {"measured": "", "elapsed_seconds": 0}
    assert {**first, **same} == {**again, **same}
    assert (first["execution_provider"], first["precision"]) == ("CPUExecutionProvider", "fp32")
    assert first["latency_ms"]["inferences"] == 3
    assert 0 < first["latency_ms"]["min"] <= first["latency_ms"]["p50"] <= first["latency_ms"]["max"]
    assert 0 < first["load"]["seconds"] == first["load"]["each_seconds"][0]
    assert first["inputs"] == [{"name": "x", "dtype": "float32", "shape": [4, 64]}]
    # Nothing says that the first of its fixed sizes is a batch.
    assert first["throughput"]["samples_per_second"] == pytest.approx(first["throughput"]["inferences_per_second"])
    four = shared.told("perf", "model.onnx", *FEW, "--batch-size", "4")["throughput"]
    assert four["samples_per_second"] == pytest.approx(4 * four["inferences_per_second"])
    assert first["memory_bytes"]["peak"] > 1 << 20
    assert first["baseline"] is first["baseline_model"] is None

    text = shared.says("perf", "model.onnx", *FEW)
    assert "cached, measured 20" in text
    assert f"p50 {first['latency_ms']['p50']:.4g}" in text


def test_report_is_written_and_foreign_file_is_not_overwritten(shared: Project, tmp_path: Path) -> None:
    data = tmp_path / "inputs.npz"
    np.savez(data, x=np.ones((5, 4, 64), np.float32))
    arguments = ("model.onnx", *FEW, "--input-data", str(data), "-o", str(tmp_path / "put"))

    told = shared.told("perf", *arguments, "--threads", "1")
    report = json.loads(Path(told["report"]).read_text(encoding="utf-8"))
    assert len(report["latencies_ns"]) == 3
    assert report["latency_ms"] == told["latency_ms"]
    assert (report["data"], report["feeds"], report["threads"]) == ("npz", 5, 1)
    assert Path(told["picture"]).read_bytes().startswith(b"\x89PNG")

    Path(told["report"]).write_text("mine")
    assert "perf.json is in the way" in shared.refused("perf", *arguments, "--threads", "1")
    assert Path(told["report"]).read_text() == "mine"


@needs_qnn
def test_compiled_model_of_recipe_is_compared_with_uncompiled(shared: Project) -> None:
    recipe = {
        "model": "model.onnx",
        "ep": "qnn",
        "precision": "w8a8",
        "quant": {"samples": 1},
        "validate": {"samples": 1},
        "output_dir": "built",
        "perf": {"warmup": 0, "iterations": 50, "loads": 1},
    }
    shared.recipe_file.write_text(yaml.safe_dump(recipe), encoding="utf-8")

    told = shared.told("perf", "-c", "recipe.yaml", "--iterations", "2")
    assert (told["measured"], told["precision"]) == ("live", "w8a8")
    assert (told["iterations"], told["warmup"]) == (2, 0), "the call's word before the recipe's"
    assert told["baseline_model"].endswith("quantized.onnx")
    seconds = [told["baseline"]["load"]["seconds"], told["load"]["seconds"]]
    assert told["baseline"]["times_longer"] == pytest.approx(seconds[0] / seconds[1])
    assert told["assigned_nodes"]["QNNExecutionProvider"] == {"EPContext": 1}
    assert told["provider_options"]["soc_model"] == "60"
    emulated = is_emulated(Target(QNN, "npu"))
    assert (EMULATED in told["notices"]) is emulated

    for quiet in ((), ("-q",)):
        of_folder = shared.says("perf", "built", "--warmup", "0", "--iterations", "2", "--loads", "1", *quiet)
        assert ("cached" in of_folder) is (not quiet)
        assert (f"note: {EMULATED}" in of_folder) is emulated


@pytest.mark.skipif(not (OPENVINO / "with-openvino").is_file(), reason="make ep-openvino has not made its environment")
def test_provider_is_measured_in_its_environment(shared: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENTS_VARIABLE, f"openvino={OPENVINO}")

    told = shared.told("perf", "model.onnx", *FEW, "--ep", "openvino", "--device", "cpu")
    assert told["execution_provider"] == "OpenVINOExecutionProvider"
    assert list(told["assigned_nodes"]) == ["OpenVINOExecutionProvider"]
    assert told["onnxruntime"] == told["toolchain"]["onnxruntime-openvino"]
    assert told["load"]["import_seconds"] > 0


def test_unloadable_model_is_reported_with_reason(shared: Project, tmp_path: Path) -> None:
    model = onnx.load(shared.folder / "model.onnx")
    model.graph.node[2].op_type = "Elu"
    model.graph.node[2].domain = "somebody.else"
    model.opset_import.add(domain="somebody.else", version=1)
    onnx.save(model, tmp_path / "strange.onnx")

    said = shared.says("perf", str(tmp_path / "strange.onnx"), *FEW, code=1)
    assert "perf failed: CPUExecutionProvider cannot load the model: " in said
    assert "full log:" in said
    said = shared.says("perf", "model.onnx", "--baseline", str(tmp_path / "strange.onnx"), *FEW, code=1)
    assert "perf failed: CPUExecutionProvider cannot load the baseline: " in said
    assert "export.onnx" not in said, "the user has no such file"


@pytest.mark.parametrize(
    ("arguments", "code", "wrong"),
    [
        ((), 2, "No model is given"),
        (("none.onnx",), 3, "none.onnx does not exist"),
        (("model.onnx", "-m", "other.onnx"), 2, "are 2 models"),
        (("model.onnx", "--iterations", "1", "--duration", "1"), 2, "say both when to end"),
        (("model.onnx", "--batch-size", "3"), 2, "A batch of 3 does not fit"),
        (("model.onnx", "--ep", "migraphx"), 2, "MIGraphXExecutionProvider is not installed here"),
    ],
)
def test_invalid_perf_arguments_are_refused(shared: Project, arguments: tuple[str, ...], code: int, wrong: str) -> None:
    assert wrong in shared.refused("perf", *arguments, code=code)
