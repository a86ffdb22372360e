"""Processes that transfer blobs, killed during a transfer, on a full disk, and with large blobs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from servers.faulty import FaultyServer

from winml_dag.store.store import Store

SCRIPT = Path(__file__).with_name("transferring.py")
LARGE = os.urandom(1 << 16) * (24 << 4)
DIGITS = sha256(LARGE).hexdigest()
FETCH = [f"sha256:{DIGITS}", str(len(LARGE))]


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer() as server:
        server.content[f"/cas/{DIGITS}"] = LARGE
        yield server


def started(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})


def test_partially_fetched_blob_resumes_after_kill(cache: Path, server: FaultyServer) -> None:
    process = started("fetch", cache, server.url, *FETCH, 16 << 20)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("at ")
    process.kill()
    process.communicate()
    store = Store(cache, function="sha256")
    # Neither the blob nor a part of it.
    assert list(store.blobs.all()) == []
    out, _ = started("fetch", cache, server.url, *FETCH).communicate()
    fetched = int(re.fullmatch(r"missing 0, fetched (\d+)\n", out)[1])  # type: ignore[index]
    # Three pieces may have been in flight between server and disk.
    assert fetched <= len(LARGE) - (13 << 20)
    assert [request.headers.get("Range", "") != "" for request in server.requests] == [False, True]
    assert [blob.path.read_bytes() == LARGE for blob in store.blobs.all()] == [True]
    assert not list(store.incoming.glob("*.partial"))


def test_full_disk_is_not_blamed_on_remote(cache: Path, server: FaultyServer) -> None:
    process = subprocess.run(
        [sys.executable, SCRIPT, "fetch", cache, server.url, *FETCH],
        env={**os.environ, "FILE_BYTES_LIMIT": str(10 << 20)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "StoreError: Cannot fetch model.onnx: the quota or the limit on file size is reached" in process.stderr
    assert process.stdout == ""
    store = Store(cache)
    assert list(store.blobs.all()) == []
    # The space is freed.
    assert not list(store.incoming.glob("*.partial"))


@pytest.mark.parametrize("kind", ["folder", "http"])
def test_transfer_memory_is_bounded(tmp_path: Path, kind: str) -> None:
    megabytes = 120
    if kind == "folder":
        (tmp_path / "remote").mkdir()
        out, _ = started("through", tmp_path, (tmp_path / "remote").as_uri(), megabytes).communicate()
    else:
        with FaultyServer() as server:
            out, _ = started("through", tmp_path, server.url, megabytes).communicate()
    missing, put, memory = map(int, re.fullmatch(r"missing (\d+), put (\d+), memory (\d+)\n", out).groups())  # type: ignore[union-attr]
    assert (missing, put) == (0, megabytes << 20)
    assert memory < 64 << 20
