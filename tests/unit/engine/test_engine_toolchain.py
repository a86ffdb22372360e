"""Versions of installed distributions, equal to those of ``importlib.metadata`` but without importing it."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from winml_dag.engine.keys import ABSENT, distribution_version, versions


@pytest.mark.parametrize("name", ["pytest", "onnxruntime", "PyYAML", "diskcache", "typing_extensions"])
def test_the_version_is_the_one_that_is_installed(name: str) -> None:
    assert distribution_version(name) == importlib.metadata.version(name)


@pytest.mark.parametrize("spelling", ["onnx-ir", "onnx_ir", "ONNX.IR"])
def test_a_name_may_be_spelled_in_any_of_its_ways(spelling: str) -> None:
    assert distribution_version(spelling) == importlib.metadata.version("onnx-ir")


def test_what_is_not_installed_is_said_to_be_so_that_installing_it_changes_the_key() -> None:
    assert versions(["no-such-thing"]) == {"no-such-thing": ABSENT}


def test_the_folder_that_imports_would_use_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("first", "2.0"), ("second", "1.0")):
        (tmp_path / folder / f"wine_label-{version}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / name) for name in ("nowhere", "first", "second")])
    assert distribution_version("wine-label") == "2.0"
