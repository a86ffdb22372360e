"""The plan of user-defined stages, and the reports of errors in them: all at once, with lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pipeline_samples import save_model

from winml_dag.engine.command import fill
from winml_dag.engine.stage import Node
from winml_dag.errors import RecipeError, UsageError
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.plan import plan_build
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.resolve import build_of
from winml_dag.pipeline.userstages.plan import placeholders, plain_words
from winml_dag.store.store import Store

Planner = Callable[..., BuildGraph]

PYTHON = Path(sys.executable).as_posix()
TIDY: dict[str, Any] = {
    "command": [PYTHON, "tools/tidy.py", "{inputs.text}", "{outputs.clean}"],
    "inputs": {"text": "raw/notes.txt"},
    "outputs": {"clean": "build/notes.txt"},
}
COUNT: dict[str, Any] = {
    "command": [PYTHON, "-c", "pass", "{inputs.text}", "{outputs.n}"],
    "inputs": {"text": "tidy.clean"},
    "outputs": {"n": "build/count.txt"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("raw/notes.txt", "b\na\n"), ("raw/more/list.txt", "x\n"), ("tools/tidy.py", "print(1)\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def planned(folder: Path) -> Iterator[Planner]:
    """Plans a recipe of stages, given as a mapping or as text."""
    store = Store(folder / "cache")

    def plan(stages: Any = None, *, text: str = "", **more: Any) -> BuildGraph:
        recipe = folder / "recipe.yaml"
        recipe.write_text(text or yaml.safe_dump({"stages": stages, **more}, sort_keys=False), encoding="utf-8")
        return plan_build(build_of(Request(recipe, Overrides()), store.folder, download=False), store.fingerprints)

    yield plan
    store.close()


def problems(planned: Planner, stages: Any = None, **more: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        planned(stages, **more)
    return "\n".join(caught.value.problems)


def node(planned: BuildGraph, name: str) -> Node:
    return planned.graph.node(name)


def test_stages_become_nodes_with_stage_and_file_inputs(planned: Planner, folder: Path) -> None:
    found = planned({"count": COUNT, "tidy": TIDY})
    assert [step.id for step in found.steps] == ["tidy", "count"]
    tidy, count = node(found, "tidy"), node(found, "count")
    assert tidy.inputs == {"text": "raw/notes.txt", "tools/tidy.py": "tools/tidy.py"}
    assert count.inputs == {"text": "tidy.clean"}
    assert tidy.folder == folder.resolve()
    assert tidy.paths == {"clean": "build/notes.txt"}
    assert tidy.toolchain["program"].startswith("xxh3-128:")
    assert found.final is None
    assert found.summary.origin == "stages"


def test_folder_input_includes_all_files_by_relative_name(planned: Planner) -> None:
    found = planned({"tidy": {**TIDY, "inputs": {"text": "raw/"}}})
    assert [file.name for file in found.sources["raw/"].files] == ["raw/more/list.txt", "raw/notes.txt"]


def test_files_named_in_shell_text_are_inputs(planned: Planner) -> None:
    command = [PYTHON, "-c", "x && cat 'raw/notes.txt' raw/more/list.txt>{outputs.clean};--opt=tools/tidy.py"]
    found = node(planned({"tidy": {**TIDY, "inputs": {}, "command": command}}), "tidy")
    assert sorted(found.inputs) == ["raw/more/list.txt", "raw/notes.txt", "tools/tidy.py"]


def test_external_file_is_known_by_its_base_name(planned: Planner, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "data.txt"
    elsewhere.write_text("x", encoding="utf-8")
    found = planned({"tidy": {**TIDY, "inputs": {"text": str(elsewhere)}}})
    (source,) = [source for source in found.graph.sources.values() if source.files[0].path == elsewhere]
    assert source.files[0].name == "data.txt"
    assert str(elsewhere) not in str(node(found, "tidy").config)


def test_all_problems_are_reported_at_once_with_lines(planned: Planner) -> None:
    text = """\
