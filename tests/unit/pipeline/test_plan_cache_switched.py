"""Changes of a path's target during a build that leave no young file behind must not be recorded as built.

Examples are a link that is retargeted, a folder that is renamed, an edit on a file system with a late clock.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pipeline_samples import save_model

from winml_dag import file_reading
from winml_dag.cli import run
from winml_dag.pipeline import build as pipeline_build
from winml_dag.pipeline import plan as pipeline_plan
from winml_dag.pipeline import plan_cache
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.uptodate import check
from winml_dag.store.store import Store

COPY = "import sys; from pathlib import Path; there = Path(sys.argv[1]); " + (
    "files = sorted(there.rglob('*.txt')) if there.is_dir() else [there]; "
    "Path(sys.argv[2]).write_text(''.join(file.read_text() for file in files))"
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions of everything, and ``cur``, a link to the first.

    Everything counts as old, however new it is, as on a file system with a late clock.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(file_reading, "SETTLED_NS", -(10**18))
    for version in ("one", "two"):
        made = Path(version)
        (made / "sub").mkdir(parents=True)
        (made / "text.txt").write_text(version)
        (made / "sub" / "text.txt").write_text(version)
        tool = made / "tool"
        tool.write_text(f"#!/bin/sh\nprintf {version} > $2\n")
        tool.chmod(0o755)
        (made / "recipe.yaml").write_text(recipe("./note.txt", ["sh", "-c", f"printf {version} > $2", "sh"]))
    Path("note.txt").write_text("note")
    try:
        Path("cur").symlink_to("one", target_is_directory=True)
    except OSError:
        pytest.skip("links need a permission here")


def recipe(read: str, program: list[str]) -> str:
    command = [*program, "{inputs.read}", "{outputs.made}"]
    return yaml.safe_dump(
        {"stages": {"copy": {"command": command, "inputs": {"read": read}, "outputs": {"made": "made.txt"}}}}
    )


def switch_link() -> None:
    Path("new").symlink_to("two", target_is_directory=True)
    Path("new").replace("cur")


def rename_folder() -> None:
    Path("one").rename("away")
    Path("two").rename("one")


def rename_nested_folder() -> None:
    Path("one/sub").rename("away")
    Path("two/sub").rename("one/sub")


def edit() -> None:
    for path in Path("one").rglob("*.txt"):
        path.write_text("two")


def link_recipe() -> None:
    Path("recipe.yaml").unlink()
    Path("recipe.yaml").symlink_to("two/recipe.yaml")


PYTHON = [sys.executable, "-c", COPY]
CASES = [
    pytest.param("cur/text.txt", PYTHON, switch_link, "two", id="a file behind a link"),
    pytest.param("one/text.txt", PYTHON, rename_folder, "two", id="a file in a folder that is renamed"),
    pytest.param("one/text.txt", PYTHON, edit, "two", id="an edited file"),
    pytest.param("one/", PYTHON, rename_folder, "twotwo", id="a folder that is renamed"),
    pytest.param("one/", PYTHON, rename_nested_folder, "twoone", id="a folder in an input folder"),
    pytest.param("cur/", PYTHON, switch_link, "twotwo", id="an input folder that is a link"),
    pytest.param("./note.txt", ["cur/tool"], switch_link, "two", id="a tool of the project behind a link"),
    pytest.param("./note.txt", ["TMP/cur/tool"], switch_link, "two", id="a tool behind a link"),
    pytest.param("", [], link_recipe, "two", id="a recipe that is a link"),
]
# When the change happens: before this planning step.
MOMENTS = [
    pytest.param(pipeline_plan, "plan_build", id="while it is planned"),
    pytest.param(plan_cache, "save_plan", id="when it was planned"),
    pytest.param(pipeline_build, "keep_finished", id="at its end"),
]


@contextmanager
def changed_before(module: Any, name: str, change: Callable[[], None]) -> Iterator[None]:
    """Make the *change* once, before the first call of the function *name*."""
    called, changes = getattr(module, name), [change]

    def change_and_call(*arguments: Any, **options: Any) -> Any:
        if changes:
            changes.pop()()
        return called(*arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, name, change_and_call)
        yield
    assert not changes


@pytest.mark.skipif(sys.platform == "win32", reason="tools are shell scripts")
@pytest.mark.parametrize(("read", "program", "change", "expected"), CASES)
@pytest.mark.parametrize(("module", "name"), MOMENTS)
def test_what_changed_during_a_build_is_built_by_the_next(
    read: str,
    program: list[str],
    change: Callable[[], None],
    expected: str,
    module: Any,
    name: str,
) -> None:
    if read:
        program = [word.replace("TMP", str(Path.cwd())) for word in program]
        Path("recipe.yaml").write_text(recipe(read, program))
    else:
        Path("recipe.yaml").symlink_to("one/recipe.yaml")
    with changed_before(module, name, change):
        run(["build", "-c", "recipe.yaml"])
    assert run(["build", "-c", "recipe.yaml"]) == 0
    assert Path("made.txt").read_text() == expected


MODEL_RECIPE = """
model: here/model
loader: {task: text-classification, user_script: here/script.py}
ep: cpu
precision: w8a8
quant: {calibration_data: here/data}
"""


def model_project() -> None:
    """Create a model folder, data and a script below ``here``, a link to ``v1``; ``v2`` has different files of the same
    age.
    """
    for version, label in (("v1", "BertModel"), ("v2", "BertForMaskedLM")):
        model, data = Path(version, "model"), Path(version, "data", "more")
        model.mkdir(parents=True)
        data.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": [label]}))
        (model / "model.safetensors").write_bytes(version.encode())
        for name in ("a", "b")[: 1 + (version == "v2")]:
            np.savez(data / f"{name}.npz", input_ids=np.full((1, 8), len(name + label), np.int32))
        Path(version, "script.py").write_text(f"# {version}")
        save_model(Path(version, "m.onnx"), doc_string=version)
    Path("here").symlink_to("v1", target_is_directory=True)
    Path("recipe.yaml").write_text(MODEL_RECIPE)


def switch_here() -> None:
    Path("new").symlink_to("v2", target_is_directory=True)
    Path("new").replace("here")


def rename_v1() -> None:
    Path("v1").rename("away")
    Path("v2").rename("v1")


def rename_data() -> None:
    Path("v1/data").rename("away")
    Path("v2/data").rename("v1/data")


REQUESTS = [
    pytest.param(Request(Path("recipe.yaml"), Overrides(), Path("out")), id="a model folder"),
    pytest.param(
        Request(None, Overrides(onnx=Path("here/m.onnx"), precision="fp32", ep="cpu"), Path("out")), id="--onnx"
    ),
]


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("change", [switch_here, rename_v1])
@pytest.mark.parametrize(("module", "name"), MOMENTS[:2])
def test_a_model_or_its_data_in_another_folder_by_now_is_planned_anew(
    request_: Request, change: Callable[[], None], module: Any, name: str
) -> None:
    model_project()
    store = Store(Path("cache"))
    with changed_before(module, name, change):
        plan_request(request_, store, download=False)
    assert check(str(store.folder), str(request_.words)) is None
    plan_request(request_, store, download=False)
    assert check(str(store.folder), str(request_.words)) is not None


@pytest.mark.parametrize(("module", "name"), MOMENTS[:2])
def test_calibration_data_whose_folder_was_renamed_is_planned_anew(module: Any, name: str) -> None:
    model_project()
    store, request = Store(Path("cache")), Request(Path("recipe.yaml"), Overrides(), Path("out"))
    with changed_before(module, name, rename_data):
        plan_request(request, store, download=False)
    assert check(str(store.folder), str(request.words)) is None
