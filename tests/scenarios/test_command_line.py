"""The command line for somebody who does not know it yet: help, near misses, recipes, and options without effect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from oneprocess import OneProcess
from onnx_samples import perceptron
from scenario import Project

from winml_dag.cli import COMMANDS


@pytest.fixture
def newcomer(tmp_path: Path, commands: OneProcess) -> Project:
    """A folder with a model, a recipe for it, and a folder of a model without weights."""
    perceptron(tmp_path / "m.onnx")
    (tmp_path / "r.yaml").write_text("model: m.onnx\n", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/config.json").write_text("{}", encoding="utf-8")
    return Project(tmp_path, commands)


def test_command_alone_prints_help_and_exit_codes() -> None:
    done = subprocess.run([sys.executable, "-m", "winml_dag"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)
    assert "Exit codes: 0 success" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["r.yaml"], 0, "Built out"),
        (["build", "r.yaml"], 0, "Built out"),
        (["m.onnx", "--ep", "cpu"], 0, "Built out"),
        (["build", "--jobs", "2", "r.yaml"], 0, "Built out"),
        (["build", "-j2", "--ep", "cpu", "m.onnx"], 0, "Built out"),
        (["build", "--jobs", "2", "r.yaml", "recipes"], 2, "'recipes' is not a recipe, an .onnx file or a model"),
        (["build", "--jbos", "2", "r.yaml"], 2, "error: No such option '--jbos'. (Did you mean"),
        (["clean", "recipes"], 2, "error: Got unexpected extra argument (recipes). See winml-dag clean --help."),
        (["folder"], 2, "There is no output folder."),
        (["build", "folder"], 2, "There is no output folder."),
        (["build", "recipes"], 2, "'recipes' is not a recipe, an .onnx file or a model folder. Give"),
        (["r.yml"], 3, "There is no recipe r.yml; did you mean 'r.yaml'?"),
        (["bulid", "-c", "r.yaml"], 2, "There is no command 'bulid'; did you mean 'build'?"),
        (["run", "-c", "r.yaml"], 2, "There is no command 'run'. Use winml-dag build."),
        (["status"], 2, "Use winml-dag plan."),
        (["ls"], 2, "Use winml-dag cache list"),
        (["diff"], 2, "Use winml-dag report --against"),
        (["repro"], 2, "Use winml-dag build, or winml-dag reproduce"),
    ],
)  # fmt: skip
def test_near_miss_command_is_accepted_or_corrected(newcomer: Project, words: list[str], code: int, said: str) -> None:
    assert said in newcomer.says(*words, *(["-o", "out"] if code != 2 else []), code=code)
    assert newcomer.out.exists() == (code == 0)


@pytest.mark.parametrize(
    ("words", "completed"),
    [("cac", "plain,cache"), ("build r.yaml -o out --jo", "plain,--jobs"), ("build what -o ", "file,")],
)
def test_shell_completes_unfinished_words(words: str, completed: str) -> None:
    environment = {**os.environ, "_WINML_DAG_COMPLETE": "bash_complete", "COMP_WORDS": f"winml-dag {words}"}
    environment["COMP_CWORD"] = str(len(words.split(" ")))
    command = [sys.executable, "-m", "winml_dag"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (completed, "")


def test_init_writes_buildable_recipe(newcomer: Project) -> None:
    assert "winml-dag build -c recipe.yaml -o OUT" in newcomer.says("init", "m.onnx")
    assert "# Quantization to integers" in newcomer.recipe_file.read_text(encoding="utf-8")
    assert "recipe.yaml already exists." in newcomer.says("init", "m.onnx", code=2)
    # A recipe for a target that does not compile leaves that open for others.
    stages = newcomer.plan("--ep", "qnn").stages
    assert [stage["status"] for stage in stages if stage["stage"] == "compile"] == ["ran"]
    newcomer.says("build", "recipe.yaml", "-o", "out")


def test_set_option_sets_any_section_field(newcomer: Project) -> None:
    fields = ["--set", "quant.samples=3", "--set", "quant.calibration_method=entropy", "--set", 'loader.task="t"']
    newcomer.says("build", "r.yaml", "-p", "w8a8", "-o", "out", *fields)
    written = json.loads((newcomer.out / "winml_build_config.json").read_text(encoding="utf-8"))
    assert (written["quant"]["samples"], written["quant"]["calibration_method"]) == (3, "entropy")
    for given, said in (
        ("quant.sampels=3", "unknown key; did you mean 'samples'?"),
        ("quant.samples=many", "quant"),
        ("optim.gelu_fusion=3", "optim.gelu_fusion: expected true or false, got 3"),
        ("samples=3", "expected SECTION.FIELD=VALUE, such as quant.samples=20. Sections: loader"),
        ("quant.samples", "is not NAME=VALUE"),
    ):
        for precision in ("w8a8", "fp32"):  # the second reads no quant section
            assert said in newcomer.says("plan", "r.yaml", "-p", precision, "--set", given, code=2)


def test_option_without_effect_is_noted_in_every_build(newcomer: Project) -> None:
    for place, (words, said) in enumerate(
        (
            (["--compile"], "note: --compile has no effect: there is nothing to compile for CPUExecutionProvider"),
            (["--quant", "-p", "fp32"], "note: --quant has no effect: precision fp32 needs no quantization."),
            (["--set", "quant.samples=3"], "note: quant.samples has no effect: the recipe has no quant section."),
            (["--no-validate", "--min-cosine", "0.5"], "note: validate.min_cosine has no effect: --no-validate was"),
        )
    ):
        out = newcomer.folder / str(place)
        build = ["build", "r.yaml", "-o", str(out), *words]
        for edit, last in ((None, ("Built", "Restored")), (None, "Up to date"), ("model.onnx", "Restored")):
            if edit:
                (out / edit).unlink()
            *_, note, summary = newcomer.run(*build).stdout.splitlines()
            assert note.startswith(said)
            assert summary.startswith(last)


def test_null_compile_section_is_noted_for_compiling_provider(newcomer: Project) -> None:
    (newcomer.folder / "null.yaml").write_text("model: m.onnx\ncompile: null\n", encoding="utf-8")
    told = newcomer.says("plan", "null.yaml", "--ep", "qnn")
    assert "--ep qnn compiles nothing: the recipe's compile section is null. To compile, add --compile." in told


def test_nearest_build_is_of_same_model(newcomer: Project) -> None:
    newcomer.says("build", "r.yaml", "-o", "out")
    perceptron(newcomer.folder / "other.onnx", width=24)
    assert "optimize.0  would run            never built before" in newcomer.says("plan", "other.onnx")
    planned = newcomer.says("plan", "r.yaml", "--set", "optim.gelu_fusion=true", "-o", "new")
    assert re.search("optimize.0 .* nearest is .*gelu", planned)


def test_options_are_grouped_in_help_panels(newcomer: Project) -> None:
    for name in ("build", "plan"):
        found = re.findall(r"^(\w+) options:$", newcomer.says(name, "--help"), re.MULTILINE)
        assert found == [
            *("Model", "Target", "Optimize", "Quantize", "Export", "Validate", "Sweep", "Output", "Run", "Cache"),
            "Global",
        ]
