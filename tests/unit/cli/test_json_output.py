"""With ``--format json``, every command prints one object that begins with the same keys, also for errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from winml_dag.cli import cli, run
from winml_dag.cli.command import Command

HEAD = ["command", "exit_code", "error", "warnings"]


def inner_commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from inner_commands(command, *path, name)
        else:
            yield (*path, name), command


COMMANDS = dict(inner_commands(cli))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run([*arguments, "--format", "json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert list(found)[:4] == HEAD
    assert found["exit_code"] == code
    return found


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_documents_exit_codes_and_prints_json_errors(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(COMMANDS[path], Command)
    assert run([*path, "--help"]) == 0
    assert "Exit codes: 0 success" in capsys.readouterr().out
    found = printed(capsys, *path, "--bogus", code=2)
    assert (found["command"], found["success"], found["errors"]) == (" ".join(path), False, [found["error"]])
    assert "--bogus" in found["error"]


@pytest.mark.parametrize(
    "arguments",
    [
        *("optimize -m nope.onnx", "compile -m m.onnx --embed", "validate m.onnx --min-cosine 1", "export -o x.onnx"),
        *("build -c no.yaml", "plan -c no.yaml", "cache show 0", "report nowhere", "inspect no.onnx", "verify no"),
    ],
)
def test_command_error_is_in_json_and_on_stderr(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run([*arguments.split(), "-f", "json"])
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert code in (2, 3)
    assert (list(found)[:4], found["exit_code"], found["success"]) == (HEAD, code, False)
    assert told.err.strip() == f"error: {found['error']}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("compile", "--format", "json"), "Missing option '-m' / '--model'."),
        (("perf", "m.onnx", "--iterations", "0", "-qfjson"), "Invalid value for '--iterations'"),
        (("verify", "--format=json"), "Missing argument 'PATH'."),
        (("none", "-f", "json"), "There is no command 'none'"),
    ],
)
def test_usage_error_is_json_for_every_spelling_of_format(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(list(arguments)) == 2
    told = capsys.readouterr()
    assert sentence in json.loads(told.out)["error"]
    assert sentence in told.err


def test_error_json_keeps_result_list_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert printed(capsys, "build", "--bogus", code=2)["builds"] == []
    assert printed(capsys, "verify", "nowhere", code=3)["folders"] == []
    assert run(["build", "--bogus"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("arguments", ["catalog", "cache info", "cache list", "cache verify", "eval --schema"])
def test_result_json_starts_with_common_keys(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, *arguments.split())
    assert (found["error"], found["warnings"]) == (None, [])
    assert len(found) > len(HEAD)


def test_stderr_notes_become_json_warnings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "good.yaml").write_text(
        "stages: {copy: {command: [cp, '{inputs.a}', '{outputs.b}'], inputs: {a: a}, outputs: {b: b}}}", "utf-8"
    )
    (folder / "a").write_text("a", encoding="utf-8")
    (folder / "bad.yaml").write_text("onnx: nowhere.onnx\n", encoding="utf-8")
    (folder / "remote").mkdir()
    code = run(
        ["cache", "pull", "-c", "good.yaml", "-c", "bad.yaml", "--remote", (folder / "remote").as_uri(), "-f", "json"]
    )
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["exit_code"] == code
    assert {warning.partition(" ")[0] for warning in found["warnings"]} >= {"bad"}
    assert all(f"note: {warning}" in told.err for warning in found["warnings"])
