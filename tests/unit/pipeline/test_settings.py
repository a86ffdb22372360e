"""``winml_build_config.json`` is a recipe for the same build: same stages, same keys, from its own folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from pipeline_samples import save_compiled_model

from winml_dag.engine.stage import Node
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.plan import plan_build
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.resolve import build_of
from winml_dag.store.store import Store

RANDOM = {"task": "text-classification", "model_type": "bert", "random_weights": {"config": {"hidden_size": 32}}}

RECIPES = {
    "nothing but a model": {"loader": RANDOM},
    "a precision for an NPU": {"loader": RANDOM, "ep": "qnn", "precision": "w8a16"},
    "float16": {"loader": RANDOM, "precision": "fp16"},
    "two quantizations": {"loader": RANDOM, "precision": "w4a16"},
    "quantized while compiling": {
        "loader": RANDOM,
        "compile": {"execution_provider": "qnn", "quant_config": {"weight_type": "int8", "per_channel": True}},
    },
    "the nested form": {"loader": RANDOM, "compile": {"ep_config": {"provider": "qnn", "embed_context": True}}},
    "an option that names a file": {
        "loader": RANDOM,
        "ep": "qnn",
        "compile": {"provider_options": {"op_affinity": "files/affinity.json", "soc_model": "57"}},
    },
    "a folder and data": {"model": "model", "precision": "int8", "quant": {"calibration_data": "data.npz"}},
    "inputs to validate on": {"loader": RANDOM, "validate": {"input_data": "data.npz", "min_sqnr_db": 9}},
    "a script of one's own": {"loader": {"user_script": "files/mine.py", "task": "feature-extraction"}},
    "everything off": {"loader": RANDOM, "skip_optimize": True, "quant": None, "compile": None},
    "inputs of one's own": {
        "loader": RANDOM,
        "export": {
            "opset_version": 17,
            "input_tensors": [{"name": "input_ids", "dtype": "int64", "shape": ["batch", 8], "value_range": [0, 9]}],
            "dynamic_axes": {"input_ids": {"0": "batch"}},
        },
        "optim": {"gelu_fusion": True, "clamp_constant_values": False},
    },
}


COMMAND_LINES = {
    "validation switched off": ({"loader": RANDOM}, Overrides(validate=False)),
    "validation switched on": ({"loader": RANDOM, "validate": {"enabled": False}}, Overrides(validate=True)),
    "validation on against the compile section": (
        {"loader": RANDOM, "ep": "qnn", "compile": {"validate": False}},
        Overrides(validate=True),
    ),
    "off in a section of what is not compiled": (
        {"loader": RANDOM, "ep": "qnn", "compile": {"validate": False}},
        Overrides(compile=False),
    ),
    "an option for sessions": (
        {"loader": RANDOM, "ep": "qnn", "compile": {"provider_options": {"htp_performance_mode": "balanced"}}},
        Overrides(onnx=Path("compiled.onnx"), compile=False, optimize=False, settings={"compile": {"soc_model": "57"}}),
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "affinity.json").write_text("{}", encoding="utf-8")
    (tmp_path / "files" / "mine.py").write_text("", encoding="utf-8")
    (tmp_path / "data.npz").write_bytes(b"data")
    save_compiled_model(tmp_path / "compiled.onnx")
    (tmp_path / "model").mkdir()
    config = {"model_type": "bert", "architectures": ["BertModel"]}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def nodes(planned: BuildGraph) -> list[Node]:
    """Return the nodes of *planned* with sources by content: a model's name depends on the folder it is relative to."""
    digests = {name: artifact.digest for name, artifact in planned.sources.items()}
    return [
        replace(node, inputs={slot: digests.get(name, name) for slot, name in node.inputs.items()})
        for node in planned.graph.nodes
    ]


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [*((recipe, Overrides()) for recipe in RECIPES.values()), *COMMAND_LINES.values()],
    ids=[*RECIPES, *COMMAND_LINES],
)
def test_build_from_its_settings_is_identical(folder: Path, recipe: dict[str, object], overrides: Overrides) -> None:
    store = Store(folder / "cache")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    # The settings include what a search discovers, and the search is not repeated.
    overrides = replace(overrides, analyze=False)
    first = build_of(Request(Path("recipe.yaml"), overrides, Path("out")), store.folder, download=False)
    (folder / "out").mkdir()
    settings = folder / "out" / "winml_build_config.json"
    settings.write_text(json.dumps(first.summary.settings), encoding="utf-8")
    second = build_of(Request(settings, Overrides(), Path("elsewhere")), store.folder, download=False)
    one, other = plan_build(first, store.fingerprints), plan_build(second, store.fingerprints)
    assert nodes(one) == nodes(other)
    assert one.steps[:1] == other.steps[:1]
    assert first.summary.precision == second.summary.precision
    # Its own settings are the same again, relative to the other folder.
    paths = ("model", "quant", "compile")
    assert {k: v for k, v in first.summary.settings.items() if k not in paths} == {
        k: v for k, v in second.summary.settings.items() if k not in paths
    }


def test_settings_include_command_line(folder: Path) -> None:
    overrides = Overrides(model="model", precision="w8a16", device="npu", optimize=False)
    build = build_of(Request(None, overrides, Path("out")), folder / "cache", download=False)
    settings = build.summary.settings
    assert settings["model"] == "../model"
    assert settings["ep"] == "qnn"
    assert settings["skip_optimize"] is True
    assert settings["compile"] is not None
    left_out = build_of(Request(None, replace(overrides, compile=False), Path("out")), folder / "cache", download=False)
    assert left_out.summary.settings["compile"] is None
    quant = settings["quant"]
    assert isinstance(quant, dict)
    assert (quant["weight_type"], quant["activation_type"]) == ("uint8", "uint16")
