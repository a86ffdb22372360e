"""``winml-dag clean`` removes what a build wrote, and nothing of the user's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from memory_executor import MemoryExecutor
from onnx import TensorProto, helper

from winml_dag.canonical import JsonObject
from winml_dag.cli import run
from winml_dag.engine.stage import Node, Workspace
from winml_dag.pipeline.build import build
from winml_dag.pipeline.clean import clean
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.run import Driver
from winml_dag.store.below import Below
from winml_dag.store.store import Store


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", "cache")


def _work(node: Node, workspace: Workspace) -> JsonObject:
    for slot, folder in workspace.outputs.items():
        (folder / node.stage.published.get(slot, f"{slot}.json")).write_text(f"{node.stage.name} {slot}")
    return {}


def builds() -> None:
    """Run a build whose stages work in this process."""
    if not Path("tiny.onnx").exists():
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "tiny.onnx")
        recipe = {"model": "tiny.onnx", "ep": "cpu", "precision": "fp32", "output_dir": "out", "auto": False}
        Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
    store = Store(Path("cache"))
    planned = plan_request(Request(Path("recipe.yaml"), Overrides()), store, download=False)
    assert not build(planned, Driver(store, executor=MemoryExecutor(_work))).failed
    store.close()


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def says(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert run(["clean", *arguments]) == code
        out, errors = capsys.readouterr()
        return out if code == 0 else errors

    return says


def names(folder: str = "out") -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


PUT = {"model.onnx", "optimized.onnx", "winml_build_config.json", "build_manifest.json"}


@pytest.mark.parametrize("arguments", [("-o", "out"), ("-c", "recipe.yaml"), ("-c", "recipe.yaml", "-o", "out")])
def test_all_that_the_build_put_goes_with_the_folder_and_the_cache_stays(says, arguments) -> None:
    builds()
    assert names() == PUT
    assert says(*arguments) == "Removed 4 files of out. The results are still cached.\n"
    assert not Path("out").exists()
    assert {"tiny.onnx", "recipe.yaml", "cache"} == names(".")
    builds()
    assert names() == PUT


def test_a_dry_run_names_what_would_go_and_removes_nothing(says) -> None:
    builds()
    lines = says("-o", "out", "--dry-run").splitlines()
    assert {line.removeprefix(f"would remove out{os.sep}") for line in lines[:-1]} == PUT
    assert lines[-2].endswith("build_manifest.json")
    assert lines[-1].startswith("Would remove 4 files")
    assert names() == PUT


def test_settings_that_nest_deeper_than_any_reader_stay(says) -> None:
    builds()
    Path("out/winml_build_config.json").write_text("[" * 100_000)
    says("-o", "out")
    assert names() == {"winml_build_config.json"}


def test_what_was_edited_and_what_is_the_users_stays_and_is_named(says) -> None:
    builds()
    Path("out/optimized.onnx").write_text("mine now")
    Path("out/winml_build_config.json").write_text("{}")
    Path("out/notes.txt").write_text("mine")
    value = json.loads(says("-o", "out", "--format", "json"))
    assert {Path(path).name for path in value["edited"]} == {"optimized.onnx", "winml_build_config.json"}
    assert {Path(path).name for path in value["removed"]} == {"model.onnx", "build_manifest.json"}
    assert names() == {"optimized.onnx", "winml_build_config.json", "notes.txt"}
    assert Path("out/optimized.onnx").read_text() == "mine now"


def test_an_edit_that_puts_size_and_time_back_is_seen(says) -> None:
    builds()
    path = Path("out/model.onnx")
    before, data = path.stat(), path.read_bytes()
    path.write_bytes(data[:-1] + b"X")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert f"kept, because it was edited: {path}\n" in says("-o", "out")
    assert names() == {"model.onnx"}


def test_a_folder_without_a_manifest_is_left_alone(says) -> None:
    Path("out").mkdir()
    Path("out/model.onnx").write_text("somebody's")
    assert says("-o", "out") == "Nothing to remove: out has no build_manifest.json.\n"
    assert says("-o", "absent") == "Nothing to remove: absent has no build_manifest.json.\n"
    assert names() == {"model.onnx"}


def test_nothing_behind_a_link_goes(says) -> None:
    builds()
    Path("out/model.onnx").rename("precious.onnx")
    Path("out/model.onnx").symlink_to(Path("precious.onnx").absolute())
    assert "kept, because it was edited" in says("-o", "out")
    assert Path("precious.onnx").read_text() == "finalize model"


def test_a_manifest_that_names_files_elsewhere_is_none_of_ours(says) -> None:
    builds()
    manifest = Path("out/build_manifest.json")
    manifest.write_text(manifest.read_text().replace('"name": "model.onnx"', '"name": "../tiny.onnx"'))
    assert says("-o", "out").startswith("Nothing to remove")
    assert Path("tiny.onnx").exists()


def test_the_current_folder_stays_when_it_is_the_output_folder(says, monkeypatch) -> None:
    builds()
    cache = str(Path("cache").absolute())
    monkeypatch.chdir("out")
    says("-o", ".", "--cache-dir", cache)
    assert names(".") == set()


def test_cleaning_that_was_stopped_half_way_goes_on_where_it_was(monkeypatch) -> None:
    builds()
    remove, gone = Below.remove, []

    def stopped(below: Below, name: str) -> None:
        if len(gone) == 2:
            raise KeyboardInterrupt
        gone.append(name)
        remove(below, name)

    store = Store(Path("cache"))
    with monkeypatch.context() as patched:
        patched.setattr(Below, "remove", stopped)
        with pytest.raises(KeyboardInterrupt):
            clean(Path("out"), store)
    assert len(names()) == 2
    assert "build_manifest.json" in names()
    assert len(clean(Path("out"), store).removed) == 2
    assert not Path("out").exists()
    store.close()


def test_there_must_be_something_to_clean(says) -> None:
    assert "Give a recipe with -c, or an output folder with -o." in says(code=2)


def test_a_recipe_whose_model_has_gone_can_be_cleaned(says) -> None:
    builds()
    Path("tiny.onnx").unlink()
    assert says("-c", "recipe.yaml").startswith("Removed 4 files")


@pytest.fixture
def own_stages(tmp_path: Path) -> Path:
    """Build a recipe with a user-defined stage, and return its folder."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "name.txt").write_text("you")
    (folder / "greet.py").write_text("import sys\nopen(sys.argv[2], 'w').write('hello ' + open(sys.argv[1]).read())\n")
    recipe: dict[str, Any] = {
        "stages": {
            "greet": {
                "command": [sys.executable, "{inputs.script}", "{inputs.name}", "{outputs.text}"],
                "inputs": {"script": "./greet.py", "name": "./name.txt"},
                "outputs": {"text": "made/deep/greeting.txt"},
            }
        }
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert run(["build", "-c", str(folder / "recipe.yaml"), "-q"]) == 0
    assert (folder / "made/deep/greeting.txt").read_text() == "hello you"
    return folder


def test_what_a_recipes_own_stages_put_beside_it_goes_too(says, own_stages: Path) -> None:
    (own_stages / "made" / "mine.txt").write_text("mine")
    assert says("-c", str(own_stages / "recipe.yaml")).startswith("Removed 2 files")
    assert sorted(path.name for path in own_stages.rglob("*")) == [
        "greet.py",
        "made",
        "mine.txt",
        "name.txt",
        "recipe.yaml",
    ]


def test_what_was_edited_of_it_stays(says, own_stages: Path) -> None:
    (own_stages / "made/deep/greeting.txt").write_text("good bye")
    assert "kept, because it was edited: " in says("-c", str(own_stages / "recipe.yaml"))
    assert (own_stages / "made/deep/greeting.txt").read_text() == "good bye"
