"""Fixtures of the fault tests: cache and pipes, and the path for workers to import the faulty stages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if sys.platform != "linux":
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs Linux: signals, named pipes, mounts and /proc"))


@pytest.fixture(autouse=True)
def _stages_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A named pipe. Reading it waits for a stage to open it, so that tests synchronize without sleeping."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path
