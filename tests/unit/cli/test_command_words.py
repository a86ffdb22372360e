"""A command written as arguments means what was requested."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
import pytest

from winml_dag.api.arguments import SweepArguments
from winml_dag.api.builds import _OVERRIDES, _words
from winml_dag.cli import build
from winml_dag.cli.command import Command, given_words

LINES = (
    "-c sweep.yaml -o out --ep-option a=b --ep-option 'c=d e' --ep qnn",
    "-c one.yaml -c two.yaml --no-validate --random-weights --quant",
    "-m bert -p w8a8 --remote https://one --remote https://two --min-cosine 0.5 --embed",
    "--onnx 'my model.onnx' --input-specs '{\"a\": {\"shape\": [1, 2]}}' --soc-model 60 --batch-size 4",
)


@pytest.mark.parametrize("line", LINES)
def test_rebuilt_command_line_parses_to_same_parameters(line: str) -> None:
    context = build.command.make_context("build", shlex.split(line))
    again = build.command.make_context("build", shlex.split(shlex.join(given_words(context))))
    assert again.params == context.params


@pytest.mark.parametrize("options", [{"multiple": True}, {"multiple": True, "callback": lambda *given: given[2]}])
def test_repeatable_option_is_written_once_per_value(options: dict[str, object]) -> None:
    command = Command("any", params=[click.Option(["--x"], **options)])  # type: ignore[arg-type]
    context = command.make_context("any", ["--x", "1", "--x", "2"])
    assert tuple(given_words(context)) == ("--x", "1", "--x", "2")


def test_sweep_arguments_become_equivalent_build_command() -> None:
    values = {
        "ep": "qnn",
        "validate": False,
        "quant": True,
        "random_weights": True,
        "trust_remote_code": False,
        "allow_unsupported_nodes": False,
        "final_only": True,
        "max_optim_iterations": 3,
        "task": None,
    }
    named = [Path("sweep.yaml"), Path("other one.yaml")]
    line = _words({**values, "remote": ["https://me:secret@one"]}, named, Path("out"))
    assert "secret" not in line
    found = build.command.make_context("build", shlex.split(line)[2:]).params
    assert found["recipes"] == tuple(named)
    assert {name: found[name] for name in (*values, "output_dir")} == {**values, "output_dir": Path("out")}


def test_every_sweep_override_is_a_build_option() -> None:
    """If it is about what to build."""
    options = {option.name for option in build.command.params}
    assert {*SweepArguments.__annotations__} & _OVERRIDES <= options


def test_inapplicable_option_is_refused_even_when_up_to_date(monkeypatch: pytest.MonkeyPatch, says) -> None:
    def refusals() -> list[str]:
        options = ("--filter a=b", "--shard 1/2", "--retry-failed", "--workers 2", "--worker-tag npu")
        return [says("build", "-c", "recipe.json", *each.split(), code=2) for each in options]

    monkeypatch.setattr("winml_dag.file_reading.SETTLED_NS", 0)
    Path("recipe.json").write_text(json.dumps({"stages": {"one": {"command": ["python3", "-c", ""]}}}))
    before = refusals()
    for _ in range(2):
        up_to_date = says("build", "-c", "recipe.json")
    assert "Up to date" in up_to_date
    assert refusals() == before
