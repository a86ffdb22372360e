"""``winml-dag clean`` removes what a build wrote, and nothing of the user's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tiny_builds import build_tiny, save_model

from winml_dag.cli import run
from winml_dag.pipeline.clean import clean
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.store.files import Below
from winml_dag.store.store import Store


def builds() -> None:
    if not Path("recipe.yaml").exists():
        save_model(Path("tiny.onnx"))
        recipe = {"model": "tiny.onnx", "ep": "cpu", "precision": "fp32", "output_dir": "out", "auto": False}
        Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert not build_tiny(Request(Path("recipe.yaml"), Overrides())).failed


@pytest.fixture
def says(says) -> Callable[..., str]:
    return lambda *arguments, code=0: says("clean", *arguments, code=code)


def names(folder: str = "out") -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


PUT = {"model.onnx", "optimized.onnx", "winml_build_config.json", "build_manifest.json"}


@pytest.mark.parametrize("arguments", [("-o", "out"), ("-c", "recipe.yaml"), ("-c", "recipe.yaml", "-o", "out")])
def test_clean_removes_built_files_and_keeps_cache(says, arguments) -> None:
    builds()
    assert names() == PUT
    assert says(*arguments) == "Removed 4 files of out. The results are still cached.\n"
    assert not Path("out").exists()
    assert names(".") == {"tiny.onnx", "recipe.yaml", "cache"}
    builds()
    assert names() == PUT


def test_clean_dry_run_lists_files_and_removes_nothing(says) -> None:
    builds()
    lines = says("-o", "out", "--dry-run").splitlines()
    assert {line.removeprefix(f"would remove out{os.sep}") for line in lines[:-1]} == PUT
    assert lines[-2].endswith("build_manifest.json")
    assert lines[-1].startswith("Would remove 4 files")
    assert names() == PUT


def test_clean_keeps_too_deeply_nested_settings_file(says) -> None:
    builds()
    Path("out/winml_build_config.json").write_text("[" * 100_000)
    says("-o", "out")
    assert names() == {"winml_build_config.json"}


def test_clean_keeps_and_lists_edited_and_user_files(tells) -> None:
    builds()
    Path("out/optimized.onnx").write_text("mine now")
    Path("out/winml_build_config.json").write_text("{}")
    Path("out/notes.txt").write_text("mine")
    value = tells("clean", "-o", "out")
    assert {Path(path).name for path in value["edited"]} == {"optimized.onnx", "winml_build_config.json"}
    assert {Path(path).name for path in value["removed"]} == {"model.onnx", "build_manifest.json"}
    assert names() == {"optimized.onnx", "winml_build_config.json", "notes.txt"}
    assert Path("out/optimized.onnx").read_text() == "mine now"


def test_clean_detects_edit_with_restored_size_and_time(says) -> None:
    builds()
    path = Path("out/model.onnx")
    before, data = path.stat(), path.read_bytes()
    path.write_bytes(data[:-1] + b"X")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert f"kept, because it was edited: {path}\n" in says("-o", "out")
    assert names() == {"model.onnx"}


def test_clean_skips_folder_without_manifest(says) -> None:
    Path("out").mkdir()
    Path("out/model.onnx").write_text("somebody's")
    assert says("-o", "out") == "Nothing to remove: out has no build_manifest.json.\n"
    assert says("-o", "absent") == "Nothing to remove: absent has no build_manifest.json.\n"
    assert names() == {"model.onnx"}


def test_clean_does_not_follow_symlinks(says) -> None:
    builds()
    Path("out/model.onnx").rename("precious.onnx")
    Path("out/model.onnx").symlink_to(Path("precious.onnx").absolute())
    assert "kept, because it was edited" in says("-o", "out")
    assert Path("precious.onnx").read_text().startswith("finalize model")


def test_clean_ignores_manifest_naming_files_outside_folder(says) -> None:
    builds()
    manifest = Path("out/build_manifest.json")
    manifest.write_text(manifest.read_text().replace('"name": "model.onnx"', '"name": "../tiny.onnx"'))
    assert says("-o", "out").startswith("Nothing to remove")
    assert Path("tiny.onnx").exists()


def test_clean_keeps_current_directory(says, monkeypatch) -> None:
    builds()
    cache = str(Path("cache").absolute())
    monkeypatch.chdir("out")
    says("-o", ".", "--cache-dir", cache)
    assert names(".") == set()


def test_interrupted_clean_resumes(monkeypatch) -> None:
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


def test_clean_without_recipe_or_folder_is_refused(says) -> None:
    assert "Give a recipe with -c, or an output folder with -o." in says(code=2)


def test_clean_works_when_input_model_is_missing(says) -> None:
    builds()
    Path("tiny.onnx").unlink()
    assert says("-c", "recipe.yaml").startswith("Removed 4 files")


def test_clean_keeps_edited_outputs_of_command_stages(folder: Path, says) -> None:
    (folder / "copy.py").write_text("import sys, shutil; shutil.copy(*sys.argv[1:])")
    stages = {
        name: {
            "command": [sys.executable, "{inputs.script}", "{inputs.script}", "{outputs.text}"],
            "inputs": {"script": "./copy.py"},
            "outputs": {"text": f"made/{name}/text.txt"},
        }
        for name in ("one", "two")
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}))
    assert run(["build", "-c", "recipe.yaml", "-q"]) == 0
    (folder / "made/two/text.txt").write_text("edited")
    (folder / "made/mine.txt").write_text("mine")
    told = says("-c", "recipe.yaml")
    assert f"kept, because it was edited: {Path('made/two/text.txt')}" in told.replace(f"{folder}{os.sep}", "")
    assert "Removed 2 files" in told
    left = {path.relative_to(folder / "made").as_posix() for path in (folder / "made").rglob("*")}
    assert left == {"mine.txt", "two", "two/text.txt"}
