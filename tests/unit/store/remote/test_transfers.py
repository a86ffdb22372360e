"""Transfers over real servers: failures on the way cost little, and corrupt data never arrives."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_samples import KEYS, TRUST, Machine, digest_of, entry, record_of
from servers.faulty import Fault, FaultyServer
from servers.nginx import nginx_server

from winml_dag.store.remote.settings import Mode, open_remote

LARGE = os.urandom(1 << 16) * (20 << 4)
SMALL = b"model" * 1000


@pytest.fixture
def server(faulty_server: FaultyServer) -> FaultyServer:
    faulty_server.reset()
    for data in (LARGE, SMALL):
        faulty_server.content[f"/cas/{digest_of(data).partition(':')[2]}"] = data
    for key in KEYS:
        faulty_server.content[f"/ac/{key}"] = TRUST.sign(record_of(key, entry(SMALL)), "")
    return faulty_server


def machine(folder: Path, url: str, mode: Mode = Mode.READ_WRITE) -> Machine:
    return Machine(folder / "cache", open_remote(url), mode=mode)


@pytest.fixture(params=["faulty", "nginx", "folder"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty remote."""
    if request.param == "nginx":
        with nginx_server(tmp_path / "nginx") as nginx:
            yield f"{nginx.url}/main"
    elif request.param == "folder":
        (tmp_path / "remote").mkdir()
        yield (tmp_path / "remote").as_uri()
    else:
        faulty_server = request.getfixturevalue("faulty_server")
        faulty_server.reset()
        yield faulty_server.url


def test_what_one_machine_has_made_another_has(tmp_path: Path, url: str) -> None:
    ours, theirs = (machine(tmp_path / name, url) for name in ("ours", "theirs"))
    ours.store.folder.parent.mkdir(exist_ok=True)
    record = ours.make(SMALL, LARGE)
    ours.remotes.offer(record)
    ours.remotes.settle()
    assert theirs.remotes.records([KEYS[0]])[KEYS[0]].outputs == record.outputs
    assert theirs.remotes.has([file.digest for file in record.files()]) == {file.digest for file in record.files()}
    assert theirs.remotes.fetch(record.files()) == []
    assert [theirs.bytes_of(file) for file in record.files()] == [SMALL, LARGE]
    assert ours.remotes.traffic().bytes_put == theirs.remotes.traffic().bytes_fetched == len(SMALL) + len(LARGE)
    assert not ours.said + theirs.said


def test_what_broke_off_in_the_middle_is_asked_for_from_there(tmp_path: Path, server: FaultyServer) -> None:
    server.switch_on(Fault.DROP, times=2)
    here = machine(tmp_path, server.url)
    assert here.remotes.fetch([entry(LARGE)]) == []
    assert here.bytes_of(entry(LARGE)) == LARGE
    # Half, half of the rest, the rest; data in flight at a disconnect is lost.
    assert server.bytes_sent() < 1.2 * len(LARGE)
    assert server.count("GET") == 3


@pytest.mark.parametrize(
    "fault",
    [Fault.WRONG_BYTES, Fault.SHORT, Fault.ENDLESS, Fault.ENDLESS_CHUNKS, Fault.ENCODED],
    ids=lambda it: it.name,
)
def test_a_server_that_lies_is_refused_and_then_left_alone(tmp_path: Path, server: FaultyServer, fault: Fault) -> None:
    server.switch_on(fault, below="cas")
    here = machine(tmp_path, server.url)
    for _ in range(3):
        assert here.remotes.fetch([entry(SMALL)]) == [entry(SMALL)]
    assert here.remotes.fetch([entry(LARGE)]) == [entry(LARGE)]
    assert server.count("GET") == 3
    assert here.remotes.traffic().refused == 3
    assert "is ignored for the rest of this run" in here.said[-1]
    assert here.bytes_of(entry(SMALL)) is None


@pytest.mark.parametrize("fault", [Fault.SILENT, Fault.TRICKLE], ids=lambda it: it.name)
def test_a_server_that_hangs_is_left_alone_by_all_who_wait(tmp_path: Path, server: FaultyServer, fault: Fault) -> None:
    server.switch_on(fault)
    here = machine(tmp_path, server.url)
    blobs = [entry(SMALL), entry(LARGE)]
    assert here.remotes.fetch(blobs) == blobs
    assert here.remotes.records(KEYS) == {}
    assert here.remotes.has([digest_of(SMALL)]) == set()
    assert len(here.said) == 1
    assert here.remotes.traffic().left_alone == 1
    here.remotes.close()


def test_where_nobody_listens_nothing_is_waited_for(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        here = machine(tmp_path, f"http://me:secret@127.0.0.1:{bound.getsockname()[1]}/cache")
        assert here.remotes.records(KEYS) == {}
        assert here.remotes.fetch([entry(SMALL)]) == [entry(SMALL)]
        here.remotes.offer(here.make(b"ours"))
        here.remotes.settle()
    assert len(here.said) == 1
    assert "cannot be reached: it is ignored" in here.said[0]
    assert "secret" not in here.said[0]
