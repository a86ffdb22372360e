"""An already compiled model is for the provider that its EPContext nodes name, with every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from winml_dag.cli import run
from winml_dag.ep.providers.openvino import OPENVINO
from winml_dag.ep.providers.vitisai import VITISAI
from winml_dag.ep.registry import QNN
from winml_dag.recipe.load import load_recipe

Told = Callable[..., tuple[int, str]]

AS_IT_IS = ("--no-optimize", "--no-analyze")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command in a folder with compiled models, and returns its exit code and stderr."""
    monkeypatch.chdir(tmp_path)
    for name, source in (("qnn", "QNN"), ("openvino", OPENVINO.name), ("other", "OtherProvider"), ("nobody", "")):
        compiled(tmp_path / f"{name}.onnx", source)

    def call(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run([*arguments, "--cache-dir", "cache"])
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out
        return code, said.err

    return call


def compiled(path: Path, source: str) -> None:
    value, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy")
    named = {"source": source} if source else {}
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", ep_cache_context=b"binary", embed_mode=1, **named
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(helper.make_graph([node], "g", [value], [result]), opset_imports=opsets), path)


@pytest.mark.parametrize(
    ("command", "done"),
    [
        ("build --onnx {} -o out", "optimized"),
        ("plan --onnx {} -o out", "optimized"),
        ("config --onnx {} -o recipe.yaml", "optimized"),
        ("config --onnx {} --no-optimize -p w8a16 -o recipe.yaml", "quantized"),
        ("build --onnx {} -o out --no-optimize --compile", "compiled again"),
        ("optimize -m {}", "optimized"),
        ("calibrate -m {}", "calibrated"),
        ("quantize -m {}", "quantized"),
        ("compile -m {}", "compiled again"),
    ],
)
@pytest.mark.parametrize("ep", [QNN, OPENVINO])
def test_a_command_that_would_change_it_names_whose_binary_it_is(told: Told, command: str, done: str, ep) -> None:
    before = sorted(Path().iterdir())
    code, said = told(*command.format(f"{ep.alias}.onnx").split())
    assert code == 2
    sentence = f"{ep.alias}.onnx is a compiled model: its EPContext nodes hold the binary of {ep.name}, which cannot"
    assert f"{sentence} be {done}. Use the ONNX model that it was compiled from." in said
    assert sorted(path for path in Path().iterdir() if path.name != "cache") == before


@pytest.mark.parametrize("ep", [QNN, OPENVINO])
def test_a_build_that_leaves_it_as_it_is_is_one_for_its_provider(told: Told, ep) -> None:
    code, said = told("build", "--onnx", f"{ep.alias}.onnx", "-o", "out", *AS_IT_IS, "--no-validate")
    assert code == 0, said
    manifest = json.loads(Path("out/build_manifest.json").read_text(encoding="utf-8"))
    assert (manifest["execution_provider"], manifest["device"]) == (ep.name, "npu")
    left_out = {stage["name"]: stage.get("reason") for stage in manifest["stages"] if stage["status"] == "skipped"}
    assert left_out["quantize"] == left_out["compile"] == f"{ep.alias}.onnx is compiled already"


def test_the_recipe_of_such_a_build_is_for_its_provider_and_can_be_built(told: Told) -> None:
    assert told("config", "--onnx", "qnn.onnx", *AS_IT_IS, "--no-validate", "-o", "recipe.yaml")[0] == 0
    recipe = load_recipe(Path("recipe.yaml")).recipe
    assert (recipe.ep, recipe.device, recipe.quant) == ("qnn", "npu", None)
    code, said = told("build", "-c", "recipe.yaml", "-o", "out")
    assert code == 0, said


@pytest.mark.parametrize(
    "command",
    [
        "build --onnx qnn.onnx -o out --no-optimize --no-analyze",
        "plan --onnx qnn.onnx -o out --no-optimize --no-analyze",
        "config --onnx qnn.onnx --no-optimize --no-analyze",
        "compile -m qnn.onnx",
        "validate qnn.onnx",
        "perf qnn.onnx",
        "eval -m qnn.onnx --mode compare",
    ],
)
@pytest.mark.parametrize("target", [("--ep", "cpu"), ("--device", "gpu", "--ep", "openvino"), ("--ep", VITISAI.alias)])
def test_another_provider_is_refused_before_anything_runs(told: Told, command: str, target: tuple[str, ...]) -> None:
    code, said = told(*command.split(), *target)
    assert code == 2
    assert "qnn.onnx is compiled for QNNExecutionProvider and runs nowhere else. For another provider, give" in said


def test_another_device_of_its_provider_is_no_other_provider(told: Told) -> None:
    for target in (("--device", "gpu"), ("--device", "auto"), ("--device", "qnn")):
        code, said = told("build", "--onnx", "qnn.onnx", "-o", "out", *AS_IT_IS, "--no-validate", *target)
        assert code == 0, said


@pytest.mark.parametrize(("model", "named"), [("other.onnx", "'OtherProvider'"), ("nobody.onnx", "none")])
@pytest.mark.parametrize("command", ["build --onnx {} -o out --no-optimize", "config --onnx {}", "validate {}"])
def test_a_binary_of_nobody_known_is_refused(told: Told, command: str, model: str, named: str) -> None:
    code, said = told(*command.format(model).split())
    assert code == 3
    assert f"{model} is compiled, and its EPContext nodes have to name one known execution provider" in said
    assert f"they name {named}." in said
