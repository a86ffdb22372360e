"""Several remotes as one: the nearest match answers, nearer ones are filled, and none of them breaks a build."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from remote_samples import KEYS, TRUST, Machine, ScriptedRemote, digest_of, entry, record_of
from servers.memory import MemoryRemote

from winml_dag.store.remote.protocol import Remote
from winml_dag.store.remote.settings import Mode, SigningKey
from winml_dag.store.remote.trust import Maker, Trust
from winml_dag.store.usage import Traffic

COLLEAGUE = Trust((SigningKey("ours", b"o" * 32),), Maker("winml_dag 1.0", host="Windows ARM64"))
STRANGER = Trust((SigningKey("ours", b"s" * 32),), Maker("winml_dag 1.0"))


def remote_with(*keys: str, trust: Trust = COLLEAGUE) -> MemoryRemote:
    remote = MemoryRemote()
    for key in keys:
        remote.records[key] = trust.sign(record_of(key, entry(key.encode())), "")
        remote.blobs[digest_of(key.encode())] = key.encode()
    return remote


def machine(folder: Path, *remotes: Remote, mode: Mode = Mode.READ_WRITE) -> Machine:
    return Machine(folder / "cache", *remotes, mode=mode)


def test_record_comes_from_the_nearest_tier(tmp_path: Path) -> None:
    near, far = remote_with(KEYS[0]), remote_with(KEYS[0], KEYS[1])
    here = machine(tmp_path, near, far, mode=Mode.READ)
    assert here.remotes.records(KEYS[:3]).keys() == set(KEYS[:2])
    assert sorted(key for _, key in near.calls) == sorted(KEYS[:3])
    assert sorted(key for _, key in far.calls) == sorted(KEYS[1:3])
    traffic = here.remotes.traffic()
    assert (traffic.records_found, traffic.records_missed, traffic.requests) == (2, 1, 5)
    assert traffic.record_bytes == len(near.records[KEYS[0]]) + len(far.records[KEYS[1]])


def test_records_are_requested_in_parallel(tmp_path: Path) -> None:
    together = threading.Barrier(len(KEYS))
    remote = ScriptedRemote()
    # No request is answered before all have arrived.
    for _ in KEYS:
        remote.before["record"].append(lambda: together.wait(60))
    assert machine(tmp_path, remote).remotes.records(KEYS) == {}
    assert not together.broken


def test_fetched_record_is_copied_to_nearer_tier_with_its_maker(tmp_path: Path) -> None:
    near, far = MemoryRemote(), remote_with(KEYS[0])
    here = machine(tmp_path, near, far)
    here.remotes.records([KEYS[0]])
    here.remotes.settle()
    filled = TRUST.verify(near.records[KEYS[0]], KEYS[0], "")
    maker = filled.origin["maker"]
    assert isinstance(maker, dict)
    assert maker["host"] == "Windows ARM64"
    # Its blob was not needed here, so it stays where it was.
    assert near.blobs == {}
    assert here.remotes.traffic().records_put == 1


def test_fetched_blob_is_copied_to_nearer_tier(tmp_path: Path) -> None:
    near, far = MemoryRemote(), remote_with(KEYS[0])
    here = machine(tmp_path, near, far)
    assert here.remotes.fetch([entry(KEYS[0].encode())]) == []
    here.remotes.settle()
    assert near.blobs == far.blobs


def test_read_only_tier_is_not_filled(tmp_path: Path) -> None:
    near, far = MemoryRemote(), remote_with(KEYS[0])
    here = machine(tmp_path, near, far, mode=Mode.READ)
    here.remotes.records([KEYS[0]])
    here.remotes.fetch([entry(KEYS[0].encode())])
    here.remotes.settle()
    assert (near.records, near.blobs) == ({}, {})


def test_refused_record_counts_as_absent_and_next_tier_is_tried(tmp_path: Path) -> None:
    near, far = remote_with(KEYS[0], trust=STRANGER), remote_with(KEYS[0])
    here = machine(tmp_path, near, far)
    assert here.remotes.records([KEYS[0]]).keys() == {KEYS[0]}
    (said,) = here.said
    assert said.startswith(f"A record in the remote http://level0/c is rejected ({KEYS[0][:12]}): ")
    assert here.remotes.traffic().refused == 1
    here.remotes.settle()
    # The existing record came first, even if it is rejected.
    assert near.records[KEYS[0]] == remote_with(KEYS[0], trust=STRANGER).records[KEYS[0]]


def test_refused_records_are_partly_named_and_then_counted(tmp_path: Path) -> None:
    here = machine(tmp_path, remote_with(*KEYS, trust=STRANGER))
    assert here.remotes.records(KEYS) == {}
    here.remotes.settle()
    here.remotes.settle()
    assert len(here.said) == 4
    assert here.said[-1] == f"Besides, {len(KEYS) - 3} records of the remote http://level0/c were rejected."
    assert here.remotes.traffic().refused == len(KEYS)


def test_blob_existence_is_queried_once(tmp_path: Path) -> None:
    near, far = remote_with(KEYS[0]), remote_with(KEYS[1])
    here = machine(tmp_path, near, far)
    digests = [digest_of(key.encode()) for key in KEYS[:3]]
    for _ in range(2):
        assert here.remotes.has(digests) == set(digests[:2])
    assert sorted(near.calls) == sorted(("has", digest) for digest in digests)
    assert sorted(far.calls) == sorted(("has", digest) for digest in digests[1:])


def test_earlier_answers_of_a_disabled_remote_are_discarded(tmp_path: Path) -> None:
    remote = ScriptedRemote()
    remote.blobs = remote_with(KEYS[0]).blobs
    here = machine(tmp_path, remote)
    digest = digest_of(KEYS[0].encode())
    assert here.remotes.has([digest]) == {digest}
    remote.fail("record", "forbidden")
    here.remotes.records([KEYS[1]])
    assert here.remotes.has([digest]) == set()
    assert here.remotes.fetch([entry(KEYS[0].encode())]) == [entry(KEYS[0].encode())]


@pytest.mark.parametrize("trouble", ["unreachable", "failing", "slow", "forbidden", "full", "bug"])
def test_one_failing_tier_does_not_affect_others(tmp_path: Path, trouble: str) -> None:
    near, far = ScriptedRemote(), remote_with(*KEYS)
    for method in ("record", "has", "read", "put", "put_record"):
        near.fail(method, *[trouble] * 200)
    here = machine(tmp_path, near, far)
    assert here.remotes.records(KEYS).keys() == set(KEYS)
    files = [entry(key.encode()) for key in KEYS]
    assert here.remotes.has([file.digest for file in files]) == set(far.blobs)
    assert here.remotes.fetch(files) == []
    here.remotes.offer(here.make(b"ours"))
    here.remotes.settle()
    assert here.remotes.traffic().left_alone == 1
    assert len(here.said) == 1
    assert here.said[0].endswith("it is ignored for the rest of this run, and what it may have is built here.")


def test_nothing_happens_without_remotes(tmp_path: Path) -> None:
    here = machine(tmp_path)
    record = here.make(b"ours")
    here.remotes.offer(record)
    here.remotes.settle()
    assert here.remotes.records(KEYS) == {}
    assert here.remotes.has([digest_of(b"x")]) == set()
    assert here.remotes.fetch([entry(b"x")]) == [entry(b"x")]
    assert here.remotes.traffic() == Traffic()
    here.remotes.close()
