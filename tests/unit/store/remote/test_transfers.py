"""Transfers over real servers: failures on the way cost little, and corrupt data never arrives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from remote_samples import KEYS, TRUST, Machine, digest_of, entry, record_of
from servers.faulty import Fault, FaultyServer

from winml_dag.store.remote.settings import open_remote

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


def machine(folder: Path, url: str) -> Machine:
    return Machine(folder / "cache", open_remote(url))


def test_what_broke_off_in_the_middle_is_asked_for_from_there(tmp_path: Path, server: FaultyServer) -> None:
    server.switch_on(Fault.DROP, times=2)
    here = machine(tmp_path, server.url)
    assert here.remotes.fetch([entry(LARGE)]) == []
    assert here.bytes_of(entry(LARGE)) == LARGE
    # Half, half of the rest, the rest; data in flight at a disconnect is lost.
    assert server.bytes_sent() < 1.2 * len(LARGE)
    assert server.count("GET") == 3


@pytest.mark.parametrize("fault", [Fault.WRONG_BYTES, Fault.ENDLESS_CHUNKS], ids=lambda it: it.name)
def test_a_server_that_lies_is_refused_and_then_left_alone(tmp_path: Path, server: FaultyServer, fault: Fault) -> None:
    server.switch_on(fault, below="cas")
    here = machine(tmp_path, server.url)
    for _ in range(3):
        assert here.remotes.fetch([entry(SMALL)]) == [entry(SMALL)]
    assert here.remotes.fetch([entry(LARGE)]) == [entry(LARGE)]
    assert server.count("GET") == 3
    assert here.remotes.traffic().refused == 3
    assert "is left alone for the rest of this run" in here.said[-1]
    assert here.bytes_of(entry(SMALL)) is None


def test_a_server_that_trickles_is_left_alone_by_all_who_wait(tmp_path: Path, server: FaultyServer) -> None:
    server.switch_on(Fault.TRICKLE)
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
    assert "cannot be reached: it is left alone" in here.said[0]
    assert "secret" not in here.said[0]
