"""Collection of a cache that is too big or too old, also during builds: what is removed, in which order, and what never
is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_samples import DAY, collected, contents, key, keys, settle, size

from winml_dag.store import gc as module
from winml_dag.store.blobs import STAMP_NS
from winml_dag.store.gc import Collected, Limits, collect
from winml_dag.store.records import KeyInputs, Record, Records
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify
from winml_dag.store.usage import read_statistics

NOW = 1_700_000_000


def test_least_recently_used_records_are_removed_first(store, put) -> None:
    for number, days in enumerate([3, 9, 1, 6]):
        put(number, b"%d" % number * 10_000, days=days)
    store.used([key(1)])
    for number in range(4):
        store.remember({str(number): key(number)})
    taken = size(store)
    assert collected(store, Limits(max_bytes=0, above_bytes=taken)) == Collected(left_bytes=taken)
    done = collected(store, Limits(max_bytes=taken - 15_000, above_bytes=taken - 1))
    assert keys(store) == [1, 2]
    assert (done.records, done.blobs) == (2, 2)
    assert store.index.names("latest") == ["1", "2"]
    assert read_statistics(store.folder, store.locks).estimated_bytes == done.left_bytes


def test_log_is_removed_with_its_record(store, fill) -> None:
    for number, words in ((1, b"first"), (2, b"second")):
        log = fill({"log.txt": words}) / "log.txt"
        store.publish(
            Record(key(number), "c", KeyInputs("export", 1, {}, {}, {}), {}), {"out": fill({"f": b"same"})}, log
        )
    os.utime(store.records.path(key(1)), (NOW - 3e8, NOW - 3e8))
    collected(store, Limits(older_than_seconds=DAY))
    assert sorted(contents(store.blobs.folder).values()) == [b"same", b"second"]


def test_collection_without_limits_removes_only_orphans(store, put) -> None:
    put(1, b"kept", days=400)
    store.records.remove(put(2, b"orphan").cache_key)
    done = collected(store, Limits())
    assert (done.records, done.blobs, done.freed_bytes) == (0, 1, len(b"orphan"))
    assert keys(store) == [1]


def test_old_leftovers_are_removed_and_held_locks_kept(store) -> None:
    for folder in (store.quarantine, store.failures):
        folder.mkdir()
        (folder / "new").write_bytes(b"12345")
    (store.quarantine / "index-1").mkdir()
    (store.quarantine / "index-1" / "cache.db").write_bytes(b"123")
    with store.locks.hold("free"):
        pass
    with store.locks.hold("held"):
        assert collected(store, Limits()).leftovers == 0
        assert [file.stem for file in (store.folder / "locks").glob("*.lock")].count("free") == 0
        with store.locks.try_hold("held") as free:
            assert not free
    done = collected(store, Limits(older_than_seconds=0))
    assert (done.leftovers, done.freed_bytes) == (3, 13)
    assert contents(store.quarantine) == contents(store.failures) == {}


def test_dry_run_reports_removals_and_changes_nothing(store, put) -> None:
    for number in range(4):
        put(number, b"%d" % number * 1000, days=number)
    before = contents(store.records.folder) | contents(store.blobs.folder)
    planned = collected(store, Limits(max_bytes=3000), dry_run=True)
    assert planned.records > 0
    assert contents(store.records.folder) | contents(store.blobs.folder) == before
    assert collected(store, Limits(max_bytes=3000)) == planned


def test_records_of_a_cached_plan_count_as_used(store, put) -> None:
    put(1, b"one", days=9)
    put(2, b"two", days=9)
    folder = store.folder / "standing"
    folder.mkdir()
    (folder / "abc.keys").write_text(f"{key(1)}\n")
    (folder / "odd.keys").write_bytes(b"\xff\xfe\x00 None\n")
    assert collected(store, Limits(older_than_seconds=DAY)).records == 1
    assert keys(store) == [1]


def test_cached_plan_of_removed_records_is_removed(store, put) -> None:
    put(1, b"one", days=9)
    folder = store.folder / "standing"
    folder.mkdir()
    for name, days in (("gone.keys", 5), ("gone.note", 5), ("other.keys", 5), ("other.note", 0)):
        (folder / name).write_text(f"{key(1) if name == 'gone.keys' else key(2)}\n")
        os.utime(folder / name, (NOW, NOW - 10 * DAY * days)) if days else None
    done = collected(store, Limits(older_than_seconds=DAY))
    assert done.records == 1
    assert sorted(contents(folder)) == ["other.keys", "other.note"]


def test_unreadable_record_stops_collection_before_removal(store, put, monkeypatch) -> None:
    put(1, b"one", days=9)
    put(2, b"two", days=9)

    def denied(records: Records, key: str) -> Record:
        raise PermissionError(13, "Permission denied", str(records.path(key)))

    before = contents(store.blobs.folder)
    with monkeypatch.context() as patched:
        patched.setattr(Records, "read_file", denied)
        with pytest.raises(module.StoreError, match="permission denied"):
            collected(store, Limits(max_bytes=0))
    assert contents(store.blobs.folder) == before
    assert keys(store) == [1, 2]


def test_damaged_record_is_kept_for_verify_and_its_blobs_removed(store, put) -> None:
    put(1, b"one")
    store.records.path(key(1)).write_text("damaged")
    assert collected(store, Limits()).blobs == 1
    assert verify(store).unreadable == (key(1),)


def test_future_timestamps_do_not_prevent_collection(store, put) -> None:
    record = put(1, b"one", days=-4000)
    os.utime(store.blobs.path(record.files()[0].digest), ns=(STAMP_NS * 4, STAMP_NS))
    assert collected(store, Limits(older_than_seconds=DAY)).records == 0
    done = collected(store, Limits(max_bytes=0))
    assert (done.records, done.blobs, done.left_bytes) == (1, 1, 0)


PARTS = st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=3)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(st.tuples(PARTS, st.integers(0, 20)), max_size=8),
    limit=st.integers(0, 4000),
    days=st.none() | st.integers(0, 20),
)
def test_collection_meets_limits_with_minimal_removal(tmp_path_factory, records, limit, days) -> None:
    store = Store(tmp_path_factory.mktemp("any") / "cache")
    used = {}
    for number, (data, ago) in enumerate(records):
        folder = tmp_path_factory.mktemp("out")
        for place, some in enumerate(data):
            (folder / str(place)).write_bytes(some * 100)
        store.publish(Record(key(number), "c", KeyInputs("export", 1, {}, {}, {}), {}), {"out": folder})
        path = store.records.path(key(number))
        used[number] = path.stat().st_mtime - ago * DAY - 1
        os.utime(path, (used[number], used[number]))
    before, every = size(store), set(keys(store))
    done = collected(store, Limits(limit, None if days is None else days * DAY))
    kept = set(keys(store))
    gone = every - kept
    assert size(store) == done.left_bytes <= max(limit, 0)
    assert done.freed_bytes == before - size(store)
    assert verify(store).clean
    needed = {file.digest for number in kept for file in store.record(key(number)).files()}
    assert {blob.digest for blob in store.blobs.all()} == needed
    # Everything kept was used after everything removed.
    assert not gone or not kept or max(used[one] for one in gone) <= min(used[one] for one in kept)
    if before <= limit and days is None:
        assert not gone
    store.close()


def test_linked_file_keeps_bytes_and_mode(store, put, tmp_path) -> None:
    record = put(1, b"one", days=9)
    os.link(store.blobs.path(record.files()[0].digest), tmp_path / "linked")
    assert collected(store, Limits(max_bytes=0)).blobs == 1
    assert (tmp_path / "linked").read_bytes() == b"one"
    assert (tmp_path / "linked").stat().st_mode & 0o222 == 0


LIVE = """
import sys
from pathlib import Path
from winml_dag.store.store import Store
store = Store(Path(sys.argv[1]))
with store.scratch.open():
    for line in sys.stdin:
        store.used(line.split())
        print("used", flush=True)
