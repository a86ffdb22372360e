"""Module mode: a recipe file that lists modules of one model, each of which becomes a separate build.

The model is the BERT of the other scenarios, whose weights are on disk. It is exported once. Tests of export compare a
module's outputs with PyTorch's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
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


class Modules(Project):
    """A project whose recipe is a list; the test itself validates every build in it."""

    def __init__(self, folder: Path, commands: OneProcess | None) -> None:
        super().__init__(folder, commands)
        self.list_file = folder / "modules.json"

    def write(self, *items: Mapping[str, Any]) -> None:
        self.list_file.write_text(json.dumps(items), encoding="utf-8")

    def arguments(self, command: str) -> tuple[str, ...]:
        return (command, "-c", "modules.json", "-m", "model", "-o", "out", "--no-validate", "--no-analyze")

    def build_all(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self.run(*self.arguments("build"), *more)

    def told(self) -> tuple[int, dict[str, Any]]:
        """Return exit code and JSON of a build."""
        finished = self.build_all("--format", "json")
        return finished.returncode, json.loads(finished.stdout)

    def summary(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.out / "module_summary.json").read_text(encoding="utf-8"))
        return value


def ran(build: Mapping[str, Any]) -> list[str]:
    return [stage["stage"] for stage in build["stages"] if stage["status"] == "ran"]


AS_FLOAT16 = {"mode": "fp16"}


@pytest.fixture(scope="module")
def built(
    built_project: Project, tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None
) -> tuple[Modules, dict[str, Any]]:
    """The second layer built from one list, as it is, in float16, and as it is again; and the output of the build."""
    project = Modules(tmp_path_factory.mktemp("modules"), commands)
    shutil.copytree(built_project.folder / "model", project.folder / "model")
    project.write(item(1), item(1, quant=AS_FLOAT16), item(1))
    code, told = project.told()
    assert code == 0, told
    return project, told


@pytest.fixture
def modules(built: tuple[Modules, dict[str, Any]], tmp_path: Path, commands: OneProcess | None) -> Modules:
    """A copy of the built project for one test; its first build finds everything in the cache."""
    shutil.copytree(built[0].folder, tmp_path / "project")
    return Modules(tmp_path / "project", commands)


def test_a_module_has_the_weights_of_the_saved_model(built: tuple[Modules, dict[str, Any]]) -> None:
    from safetensors.numpy import load_file

    project, _ = built
    saved = load_file(project.folder / "model" / "model.safetensors")
    of_layers = [saved[f"bert.encoder.layer.{place}.intermediate.dense.weight"] for place in (0, 1)]
    for place in range(3):
        model = onnx.load(project.out / f"BertLayer_{place}" / "model.onnx")
        weights = [numpy_helper.to_array(each).astype(np.float32) for each in model.graph.initializer]
        has = [
            any(np.allclose(each, of.T, atol=1e-3) for each in weights if each.shape == of.T.shape) for of in of_layers
        ]
        assert has == [False, True]


def test_builds_share_what_is_equal_in_them(built: tuple[Modules, dict[str, Any]]) -> None:
    _, told = built
    assert [cell["name"] for cell in told["cells"]] == ["BertLayer_0", "BertLayer_1", "BertLayer_2"]
    assert [ran(cell) for cell in told["cells"]] == [["export", "finalize"], ["quantize", "finalize"], []]
    assert told["failed"] == []


def test_the_summary_says_which_folder_has_which_module(built: tuple[Modules, dict[str, Any]]) -> None:
    project, _ = built
    summary = project.summary()
    assert (summary["model_id"], summary["module_class"], summary["instance_count"]) == ("model", "BertLayer", 3)
    assert [each["module_path"] for each in summary["instances"]] == ["bert.encoder.layer.1"] * 3
    for instance in summary["instances"]:
        assert instance["class_name"] == "BertLayer"
        assert (project.folder / instance["output_dir"] / "model.onnx").is_file()
        assert instance["build_elapsed_s"] > 0
        assert instance["error"] is None


def test_a_second_build_runs_nothing_and_touches_nothing(modules: Modules) -> None:
    first = modules.build_all()
    assert first.returncode == 0, first.stderr
    before = {path: path.stat().st_mtime_ns for path in modules.out.rglob("*") if path.is_file()}
    again = modules.build_all()
    assert again.returncode == 0
    assert "3 up to date" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in modules.out.rglob("*") if path.is_file()} == before


def test_an_edit_of_one_item_runs_its_stages_only(modules: Modules) -> None:
    modules.write(item(1), item(1, quant={**AS_FLOAT16, "fp16_keep_io_types": False}), item(1))
    code, told = modules.told()
    assert code == 0
    assert [ran(cell) for cell in told["cells"]] == [[], ["quantize", "finalize"], []]


def test_an_item_that_fails_keeps_no_other_from_its_place(modules: Modules) -> None:
    shutil.rmtree(modules.out)
    modules.write(item(1, quant={**AS_FLOAT16, "nodes_to_exclude": ["no such node"]}), item(1))
    finished = modules.build_all()
    assert finished.returncode == 1
    assert "no such node" in finished.stderr
    assert "1 built, 1 failed;" in finished.stdout
    assert "error: BertLayer_0: " in finished.stderr
    broken, whole = modules.summary()["instances"]
    assert "no such node" in broken["error"]
    assert whole["error"] is None
    assert not (modules.out / "BertLayer_0").exists()
    assert (modules.out / "BertLayer_1" / "model.onnx").is_file()


def test_one_module_of_an_output_folder_builds_again_from_its_own_settings(modules: Modules) -> None:
    settings = modules.out / "BertLayer_1" / "winml_build_config.json"
    again = modules.build(recipe=str(settings), out="again")
    assert again.code == 0, again.messages
    assert again.ran == []
    assert modules.contents("again")["model.onnx"] == modules.contents("out/BertLayer_1")["model.onnx"]


def test_a_plan_counts_what_the_items_share(modules: Modules) -> None:
    modules.write(item(0), item(1), item(0))
    finished = modules.run(*modules.arguments("plan"), "--rebuild")
    assert finished.returncode == 0, finished.stderr
    counted, kinds = finished.stdout.splitlines()[-2:]
    assert counted.startswith("3 builds = 4 stages (6 one by one), 2 exports, 0 cached, 4 to run, about ")
    assert kinds == "These are 2 export, 2 finalize."


def test_a_list_needs_a_folder_and_modules(modules: Modules) -> None:
    homeless = modules.run("build", "-c", "modules.json", "-m", "model", "--use-cache")
    assert (homeless.returncode, "need a folder to put theirs into" in homeless.stderr) == (2, True)
    exported = modules.run("plan", "-c", "modules.json", "-m", "out/BertLayer_0/export.onnx")
    assert (exported.returncode, "is ONNX already" in exported.stderr) == (2, True)
    modules.write(item(0), {"model": "model"})
    unnamed = modules.run("build", "-c", "modules.json", "-o", "out", "--format", "json")
    assert (unnamed.returncode, "has no loader.module_path" in json.loads(unnamed.stdout)["error"]) == (2, True)


def test_a_summary_of_somebody_else_is_not_overwritten(modules: Modules) -> None:
    (modules.out / "module_summary.json").write_text("mine", encoding="utf-8")
    finished = modules.build_all()
    assert (finished.returncode, "exists and is not a summary" in finished.stderr) == (2, True)
    assert (modules.out / "module_summary.json").read_text(encoding="utf-8") == "mine"
