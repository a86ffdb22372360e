"""Untrusted text is printed as plain text, and the command line ends in sentences for any input."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.cli import COMMANDS, plain, run


@given(st.text(st.characters(max_codepoint=0x206F), max_size=40))
def test_plain_removes_control_characters_and_preserves_json(text: str) -> None:
    found = plain(text)
    assert not [
        char for char in found.replace("\r\n", "\n") if unicodedata.category(char) == "Cc" and char not in "\t\n"
    ]
    assert json.loads(plain(json.dumps({"a": text}, ensure_ascii=False))) == {"a": text}


def test_plain_text_is_unchanged() -> None:
    text = "Über\tdie Brücke\r\n\U0001f309 → ok\n"
    assert plain(text) == text


# Commands that need no arguments.
SUFFICE = ("sys", "catalog", "worker")


@pytest.mark.parametrize(
    "arguments", [["cache"], ["cache", "remote"], *([name] for name in COMMANDS if name not in SUFFICE)]
)
def test_command_without_arguments_exits_with_usage_or_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) in (2, 3)
    told = capsys.readouterr()
    assert "sage: winml-dag" in told.err or "error: " in told.err