"""


@pytest.fixture
def run(store: Store) -> Iterator[subprocess.Popen[str]]:
    """A run in another process, which lives until its standard input ends and uses the keys written to it."""
    process = subprocess.Popen(
        [sys.executable, "-c", LIVE, str(store.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def uses(run: subprocess.Popen[str], *numbers: int) -> None:
    assert run.stdin is not None
    assert run.stdout is not None
    run.stdin.write(" ".join(map(key, numbers)) + "\n")
    run.stdin.flush()
    assert run.stdout.readline() == "used\n"


def test_records_used_by_a_running_process_are_kept(store, put, run) -> None:
    put(1, b"one", days=9)
    held = put(2, b"two", days=9)
    uses(run, 2)
    done = collected(store, Limits(max_bytes=0))
    assert keys(store) == [2]
    assert store.missing(held.files()) == []
    assert (done.records, done.records_in_use) == (1, 1)
    run.communicate()
    assert collected(store, Limits(max_bytes=0)).left_bytes == 0


def test_blobs_stored_since_a_running_process_began_are_kept(store, fill, run) -> None:
    uses(run)
    (fill({"new": b"new"}) / "new").replace(store.folder / "new")
    entry = store.blobs.ingest(store.folder / "new", "xxh3-128")
    done = collected(store, Limits(max_bytes=0))
    assert (done.blobs, done.blobs_in_use) == (0, 1)
    assert store.blobs.missing([entry]) == []
    run.communicate()
    assert collected(store, Limits(max_bytes=0)).blobs == 1


def test_record_used_between_scan_and_removal_is_kept(store, put, monkeypatch) -> None:
    kept = put(1, b"one", days=9)
    put(2, b"two", days=9)
    choose = module._choose

    def used_meanwhile(*found):
        store.used([key(1)])
        return choose(*found)

    monkeypatch.setattr(module, "_choose", used_meanwhile)
    done = collected(store, Limits(max_bytes=0))
    assert keys(store) == [1]
    assert (done.records, done.records_in_use) == (1, 1)
    assert store.missing(kept.files()) == []


def test_record_used_during_removal_is_restored(store, put, monkeypatch) -> None:
    """Its file is already moved away when the use finds none, and writes it again."""
    kept = put(1, b"one", days=9)
    remove = module._remove_unless_used

    def used_then(*file):
        gone = remove(*file)
        store.used([key(1)])
        return gone

    monkeypatch.setattr(module, "_remove_unless_used", used_then)
    assert collected(store, Limits(max_bytes=0)).records == 0
    assert store.record(key(1)) == kept
    assert store.missing(kept.files()) == []
    assert verify(store).clean


def test_blob_stored_between_scan_and_removal_is_kept(store, put, fill, monkeypatch) -> None:
    put(1, b"same" * 100, days=9)
    choose = module._choose

    def stored_meanwhile(*found):
        settle(store)
        folder = fill({"again": b"same" * 100})
        store.blobs.ingest(folder / "again", "xxh3-128")
        return choose(*found)

    monkeypatch.setattr(module, "_choose", stored_meanwhile)
    done = collected(store, Limits(max_bytes=0))
    assert (done.records, done.blobs, done.blobs_in_use) == (1, 0, 1)
    assert list(contents(store.blobs.folder).values()) == [b"same" * 100]


def test_collection_without_wait_returns_none_while_another_runs(store) -> None:
    with store.locks.hold("collect"):
        assert collect(store, Limits(), wait=False) is None
