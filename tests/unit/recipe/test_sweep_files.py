"""Several files as one sweep, and how cheap it is to check whether a file is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from winml_dag.errors import InputError, RecipeError
from winml_dag.recipe.load import load_recipe
from winml_dag.recipe.reading import is_sweep
from winml_dag.recipe.sweep import sweep_of_files


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "matrix: {model: [a]}", True),
        ("a.yaml", "{'matrix': {model: [a]}}", True),
        ("a.json", '{"matrix": {"model": ["a"]}}', True),
        ("a.yaml", "model: matrix\nloader: {task: matrix}", False),
        ("a.yaml", "stages: {matrix: {command: [x]}}", False),
        ("a.yaml", "- matrix", False),
        ("a.yaml", "model: a", False),
    ],
)
def test_a_sweep_is_a_recipe_with_a_matrix(name: str, text: str, expected: bool, tmp_path: Path) -> None:
    assert is_sweep(write(tmp_path, name, text)) is expected


def test_files_lists_and_sweeps_are_cells_of_one(tmp_path: Path) -> None:
    write(tmp_path, "one.json", '{"model": "a.onnx"}')
    modules = '{"loader": {"module_path": "x", "model_class": "Layer"}}, {"loader": {"module_path": "y"}}'
    write(tmp_path, "list.json", f"[{modules}]")
    write(tmp_path, "many.yaml", "measure: [perf]\nmatrix: {precision: [fp32, w8a8], exclude: [{precision: fp32}]}")
    sweep = sweep_of_files([tmp_path])
    assert [cell.name for cell in sweep.cells] == ["list/Layer_0", "list/module_1", "many/fp32", "many/w8a8", "one"]
    assert [cell.folder for cell in sweep.cells] == [cell.name for cell in sweep.cells]
    assert [(cell.file.name, cell.item) for cell in sweep.cells[:2]] == [("list.json", 0), ("list.json", 1)]
    assert (sweep.axes, sweep.measure) == ({"precision": ("fp32", "w8a8")}, ("perf",))
    assert [cell.recipe is None for cell in sweep.cells] == [True, True, True, False, True]
    assert {path.name for path in sweep.files} == {"one.json", "list.json", "many.yaml"}


def test_one_sweep_is_itself_and_one_list_has_no_name_ahead(tmp_path: Path) -> None:
    many = write(tmp_path, "many.yaml", "name: mine\nmatrix: {precision: [fp32, w8a8]}")
    sweep = sweep_of_files([many])
    assert (sweep.name, [cell.name for cell in sweep.cells]) == ("mine", ["fp32", "w8a8"])
    listed = write(tmp_path, "list.json", '[{"loader": {"module_path": "x"}}]')
    assert [cell.name for cell in sweep_of_files([listed]).cells] == ["module_0"]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (("bert/w8a8.json", "vit/w8a8.json", "vit/w8a16.json"), ["bert/w8a8", "vit/w8a16", "vit/w8a8"]),
        # They differ on every system.
        (("Bert.yaml", "bert.json"), ["Bert.yaml", "bert.json"]),
    ],
)
def test_files_of_one_name_are_told_apart(tmp_path: Path, files: tuple[str, ...], names: list[str]) -> None:
    for file in files:
        write(tmp_path, file, "{}")
    assert [cell.folder for cell in sweep_of_files([tmp_path]).cells] == names


def test_what_builds_have_left_in_a_folder_of_recipes_is_no_recipe(tmp_path: Path) -> None:
    for name in ("one.yaml", "report.json", "other/sweep.json", "other/build_manifest.json"):
        write(tmp_path, name, "{}")
    for name in ("build_manifest.json", "winml_build_config.json", "analyze_result.json"):
        write(tmp_path, f"out/one/{name}", "{}")
    write(tmp_path, "out/sweep.json", '{\n"began_at": "2026-11-22T10:00:00+00:00"\n}')
    write(tmp_path, "out/report.json", "{}")
    found = sweep_of_files([tmp_path]).cells
    assert [cell.name for cell in found] == ["one", "build_manifest", "sweep", "report"]


def test_a_goal_of_one_among_several_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "matrix: {precision: [fp32]}\ngoal: {minimize: size}")
    write(tmp_path, "b.yaml", "model: b.onnx")
    with pytest.raises(RecipeError, match="has a goal, and it is one of 2 recipes"):
        sweep_of_files([tmp_path])
    with pytest.raises(InputError, match="There is no recipe in"):
        sweep_of_files([write(tmp_path, "c/notes.txt", "").parent])


def test_many_recipes_are_found_without_the_schema(tmp_path: Path) -> None:
    write(tmp_path, "one.json", '{"model": "a.onnx"}')
    write(tmp_path, "two.yaml", "model: b.onnx")
    code = (
        "import sys; from pathlib import Path; from winml_dag.recipe.sweep import sweep_of_files\n"
        "sweep_of_files([Path(sys.argv[1])])\n"
        "print([name for name in ('pydantic', 'yaml', 'torch', 'onnx') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_command_about_one_build_says_that_a_sweep_is_many(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is a sweep of several builds, and this is about one"):
        load_recipe(write(tmp_path, "many.yaml", "matrix: {precision: [fp32]}"))
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, "one.yaml", "base: other.yaml\nmodel: a"))
    assert caught.value.problems == (
        f"{tmp_path / 'one.yaml'}:1: base: is a key of a sweep, which has a matrix besides",
    )
