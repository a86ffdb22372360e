"""Uploads to remotes: blobs first, the record last, nothing overwritten, and never a record without its blobs."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remote_samples import KEYS, TRUST, Machine, ScriptedRemote, digest_of, entry
from servers.memory import MemoryRemote

from winml_dag.store.remote import tier, transfer
from winml_dag.store.remote.protocol import RemoteError
from winml_dag.store.remote.settings import Mode


def methods(remote: MemoryRemote) -> list[str]:
    return [method for method, _ in remote.calls]


def test_blobs_are_uploaded_before_the_record(tmp_path: Path) -> None:
    remote = MemoryRemote()
    here = Machine(tmp_path / "cache", remote)
    record = here.make(b"graph", b"weights")
    here.remotes.offer(record)
    here.remotes.settle()
    assert set(remote.blobs.values()) == {b"graph", b"weights"}
    assert TRUST.verify(remote.records[KEYS[0]], KEYS[0], "").outputs == record.outputs
    assert methods(remote)[-1] == "put_record"
    traffic = here.remotes.traffic()
    assert (traffic.records_put, traffic.blobs_put, traffic.bytes_put) == (1, 2, len(b"graphweights"))
    assert traffic.record_bytes == len(remote.records[KEYS[0]])


@pytest.mark.parametrize("log_is_here", [True, False])
def test_log_is_uploaded_if_present(tmp_path: Path, log_is_here: bool) -> None:
    remote = MemoryRemote()
    here = Machine(tmp_path / "cache", remote)
    record = replace(here.make(b"graph"), log=entry(b"log", "log.txt"))
    if log_is_here:
        here.make(b"log", key=KEYS[1])
    here.remotes.offer(record)
    here.remotes.settle()
    assert set(remote.blobs.values()) == ({b"graph", b"log"} if log_is_here else {b"graph"})
    assert TRUST.verify(remote.records[KEYS[0]], KEYS[0], "").log == record.log


def test_existing_blob_is_not_uploaded_again(tmp_path: Path) -> None:
    remote = MemoryRemote()
    here = Machine(tmp_path / "cache", remote)
    for key, data in ((KEYS[0], b"same"), (KEYS[1], b"same")):
        here.remotes.offer(here.make(data, key=key))
        here.remotes.settle()
    assert methods(remote).count("put") == 1
    assert remote.records.keys() == {KEYS[0], KEYS[1]}


@pytest.mark.parametrize("mode", [Mode.READ, Mode.OFF])
def test_read_only_remote_gets_no_uploads(tmp_path: Path, mode: Mode) -> None:
    remote = MemoryRemote()
    here = Machine(tmp_path / "cache", remote, mode=mode)
    here.remotes.offer(here.make(b"graph"))
    here.remotes.settle()
    assert remote.calls == []


@pytest.mark.parametrize("trouble", ["full", "forbidden"])
def test_remote_refusing_uploads_is_still_read(tmp_path: Path, trouble: str) -> None:
    remote = ScriptedRemote()
    remote.fail("put", trouble)
    here = Machine(tmp_path / "cache", remote)
    record = here.make(b"graph")
    remote.records[KEYS[1]] = TRUST.sign(here.make(b"other", key=KEYS[1]), "")
    here.remotes.offer(record)
    here.remotes.settle()
    here.remotes.offer(record)
    here.remotes.settle()
    assert methods(remote).count("put") == 0  # it failed before it was recorded
    assert KEYS[0] not in remote.records
    assert here.remotes.records([KEYS[1]]).keys() == {KEYS[1]}
    assert here.said == [f"The remote http://level0/c is {trouble}: nothing more is uploaded there in this run."]
    assert here.remotes.traffic().left_alone == 1


def test_unreadable_remote_gets_no_uploads_and_is_reported_once(tmp_path: Path) -> None:
    remote = ScriptedRemote()
    remote.fail("record", "forbidden")
    here = Machine(tmp_path / "cache", remote)
    assert here.remotes.records([KEYS[1]]) == {}
    here.remotes.offer(here.make(b"graph"))
    here.remotes.settle()
    assert methods(remote) == []
    assert len(here.said) == 1


def test_corrupt_local_blob_is_not_uploaded(tmp_path: Path) -> None:
    remote = MemoryRemote()
    here = Machine(tmp_path / "cache", remote)
    record = here.make(b"graph")
    blob = here.store.blobs.path(digest_of(b"graph"))
    times = blob.stat()
    blob.chmod(0o644)
    blob.write_bytes(b"grapf")
    blob.chmod(0o444)
    os.utime(blob, ns=(times.st_atime_ns, times.st_mtime_ns))
    here.remotes.offer(record)
    here.remotes.settle()
    assert (remote.blobs, remote.records) == ({}, {})


def test_interrupted_upload_is_repeated_and_counted(tmp_path: Path) -> None:
    class BreaksOff(MemoryRemote):
        left = 1

        def put(self, digest: str, path: Path, told: Callable[[int], None]) -> bool:
            if self.left:
                self.left -= 1
                told(3)
                raise RemoteError("unreachable", "broke off")
            return super().put(digest, path, told)

    remote = BreaksOff()
    here = Machine(tmp_path / "cache", remote)
    here.remotes.offer(here.make(b"graph"))
    told: list[tuple[int, int]] = []
    here.remotes.settle(lambda gone, of: told.append((gone, of)))
    assert remote.blobs.keys() == {digest_of(b"graph")}
    assert here.remotes.traffic().bytes_put == 3 + len(b"graph")
    assert told[-1] == (len(b"graph"), len(b"graph"))


def test_closing_drops_pending_uploads_without_partial_records(tmp_path: Path) -> None:
    remote, begun, until = ScriptedRemote(), threading.Semaphore(0), threading.Event()
    remote.hang("put", begun, until)
    here = Machine(tmp_path / "cache", remote)
    here.remotes.offer(here.make(*(bytes([number]) for number in range(20))))
    assert begun.acquire(timeout=60)
    here.remotes.close()
    here.remotes.settle()
    assert remote.records == {}
    assert not here.said
    # Closed is not left alone: a store may be used again, while all threads still hang.
    remote.before.clear()
    here.remotes.offer(here.store.record(KEYS[0]))  # type: ignore[arg-type]
    here.remotes.settle()
    assert remote.records.keys() == {KEYS[0]}
    until.set()


@pytest.mark.parametrize("method", ["has", "put", "put_record"])
def test_hanging_remote_does_not_delay_the_end_of_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """As in a network share, where no client library has a timeout."""
    monkeypatch.setattr(transfer, "ATTEMPT_SECONDS", 0.05)
    monkeypatch.setattr(transfer, "_GRACE_SECONDS", 0.05)
    monkeypatch.setattr(tier, "PART_SECONDS", 0.05)
    remote, until = ScriptedRemote(), threading.Event()
    remote.hang(method, threading.Semaphore(0), until)
    here = Machine(tmp_path / "cache", remote)
    # More than are uploaded at once: most wait for threads that hang.
    here.remotes.offer(here.make(*(bytes([number]) for number in range(20))))
    for number in range(2, 22):
        here.remotes.offer(here.make(b"graph", key=f"{number:064x}"))
    here.remotes.settle()
    assert remote.records == {}
    assert here.said == [
        "The remote http://level0/c did not go on for 2 s: nothing more is uploaded there in this run."
    ]
    until.set()


@settings(deadline=None, max_examples=15)
@given(
    records=st.lists(
        st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=3, unique=True), max_size=3
    ),
    failing=st.dictionaries(st.integers(0, 12), st.sampled_from(["unreachable", "full", "slow", "killed"]), max_size=4),
)
def test_record_never_exists_without_its_blobs(
    tmp_path_factory: pytest.TempPathFactory, records: list[list[bytes]], failing: dict[int, str]
) -> None:
    folder = tmp_path_factory.mktemp("machine")

    class Watched(MemoryRemote):
        """Fails at some calls; once killed, it accepts nothing more. Checked after each call."""

        number = 0
        killed = False
        lock = threading.Lock()

        def _step(self) -> None:
            with self.lock:
                fault = failing.get(self.number)
                self.number += 1
                self.killed = self.killed or fault == "killed"
                if self.killed or fault:
                    raise RemoteError("unreachable" if self.killed else fault, "is failing")  # type: ignore[arg-type]

        def put(self, digest: str, path: Path, told: Callable[[int], None]) -> bool:
            self._step()
            put = super().put(digest, path, told)
            self.check()
            return put

        def put_record(self, key: str, data: bytes) -> bool:
            self._step()
            put = super().put_record(key, data)
            self.check()
            return put

        def check(self) -> None:
            for data in dict(self.records).values():
                record = json.loads(data.splitlines()[1])["record"]
                for file in record["outputs"]["out"]:
                    assert file["digest"] in self.blobs

    remote = Watched()
    here = Machine(folder / "cache", remote)
    for key, files in zip(KEYS, records, strict=False):
        here.remotes.offer(here.make(*files, key=key))
    here.remotes.settle()
    remote.check()
    if not failing:
        assert len(remote.records) == len(records)
    # Another machine, or this one later, completes it.
    failing.clear()
    remote.killed = False
    again = Machine(folder / "cache", remote)
    for key in KEYS[: len(records)]:
        again.remotes.offer(again.store.record(key))  # type: ignore[arg-type]
    again.remotes.settle()
    remote.check()
    assert len(remote.records) == len(records)
