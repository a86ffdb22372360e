"""Fixtures: machines that share a server, which is empty at the start of each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import MAIN, Machine, MachineMaker
from servers.faulty import FaultyServer


@pytest.fixture
def machine(server: FaultyServer, tmp_path: Path) -> MachineMaker:
    """Make new machines.

    ``mode``, ``keys`` and so on become variables of its job, as do ``GITHUB_REF`` and the like.
    """

    def make(mode: str = "read", keys: str = MAIN, url: str = server.url, **variables: str) -> Machine:
        folder = tmp_path / f"machine{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        ours = {"REMOTE": url, "REMOTE_MODE": mode, "REMOTE_KEYS": keys, "REMOTE_NAMESPACE": "main"}
        named = {f"WINML_DAG_{name}": text for name, text in ours.items() if text}
        return Machine(folder, {**named, **variables})

    return make
