"""Fixtures of the command line's tests: a folder to stand in, and commands called as users type them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from winml_dag.cli import run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty. The cache goes to its folder ``cache``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("WINML_DAG_CACHE_MAX_SIZE", raising=False)
    return tmp_path


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command, which has to end with *code*, and returns what it prints: stdout, then stderr."""

    def says(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        found = run([*map(str, arguments)])
        said = "".join(capsys.readouterr())
        assert found == code, said
        assert "Traceback" not in said
        return said

    return says


@pytest.fixture
def tells(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Runs a command with ``--format json``, and returns the object that it prints."""

    def tells(*arguments: object, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        found = run([*map(str, arguments), "--format", "json"])
        said = capsys.readouterr()
        assert found == code, said
        value: dict[str, Any] = json.loads(said.out)
        return value

    return tells
