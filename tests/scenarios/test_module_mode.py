"""Module mode: a recipe file that lists modules of one model, each of which becomes a separate build.

The model is the BERT of the other scenarios, whose weights are on disk. It is exported once. Tests of export compare a
module's outputs with PyTorch's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from oneprocess import OneProcess
from onnx import numpy_helper
from scenario import Project


def item(place: int, **sections: Any) -> dict[str, Any]:
    """Return the recipe of one layer, as winml-cli's `config --module` writes it, with as few stages as possible."""
    return {
        "loader": {"model_type": "bert", "model_class": "BertLayer", "module_path": f"bert.encoder.layer.{place}"},
        "export": {
            "opset_version": 17,
            "dynamo": False,
            "input_tensors": [{"name": "hidden_states", "dtype": "float32", "shape": [1, 4, 32]}],
            "output_tensors": [{"name": "output_0"}],
        },
        "optim": {},
        "quant": None,
        "compile": None,
        "auto": False,
        "skip_optimize": True,
        **sections,
    }


AS_FLOAT16 = {"mode": "fp16"}
OPTIONS = ("-c", "modules.json", "-m", "model", "-o", "out", "--no-validate", "--no-analyze")


def write(project: Project, *items: Mapping[str, Any]) -> None:
    (project.folder / "modules.json").write_text(json.dumps(items), encoding="utf-8")


def ran(told: Mapping[str, Any]) -> list[list[str]]:
    """Return the stages that ran, for each module."""
    return [[stage["stage"] for stage in cell["stages"] if stage["status"] == "ran"] for cell in told["cells"]]


@pytest.fixture(scope="module")
def built(
    built_project: Project, tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None
) -> tuple[Project, dict[str, Any]]:
    """The second layer built from one list, as it is, in float16, and as it is again; and the output of the build."""
    project = Project(tmp_path_factory.mktemp("modules"), commands)
    shutil.copytree(built_project.folder / "model", project.folder / "model")
    write(project, item(1), item(1, quant=AS_FLOAT16), item(1))
    return project, project.told("build", *OPTIONS)


@pytest.fixture
def modules(built: tuple[Project, dict[str, Any]], tmp_path: Path, commands: OneProcess | None) -> Project:
    """A copy of the built project for one test; its first build finds everything in the cache."""
    shutil.copytree(built[0].folder, tmp_path / "project")
    return Project(tmp_path / "project", commands)


def test_module_list_builds_each_module_and_shares_work(built: tuple[Project, dict[str, Any]]) -> None:
    from safetensors.numpy import load_file

    project, told = built
    assert [cell["name"] for cell in told["cells"]] == ["BertLayer_0", "BertLayer_1", "BertLayer_2"]
    assert ran(told) == [["export", "finalize"], ["quantize", "finalize"], []]
    assert told["failed"] == []

    summary = project.json("out", "module_summary.json")
    assert (summary["model_id"], summary["module_class"], summary["instance_count"]) == ("model", "BertLayer", 3)
    saved = load_file(project.folder / "model" / "model.safetensors")
    layers = [saved[f"bert.encoder.layer.{place}.intermediate.dense.weight"].T for place in (0, 1)]
    for instance in summary["instances"]:
        assert (instance["class_name"], instance["module_path"]) == ("BertLayer", "bert.encoder.layer.1")
        assert instance["build_elapsed_s"] > 0
        assert instance["error"] is None
        model = onnx.load(project.folder / instance["output_dir"] / "model.onnx")
        weights = [numpy_helper.to_array(each).astype(np.float32) for each in model.graph.initializer]
        has = [any(of.shape == each.shape and np.allclose(each, of, atol=1e-3) for each in weights) for of in layers]
        assert has == [False, True]


def test_unchanged_modules_are_untouched_and_edit_reaches_one_item(modules: Project) -> None:
    modules.says("build", *OPTIONS)
    before = {path: path.stat().st_mtime_ns for path in modules.out.rglob("*") if path.is_file()}
    assert "3 up to date" in modules.says("build", *OPTIONS)
    assert {path: path.stat().st_mtime_ns for path in modules.out.rglob("*") if path.is_file()} == before
    write(modules, item(1), item(1, quant={**AS_FLOAT16, "fp16_keep_io_types": False}), item(1))
    assert ran(modules.told("build", *OPTIONS)) == [[], ["quantize", "finalize"], []]


def test_failed_module_does_not_stop_others(modules: Project) -> None:
    shutil.rmtree(modules.out)
    write(modules, item(1, quant={**AS_FLOAT16, "nodes_to_exclude": ["no such node"]}), item(1))
    said = modules.says("build", *OPTIONS, code=1)
    assert "no such node" in said
    assert "1 built, 1 failed;" in said
    assert "error: BertLayer_0: " in said
    broken, whole = modules.json("out", "module_summary.json")["instances"]
    assert "no such node" in broken["error"]
    assert whole["error"] is None
    assert not (modules.out / "BertLayer_0").exists()
    assert (modules.out / "BertLayer_1" / "model.onnx").is_file()


def test_module_rebuilds_from_its_own_settings(modules: Project) -> None:
    again = modules.build(recipe="out/BertLayer_1/winml_build_config.json", out="again")
    assert (again.code, again.ran) == (0, []), again.messages
    assert modules.models("again")["model.onnx"] == modules.models("out/BertLayer_1")["model.onnx"]


def test_plan_counts_stages_shared_by_modules(modules: Project) -> None:
    write(modules, item(0), item(1), item(0))
    counted, kinds = modules.says("plan", *OPTIONS, "--rebuild").splitlines()[-2:]
    assert counted.startswith("3 builds = 4 stages (6 one by one), 2 exports, 0 cached, 4 to run, about ")
    assert kinds == "These are 2 export, 2 finalize."


def test_invalid_module_builds_are_refused(modules: Project) -> None:
    folder = modules.says("build", "-c", "modules.json", "-m", "model", "--use-cache", code=2)
    assert "need a folder to put theirs into" in folder
    assert "is ONNX already" in modules.says("plan", *OPTIONS, "-m", "out/BertLayer_0/export.onnx", code=2)
    (modules.out / "module_summary.json").write_text("mine", encoding="utf-8")
    assert "exists and is not a summary" in modules.says("build", *OPTIONS, code=2)
    assert (modules.out / "module_summary.json").read_text(encoding="utf-8") == "mine"
    write(modules, item(0), {"model": "model"})
    assert "has no loader.module_path" in modules.refused("build", "-c", "modules.json", "-o", "out")
