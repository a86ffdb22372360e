"""`config` writes a recipe with every field filled in, equal to the build with the options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from oneprocess import OneProcess
from onnx_samples import perceptron
from scenario import Project

from winml_dag.recipe.load import load_recipe

TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 50,
    "max_position_embeddings": 16,
}


class Config(Project):
    def keys(self, *arguments: str) -> dict[str, Any]:
        """Return key and status of each stage of a plan."""
        stages = self.told("plan", *arguments)["builds"][0]["stages"]
        return {stage["id"]: (stage["cache_key"], stage["status"]) for stage in stages}


@pytest.fixture
def config(tmp_path: Path, commands: OneProcess) -> Config:
    return Config(tmp_path, commands)


def test_written_config_builds_like_options(config: Config) -> None:
    perceptron(config.folder / "model.onnx")
    target = ("--ep", "qnn", "-p", "w8a16", "--no-compile", "--no-validate")
    told = config.says("config", "--onnx", "model.onnx", *target, "-o", "recipes/model.yaml")
    assert "winml-dag build -c recipes/model.yaml -o OUT" in told
    written = load_recipe(config.folder / "recipes" / "model.yaml").recipe
    assert written.model == "../model.onnx"
    assert written.quant is not None
    assert (written.quant.weight_type, written.quant.activation_type) == ("uint8", "uint16")
    assert config.keys("-c", "recipes/model.yaml") == config.keys("--onnx", "model.onnx", *target)


def test_config_spells_out_tensors_of_architecture(config: Config) -> None:
    """The resulting model is the same, byte for byte."""
    (config.folder / "tiny.json").write_text(
        json.dumps({"loader": {"model_type": "bert", "random_weights": {"config": TINY}}}), encoding="utf-8"
    )
    (config.folder / "sizes.json").write_text('{"sequence_length": 8, "batch_size": 2}', encoding="utf-8")
    options = ("-c", "tiny.json", "-t", "fill-mask", "--shape-config", "sizes.json", "--ep", "cpu")
    config.says("config", *options, "-o", "whole.json")
    export = config.json("whole.json")["export"]
    text = {"dtype": "int32", "shape": [2, 8]}
    assert export["input_tensors"] == [
        {"name": "input_ids", **text, "value_range": [0, 50]},
        {"name": "attention_mask", **text, "value_range": [0, 2]},
        {"name": "token_type_ids", **text, "value_range": [0, 2]},
    ]
    assert export["output_tensors"] == [{"name": "logits"}]
    exported = ("-c", "tiny.json", "-t", "fill-mask", "--shape-config", "sizes.json")
    config.says("export", *exported, "-o", "one.onnx", "-q")
    keys = config.keys("-c", "whole.json")
    assert keys["export"][1] == "ran"  # its config is worded differently
    config.says("export", "-c", "whole.json", "-o", "other.onnx", "-q")
    one, other = ((config.folder / name).read_bytes() for name in ("one.onnx", "other.onnx"))
    assert one == other


def test_config_without_model_fits_any_model_of_architecture(config: Config) -> None:
    any_resnet = ("--model-type", "resnet", "-t", "image-classification", "-p", "fp16")
    told = config.says("config", *any_resnet, "-o", "resnet.yaml")
    assert "winml-dag build -c resnet.yaml -m MODEL -o OUT" in told
    recipe = yaml.safe_load((config.folder / "resnet.yaml").read_text(encoding="utf-8"))
    assert "model" not in recipe
    assert recipe["loader"] == {"model_type": "resnet", "task": "image-classification", "trust_remote_code": False}
    assert recipe["quant"]["mode"] == "fp16"
    assert "rtn_bits" not in recipe["quant"]
    assert [tensor["name"] for tensor in recipe["export"]["input_tensors"]] == ["pixel_values"]


def test_existing_config_file_is_kept(config: Config) -> None:
    perceptron(config.folder / "model.onnx")
    (config.folder / "mine.yaml").write_text("mine", encoding="utf-8")
    assert "mine.yaml already exists" in config.says("config", "--onnx", "model.onnx", "-o", "mine.yaml", code=2)
    assert (config.folder / "mine.yaml").read_text(encoding="utf-8") == "mine"
    config.says("config", "--onnx", "model.onnx", "-o", "mine.yaml", "--overwrite")
    assert "cannot be written" in config.refused("config", "--onnx", "model.onnx", "-o", "mine.yaml/a.json", code=1)
    assert load_recipe(config.folder / "mine.yaml").recipe.model == "model.onnx"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--model-type", "bert"), 2, "Neither the recipe nor the model says"),
        (("-m", "none.onnx"), 3, "none.onnx"),
        (("--model-type", "resnet", "-t", "image-classification", "-o", "recipe.txt"), 2, "ends with .yaml or .json"),
        (
            ("--model-type", "bert", "-t", "fill-maks"),
            2,
            "There is no task 'fill-maks'",
        ),
        ((), 2, "No model is named"),
    ],
)
def test_undecidable_config_is_refused_as_json(
    config: Config, arguments: tuple[str, ...], code: int, words: str
) -> None:
    assert words in config.refused("config", *arguments, code=code)
