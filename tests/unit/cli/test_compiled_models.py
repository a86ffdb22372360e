"""An already compiled model is for the provider that its EPContext nodes name, with every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import helper
from tiny_builds import save_model

from winml_dag.ep.providers.openvino import OPENVINO
from winml_dag.ep.providers.vitisai import VITISAI
from winml_dag.ep.registry import QNN
from winml_dag.recipe.load import load_recipe

AS_IT_IS = ("--no-optimize", "--no-analyze")


@pytest.fixture(autouse=True)
def models(folder: Path) -> None:
    """Compiled models for each of several providers in the current folder."""
    for name, source in (("qnn", "QNN"), ("openvino", OPENVINO.name), ("other", "OtherProvider"), ("nobody", "")):
        named = {"source": source} if source else {}
        node = helper.make_node(
            "EPContext", ["x"], ["y"], domain="com.microsoft", ep_cache_context=b"binary", embed_mode=1, **named
        )
        save_model(folder / f"{name}.onnx", node)


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
def test_modifying_compiled_model_is_refused_with_its_provider(command: str, done: str, ep, says) -> None:
    before = sorted(Path().iterdir())
    said = says(*command.format(f"{ep.alias}.onnx").split(), code=2)
    sentence = f"{ep.alias}.onnx is a compiled model: its EPContext nodes hold the binary of {ep.name}, which cannot"
    assert f"{sentence} be {done}. Use the ONNX model that it was compiled from." in said
    assert sorted(path for path in Path().iterdir() if path.name != "cache") == before


@pytest.mark.parametrize("ep", [QNN, OPENVINO])
def test_unmodified_compiled_model_builds_for_its_provider(ep, says) -> None:
    says("build", "--onnx", f"{ep.alias}.onnx", "-o", "out", *AS_IT_IS, "--no-validate")
    manifest = json.loads(Path("out/build_manifest.json").read_text(encoding="utf-8"))
    assert (manifest["execution_provider"], manifest["device"]) == (ep.name, "npu")
    left_out = {stage["name"]: stage.get("reason") for stage in manifest["stages"] if stage["status"] == "skipped"}
    assert left_out["quantize"] == left_out["compile"] == f"{ep.alias}.onnx is compiled already"


def test_config_of_compiled_model_names_its_provider_and_builds(says) -> None:
    says("config", "--onnx", "qnn.onnx", *AS_IT_IS, "--no-validate", "-o", "recipe.yaml")
    recipe = load_recipe(Path("recipe.yaml")).recipe
    assert (recipe.ep, recipe.device, recipe.quant) == ("qnn", "npu", None)
    says("build", "-c", "recipe.yaml", "-o", "out")


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
def test_compiled_model_for_other_provider_is_refused(command: str, target: tuple[str, ...], says) -> None:
    said = says(*command.split(), *target, code=2)
    assert "qnn.onnx is compiled for QNNExecutionProvider and runs nowhere else. For another provider, give" in said


@pytest.mark.parametrize(("given", "device"), [("gpu", "gpu"), ("auto", "npu"), ("qnn", "npu")])
def test_compiled_model_is_built_for_named_device_of_its_provider(given: str, device: str, says) -> None:
    says("config", "--onnx", "qnn.onnx", *AS_IT_IS, "--no-validate", "--device", given, "-o", "recipe.yaml")
    recipe = load_recipe(Path("recipe.yaml")).recipe
    assert (recipe.ep, recipe.device) == ("qnn", device)
    says("plan", "-c", "recipe.yaml", "-o", "out")


@pytest.mark.parametrize(("model", "named"), [("other.onnx", "'OtherProvider'"), ("nobody.onnx", "none")])
@pytest.mark.parametrize("command", ["build --onnx {} -o out --no-optimize", "config --onnx {}", "validate {}"])
def test_compiled_model_of_unknown_provider_is_refused(command: str, model: str, named: str, says) -> None:
    said = says(*command.format(model).split(), code=3)
    assert f"{model} is compiled, and its EPContext nodes have to name one known execution provider" in said
    assert f"they name {named}." in said