stages:
  tidy:
    command: [no-such-program-here, "{inputs.txt}", "{outputs.clean}"]
    inputs: {text: raw/note.txt}
    outputs: {clean: ../notes.txt}
  count:
    command: [tools/none.py]
    inputs: {text: tidi.clean, more: tidy.claen}
    outputs: {n: build/con}
"""
    found = problems(planned, text=text).replace("\\", "/")
    for line, what in (
        (3, "no-such-program-here: not found on PATH"),
        (3, "{inputs.txt} does not exist; did you mean 'text'?"),
        (4, "there is no file raw/note.txt; did you mean 'notes.txt'?"),
        (5, "../notes.txt leaves the recipe's folder"),
        (7, "there is no program tools/none.py in the recipe's folder"),
        (8, "there is no file tidi.clean"),
        (8, "tidy has no output 'claen'"),
        (9, "'con' is a name that not every system can have"),
    ):
        assert any(f"recipe.yaml:{line}: " in told and what in told for told in found.splitlines()), (what, found)


@pytest.mark.parametrize(
    ("count", "complaint"),
    [
        ({"outputs": {"n": "build/notes.txt"}}, "build/notes.txt is also where 'clean' of 'tidy' goes"),
        ({"outputs": {"n": "build/NOTES.txt"}}, "build/NOTES.txt is also where 'clean' of 'tidy' goes"),
        ({"outputs": {"n": "build/notes.txt/n"}}, "build/notes.txt/n lies in build/notes.txt"),
        ({"outputs": {"n": "build/"}}, "build/notes.txt lies in build/, which is 'n' of 'count'"),
        ({"outputs": {"n": "recipe.yaml"}}, "recipe.yaml is the recipe itself"),
        ({"outputs": {"n": "./"}}, "the recipe's own folder cannot be an output"),
        ({"outputs": {"n": "/tmp/n"}}, "/tmp/n leaves the recipe's folder"),
        ({"outputs": {"n": ".winml-dag/n"}}, ".winml-dag is where manifests are kept"),
        ({"outputs": {"n.m": "n"}}, "a name has letters, digits, - and _ only"),
        ({"inputs": {"text": "build/notes.txt"}}, "is an output of 'tidy'; read it as tidy.clean"),
        ({"inputs": {"text": "tidi.clean"}}, "there is no file tidi.clean; did you mean 'tidy.clean'?"),
        ({"inputs": {"text": "./"}}, "has outputs of stages in it"),
        ({"inputs": {"text": "raw"}}, "raw is a folder; write raw/"),
        ({"inputs": {"text": "raw/notes.txt/"}}, "raw/notes.txt/ is a file"),
        ({"inputs": {}, "command": [PYTHON, "-c", "cat build/notes.txt"]}, "make tidy.clean one of its inputs"),
        ({"command": []}, "needs a program to run"),
        ({"command": [PYTHON, "{config.x}"], "inputs": {}}, "{config.x} does not exist; it declares none"),
        ({"run": "a:b"}, "there is command as well; keep one of the two"),
        ({"command": None}, "needs one of command, run and uses"),
        ({"command": None, "run": "tools.tidy"}, "is not of the form package.module:function"),
        ({"command": None, "run": "tools.none:f"}, "there is no module tools.none"),
        ({"command": None, "run": "tools.tidy:f"}, "tidy.py has no function 'f'"),
        ({"command": None, "uses": "nothing"}, "there is no plug-in 'nothing'"),
        ({"env": {"A=B": "1"}}, "is not a name of a variable"),
        ({"inputs": {"text": "quantize.model"}}, "quantize.model is not built here: the recipe names no model"),
    ],
)
def test_invalid_stage_fields_are_refused(planned: Planner, count: dict[str, Any], complaint: str) -> None:
    found = problems(planned, {"tidy": TIDY, "count": {**COUNT, **count}})
    assert complaint in found


@pytest.mark.parametrize(
    ("stages", "complaint"),
    [
        ({"tidy": {**TIDY, "outputs": {"clean": "raw/notes.txt"}}}, "raw/notes.txt is an output of 'tidy'"),
        *(({name: TIDY}, "the name of a stage has letters, digits, - and _ only") for name in ("a.b", "a b", "", "é")),
        ({"quantize": TIDY}, "quantize is one of our stages; choose another name"),
        ({"tidy": {**TIDY, "inputs": {"text": "tidy.clean"}}}, "wait for each other: tidy -> tidy"),
    ],
)
def test_invalid_stages_are_refused(planned: Planner, stages: dict[str, Any], complaint: str) -> None:
    assert complaint in problems(planned, stages)


def test_stage_cycle_is_reported_with_line(planned: Planner) -> None:
    text = "stages:\n" + "".join(
        f"  {name}:\n    command: ['{PYTHON}']\n    inputs: {{x: {other}.x}}\n    outputs: {{x: {name}.txt}}\n"
        for name, other in (("one", "two"), ("two", "one"))
    )
    found = problems(planned, text=text)
    assert "recipe.yaml:2: stages.one: these stages wait for each other" in found
    assert "one -> two -> one" in found or "two -> one -> two" in found


def test_model_settings_beside_stages_require_a_model(planned: Planner) -> None:
    with pytest.raises(UsageError, match="No model is named"):
        planned({"tidy": TIDY}, quant={}, output_dir="out")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_nonportable_source_name_is_refused(planned: Planner, folder: Path) -> None:
    (folder / "raw/a:b.txt").write_text("x", encoding="utf-8")
    assert "'a:b.txt' is a name that not every system can have" in problems(
        planned, {"tidy": {**TIDY, "inputs": {"text": "raw/"}}}
    )


def test_recipe_without_model_or_stage_is_refused(planned: Planner) -> None:
    with pytest.raises(RecipeError, match="names neither a model nor a stage"):
        planned({})


def test_own_stages_attach_around_the_quantization_chain(planned: Planner, folder: Path) -> None:
    """Readers of quantize's output read the end of the chain, and its inputs go to the start of the chain."""
    save_model(folder / "small.onnx")
    before = {**TIDY, "inputs": {"text": "optimize.model"}, "outputs": {"clean": "build/before.onnx"}}
    behind = {**TIDY, "inputs": {"text": "quantize.model"}, "outputs": {"clean": "build/behind.txt"}}
    stages = {"before": before, "behind": behind, "quantize": {"inputs": {"model": "before.clean"}}}
    found = planned(stages, model="small.onnx", precision="w4a16", output_dir="out")
    assert [node(found, name).inputs["model"] for name in ("quantize", "quantize.1")] == [
        "before.clean",
        "quantize.model",
    ]
    assert node(found, "behind").inputs["text"] == "quantize.1.model"
    assert node(found, "finalize").inputs["model"] == "quantize.1.model"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("tools/tidy.py", {"tools/tidy.py"}),
        ("--script=tools/tidy.py", {"tools/tidy.py"}),
        ("cat 'a.txt' b.txt>{outputs.n};c", {"cat", "a.txt", "b.txt", "c"}),
        ("$(cat a.txt)", {"cat", "a.txt"}),
        ("a name with blanks.txt", {"a name with blanks.txt", "blanks.txt"}),
        ("{inputs.text}.bak", set()),
        ("awk '{print NR}' data.csv", {"data.csv"}),
    ],
)
def test_candidate_file_words_are_found(argument: str, words: set[str]) -> None:
    found = plain_words(argument)
    assert words <= set(found)
    assert not any("{" in word and "." in word and "inputs" in word for word in found)


@given(st.text("{}inputs.outpx ", max_size=30))
def test_found_placeholders_are_those_filled_in(argument: str) -> None:
    found = list(placeholders(argument))
    names = {section: {name: "\0" for other, name in found if other == section} for section in ("inputs", "outputs")}
    assert fill(argument, {**names, "config": {}}).count("\0") == len(found)
