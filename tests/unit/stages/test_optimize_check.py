"""A check reports what optimizing then does, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from capability_samples import SAMPLES
from optimize_samples import graph

from winml_dag.cli import run
from winml_dag.errors import StageError
from winml_dag.onnxmodel.graph import NodeName
from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.check import Change, changes, optional_capabilities

MODEL = """agraph (float[2, 8] x) => (float[2, 8] y) <float low = {-3.4e38}, float k = {1.702}> {
    [first] a = Max(x, low) [scale] m = Mul(a, k) [gate] s = Sigmoid(m) [out] y = Mul(a, s)
}"""


def _model(folder: Path) -> Path:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {MODEL}')
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def _changes(folder: Path, *names: str, standard_domain_only: bool = False) -> list[Change]:
    (folder / "scratch").mkdir(exist_ok=True)
    target = OptimizeTarget(standard_domain_only)
    return list(changes(_model(folder), names, target, folder / "scratch"))


def test_changed_nodes_and_constants_are_named(tmp_path: Path) -> None:
    clamp, quick = _changes(tmp_path, "clamp_constant_values", "quick_gelu_fusion")
    assert clamp == Change("clamp_constant_values", 1, constants=("low",))
    assert quick.places == 1
    assert quick.before == (NodeName("Mul", "scale"), NodeName("Sigmoid", "gate"), NodeName("Mul", "out"))
    assert [node.operator for node in quick.after] == ["com.microsoft/QuickGelu"]


def test_change_unsupported_by_target_is_not_applied(tmp_path: Path) -> None:
    [quick] = _changes(tmp_path, "quick_gelu_fusion", standard_domain_only=True)
    assert quick.places == 0
    assert "ONNX standard only" in quick.left


def test_default_capability_is_reported_when_requested(tmp_path: Path) -> None:
    model = graph("agraph (float[2, 8] x) => (float[2, 8] y) <float[8] p = {1, 2, 3, 4, 5, 6, 7, 8}> "
                  "{ c = Exp(p) y = Mul(x, c) }", 17)  # fmt: skip
    onnx.save(model, tmp_path / "folded.onnx")
    [folding] = changes(tmp_path / "folded.onnx", ["constant_folding"], OptimizeTarget(), tmp_path)
    assert folding.on
    assert [node.operator for node in folding.before] == ["Exp"]
    assert "constant_folding" not in optional_capabilities()


def test_check_finds_changes_of_representative_samples(tmp_path: Path) -> None:
    """A combined model would hide some; a few represent the rest."""
    for name in ("prelu_to_relu", "gather_slice_to_split_fusion", "matmuladd_conv2d2d"):
        onnx.save(SAMPLES[name].model, tmp_path / "sample.onnx")
        [found] = changes(tmp_path / "sample.onnx", [name], OptimizeTarget(), tmp_path)
        assert found.places > 0
        made = {node.operator for node in found.after}
        assert made <= SAMPLES[name].made.keys() | {"Transpose"}


def test_quantized_model_is_refused(tmp_path: Path) -> None:
    model = graph("""agraph (float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {0}>
        { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }""")
    onnx.save(model, tmp_path / "quantized.onnx")
    with pytest.raises(StageError, match="quantized already"):
        list(changes(tmp_path / "quantized.onnx", optional_capabilities(), OptimizeTarget(), tmp_path))


class TestCommand:
    def test_cli_lists_all_changes_and_writes_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = _model(tmp_path).read_bytes()
        assert run(["optimize", "-m", str(tmp_path / "model.onnx"), "--check-optim"]) == 0
        said = capsys.readouterr().out
        assert "clamp_constant_values: changes 1 place\n  ~ 1 constant: low\n" in said
        assert "  - 2 Mul: scale, out\n  - 1 Sigmoid: gate\n  + 1 com.microsoft/QuickGelu:" in said
        assert said.endswith("2 capabilities would change the model; nothing was written.\n")
        assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
        assert (tmp_path / "model.onnx").read_bytes() == before

    def test_cli_checks_named_capabilities_as_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["--check-optim", "--enable", "Clamp-Constant-Values", "--enable-gelu-fusion", "--format", "json"]
        assert run(["optimize", "-m", str(_model(tmp_path)), *arguments, "--ep", "qnn"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["standard_domain_only"]
        assert {each["name"]: each["places"] for each in found["capabilities"]} == {
            "clamp_constant_values": 1,
            "gelu_fusion": 0,
        }

    def test_cli_reports_error_as_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["--check-optim", "--enable", "gelu_fusionn", "--format", "json"]
        assert run(["optimize", "-m", str(_model(tmp_path)), *arguments]) == 2
        [error] = json.loads(capsys.readouterr().out)["errors"]
        assert "gelu_fusion" in error

    def test_cli_lists_the_capability_catalog(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["optimize", "--list-capabilities", "--format", "json"]) == 0
        found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["capabilities"]}
        assert found["bias_gelu_fusion"]["needs"] == ["gelu_fusion"]
        assert found["bias_gelu_fusion"]["domain"] == "com.microsoft"
        assert found["constant_folding"]["default"]
        assert found["nchwc_transformer"]["left"]
        assert run(["optimize", "--list-capabilities"]) == 0
        text = capsys.readouterr().out
        assert all(f"{name}  [" in text for name in found)
