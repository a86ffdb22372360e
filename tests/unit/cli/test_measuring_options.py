"""Numbers that perf and eval are given and cannot use: told by name, before any model is looked for."""

from __future__ import annotations

import json

import pytest

from winml_dag.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["perf", "--duration", "inf"], "duration: must be a finite number"),
        (["perf", "--iterations", "99999999999"], "iterations: must be less than or equal to"),
        (["perf", "--batch-size", "99999999999"], "batch_size: must be less than or equal to"),
        (["eval", "--min", "accuracy=nan"], "--min: 'nan' is no number"),
        (["eval", "--min", "accuracy=inf"], "--min: 'inf' is no number"),
        (["eval", "--min", "accuracy=most"], "--min: 'most' is no number"),
    ],
)
def test_numbers_that_are_none_or_too_large_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = arguments
    assert run([command, "nowhere.onnx", *options, "--format", "json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["success"] is False
    assert words in told["errors"][0]
