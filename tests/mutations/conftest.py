from __future__ import annotations

from pathlib import Path

import pytest
from planned_keys import make_project

from winml_dag import file_reading


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all files that the recipes name, and the providers that they are for."""
    folder = tmp_path / "project"
    make_project(folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder / "packages")
    return folder


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat recently written files as settled: digests are recorded at once, and plans stay valid."""
    monkeypatch.setattr(file_reading, "SETTLED_NS", 0)
