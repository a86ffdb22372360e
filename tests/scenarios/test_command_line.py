"""The command line for somebody who does not know it yet: help, near misses, recipes, and options without effect."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from onnx_samples import perceptron

from winml_dag.cli import COMMANDS, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", str(tmp_path / "cache"))
    perceptron(tmp_path / "m.onnx")
    (tmp_path / "r.yaml").write_text("model: m.onnx\n", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/config.json").write_text("{}", encoding="utf-8")
    return tmp_path


def test_the_command_alone_prints_the_help_and_the_exit_codes() -> None:
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
        (["folder"], 2, "There is no output folder."),
        (["build", "folder"], 2, "There is no output folder."),
        (["r.yml"], 3, "There is no recipe r.yml; did you mean 'r.yaml'?"),
        (["bulid", "-c", "r.yaml"], 2, "There is no command 'bulid'. Did you mean 'build'?"),
        (["run", "-c", "r.yaml"], 2, "There is no command 'run'. Use winml-dag build."),
        (["status"], 2, "Use winml-dag plan."),
        (["ls"], 2, "Use winml-dag cache list"),
        (["diff"], 2, "Use winml-dag report --against"),
        (["repro"], 2, "Use winml-dag build, or winml-dag reproduce"),
    ],
)  # fmt: skip
def test_near_misses_are_accepted_or_answered_with_the_right_command(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert run([*words, "-o", "out"] if code != 2 else words) == code
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
    assert (folder / "out").exists() == (code == 0)


def test_a_recipe_is_written_for_a_model_and_builds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "m.onnx"]) == 0
    assert "winml-dag build -c recipe.yaml -o OUT" in capsys.readouterr().out
    text = (folder / "recipe.yaml").read_text(encoding="utf-8")
    assert "# Quantization to integers" in text
    assert run(["init", "m.onnx"]) == 2
    assert "recipe.yaml already exists." in capsys.readouterr().err
    # A recipe for a target that does not compile leaves that open for others.
    assert run(["plan", "recipe.yaml", "--ep", "qnn", "-f", "json"]) == 0
    stages = json.loads(capsys.readouterr().out)["builds"][0]["stages"]
    assert [stage["status"] for stage in stages if stage["stage"] == "compile"] == ["ran"]
    assert run(["build", "recipe.yaml", "-o", "out"]) == 0


def test_any_field_of_a_section_is_set_from_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = ["--set", "quant.samples=3", "--set", "quant.calibration_method=entropy", "--set", 'loader.task="t"']
    assert run(["build", "r.yaml", "-p", "w8a8", "-o", "out", *fields]) == 0
    written = json.loads((folder / "out" / "winml_build_config.json").read_text(encoding="utf-8"))
    assert (written["quant"]["samples"], written["quant"]["calibration_method"]) == (3, "entropy")
    capsys.readouterr()
    for given, said in (
        ("quant.sampels=3", "unknown key; did you mean 'samples'?"),
        ("quant.samples=many", "quant"),
        ("samples=3", "expected SECTION.FIELD=VALUE, such as quant.samples=20. Sections: loader"),
        ("quant.samples", "is not NAME=VALUE"),
    ):
        assert run(["plan", "r.yaml", "-p", "w8a8", "--set", given]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--compile"], "note: --compile has no effect: there is nothing to compile for CPUExecutionProvider"),
        (["--quant", "-p", "fp32"], "note: --quant has no effect: precision fp32 needs no quantization."),
        (["--set", "quant.samples=3"], "note: quant.samples has no effect: the recipe has no quant section."),
        (["--no-validate", "--min-cosine", "0.5"], "note: validate.min_cosine has no effect: --no-validate was given."),
    ],
)
def test_an_option_without_effect_is_reported_before_the_last_line_of_every_build(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    build = ["build", "r.yaml", "-o", str(folder / "out"), *words]
    for edit, last in ((None, "Built"), (None, "Up to date"), ("model.onnx", "Restored")):
        if edit:
            (folder / "out" / edit).unlink()
        assert run(build) == 0
        *_, note, summary = capsys.readouterr().out.splitlines()
        assert note.startswith(said)
        assert summary.startswith(last)


def test_a_provider_that_compiles_is_reported_when_the_recipe_forbids_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "null.yaml").write_text("model: m.onnx\ncompile: null\n", encoding="utf-8")
    assert run(["plan", "null.yaml", "--ep", "qnn"]) == 0
    assert "--ep qnn compiles nothing: the recipe's compile section is null. To compile, add --compile." in (
        capsys.readouterr().err
    )


def test_the_nearest_build_is_one_of_the_same_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "r.yaml", "-o", "out"]) == 0
    perceptron(folder / "other.onnx", width=24)
    capsys.readouterr()
    assert run(["plan", "other.onnx"]) == 0
    assert "optimize.0  would run            never built before" in capsys.readouterr().out
    assert run(["plan", "r.yaml", "--set", "optim.gelu_fusion=true", "-o", "new"]) == 0
    assert re.search("optimize.0 .* nearest is .*gelu", capsys.readouterr().out)


def test_the_output_option_takes_a_file_or_a_folder(folder: Path) -> None:
    assert run(["optimize", "m.onnx", "-o", "one.onnx", "--no-validate"]) == 0
    assert run(["optimize", "m.onnx", "-o", "results", "--no-validate"]) == 0
    assert (folder / "one.onnx").is_file()
    assert (folder / "results" / "m_opt.onnx").is_file()


def test_options_are_in_panels(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("build", "plan"):
        assert run([name, "--help"]) == 0
        found = re.findall(r"^(\w+) options:$", capsys.readouterr().out, re.MULTILINE)
        assert found == [
            "Model",
            "Target",
            "Optimize",
            "Quantize",
            "Export",
            "Validate",
            "Sweep",
            "Output",
            "Run",
            "Cache",
            "Global",
        ]
