from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from planned_keys import enter, make_project

from winml_dag import file_reading


@pytest.fixture(scope="session")
def made_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "project"
    make_project(folder)
    return folder


@pytest.fixture
def project(made_project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all files that the recipes name, and the providers that they are for: for tests that only plan."""
    return enter(made_project, monkeypatch)


@pytest.fixture
def own_project(made_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, for tests that change its files."""
    shutil.copytree(made_project, tmp_path / "project")
    return enter(tmp_path / "project", monkeypatch)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat recently written files as settled: digests are recorded at once, and plans stay valid."""
    monkeypatch.setattr(file_reading, "SETTLED_NS", 0)
