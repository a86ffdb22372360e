"""Collection of a cache that is too big or too old: what is removed, in which order, and what never is."""

from __future__ import annotations

import os

import pytest
from collect_samples import DAY, collected, key, keys, size
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_samples import contents

from winml_dag.store import gc as module
from winml_dag.store.blobs import STAMP_NS
from winml_dag.store.cache_folder import log_build
from winml_dag.store.gc import Collected, Limits
from winml_dag.store.records import KeyInputs, Record, Records
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify
from winml_dag.store.usage import read_statistics

NOW = 1_700_000_000


def test_what_was_used_longest_ago_goes_first_and_only_as_much_as_has_to(store, put) -> None:
    for number, days in enumerate([3, 9, 1, 6]):
        put(number, b"%d" % number * 10_000, days=days)
    before = size(store)
    done = collected(store, Limits(max_bytes=before - 15_000))
    assert keys(store) == [0, 2]
    assert (done.records, done.blobs) == (2, 2)
    assert done.left_bytes == size(store)
    assert done.freed_bytes == before - size(store)
    assert verify(store).clean


def test_a_use_puts_a_record_at_the_end_of_the_line(store, put) -> None:
    put(1, b"one" * 1000, days=9)
    put(2, b"two" * 1000, days=5)
    store.used([key(1)])
    collected(store, Limits(max_bytes=size(store) - 1))
    assert keys(store) == [1]


def test_what_was_not_used_for_too_long_goes_whatever_the_size(store, put) -> None:
    put(1, b"one", days=31)
    put(2, b"two", days=29)
    assert collected(store, Limits(older_than_seconds=30 * DAY)).records == 1
    assert keys(store) == [2]


def test_a_blob_that_a_record_still_needs_stays(store, put) -> None:
    put(1, b"shared" * 1000, b"alone", days=9)
    kept = put(2, b"shared" * 1000, days=1)
    done = collected(store, Limits(older_than_seconds=5 * DAY))
    assert (done.records, done.blobs) == (1, 1)
    assert store.missing(kept.files()) == []


def test_freeing_nothing_by_a_shared_blob_goes_on_until_there_is_room(store, put) -> None:
    for number in range(3):
        put(number, b"shared" * 5000, days=9 - number)
    put(3, b"last", days=1)
    done = collected(store, Limits(max_bytes=20_000))
    assert keys(store) == [3]
    assert done.blobs == 1


def test_the_log_of_a_record_goes_with_it_and_not_before(store, fill) -> None:
    for number, words in ((1, b"first"), (2, b"second")):
        log = fill({"log.txt": words}) / "log.txt"
        store.publish(
            Record(key(number), "c", KeyInputs("export", 1, {}, {}, {}), {}), {"out": fill({"f": b"same"})}, log
        )
    os.utime(store.records.path(key(1)), (NOW - 3e8, NOW - 3e8))
    collected(store, Limits(older_than_seconds=DAY))
    assert sorted(contents(store.blobs.folder).values()) == [b"same", b"second"]


def test_without_limits_only_what_no_record_needs_goes(store, put) -> None:
    put(1, b"kept", days=400)
    store.records.remove(put(2, b"orphan").cache_key)
    done = collected(store, Limits())
    assert (done.records, done.blobs, done.freed_bytes) == (0, 1, len(b"orphan"))
    assert keys(store) == [1]


def test_a_dry_run_says_what_would_go_and_touches_nothing(store, put) -> None:
    for number in range(4):
        put(number, b"%d" % number * 1000, days=number)
    before = contents(store.records.folder) | contents(store.blobs.folder)
    planned = collected(store, Limits(max_bytes=3000), dry_run=True)
    assert planned.records > 0
    assert contents(store.records.folder) | contents(store.blobs.folder) == before
    assert collected(store, Limits(max_bytes=3000)) == planned


def test_names_of_what_has_gone_are_forgotten_and_others_are_not(store, put) -> None:
    put(1, b"one", days=9)
    put(2, b"two")
    store.remember({"old": key(1)})
    store.remember({"new": key(2)})
    collected(store, Limits(older_than_seconds=DAY))
    assert store.index.names("latest") == ["new"]


def test_a_plan_that_stands_keeps_its_records_used(store, put) -> None:
    put(1, b"one", days=9)
    put(2, b"two", days=9)
    folder = store.folder / "standing"
    folder.mkdir()
    (folder / "abc.keys").write_text(f"{key(1)}\n")
    assert collected(store, Limits(older_than_seconds=DAY)).records == 1
    assert keys(store) == [1]


def test_a_plan_whose_records_have_gone_goes_with_all_its_files(store, put) -> None:
    put(1, b"one", days=9)
    folder = store.folder / "standing"
    folder.mkdir()
    for name, days in (("gone.keys", 5), ("gone.note", 5), ("other.keys", 5), ("other.note", 0)):
        (folder / name).write_text(f"{key(1) if name == 'gone.keys' else key(2)}\n")
        os.utime(folder / name, (NOW, NOW - 10 * DAY * days)) if days else None
    done = collected(store, Limits(older_than_seconds=DAY))
    assert done.records == 1
    assert sorted(contents(folder)) == ["other.keys", "other.note"]


def test_keys_of_plans_that_make_no_sense_hold_nothing(store, put) -> None:
    put(1, b"one", days=9)
    folder = store.folder / "standing"
    folder.mkdir()
    (folder / "odd.keys").write_bytes(b"\xff\xfe\x00 None\n")
    assert collected(store, Limits(older_than_seconds=DAY)).records == 1


def test_old_leftovers_go_and_new_ones_stay(store) -> None:
    for folder in (store.quarantine, store.failures):
        folder.mkdir()
        (folder / "new").write_bytes(b"12345")
    (store.quarantine / "index-1").mkdir()
    (store.quarantine / "index-1" / "cache.db").write_bytes(b"123")
    assert collected(store, Limits()).leftovers == 0
    done = collected(store, Limits(older_than_seconds=0))
    assert (done.leftovers, done.freed_bytes) == (3, 13)
    assert contents(store.quarantine) == contents(store.failures) == {}


def test_lock_files_that_nobody_holds_go(store) -> None:
    with store.locks.hold("free"):
        pass
    with store.locks.hold("held"):
        collected(store, Limits())
        assert [file.stem for file in (store.folder / "locks").glob("*.lock")].count("free") == 0
        with store.locks.try_hold("held") as free:
            assert not free


def test_a_record_that_may_not_be_read_stops_it_before_anything_is_removed(store, put, monkeypatch) -> None:
    put(1, b"one", days=9)
    put(2, b"two", days=9)
    store.index.clear()

    def denied(records: Records, key: str) -> Record:
        raise PermissionError(13, "Permission denied", str(records.path(key)))

    before = contents(store.blobs.folder)
    with monkeypatch.context() as patched:
        patched.setattr(Records, "read_file", denied)
        with pytest.raises(module.StoreError, match="permission denied"):
            collected(store, Limits(max_bytes=0))
    assert contents(store.blobs.folder) == before
    assert keys(store) == [1, 2]


def test_a_damaged_record_is_left_for_verify_and_what_it_needed_goes(store, put) -> None:
    put(1, b"one")
    store.index.clear()
    store.records.path(key(1)).write_text("damaged")
    assert collected(store, Limits()).blobs == 1
    assert verify(store).unreadable == (key(1),)


def test_times_from_a_clock_that_was_ahead_hold_nothing_for_ever(store, put) -> None:
    record = put(1, b"one", days=-4000)
    os.utime(store.blobs.path(record.files()[0].digest), ns=(STAMP_NS * 4, STAMP_NS))
    assert collected(store, Limits(older_than_seconds=DAY)).records == 0
    done = collected(store, Limits(max_bytes=0))
    assert (done.records, done.blobs, done.left_bytes) == (1, 1, 0)


def test_above_a_size_only(store, put) -> None:
    put(1, b"one" * 1000, days=9)
    taken = size(store)
    assert collected(store, Limits(max_bytes=0, above_bytes=taken)) == Collected(left_bytes=taken)
    assert collected(store, Limits(max_bytes=0, above_bytes=taken - 1)).records == 1


def test_the_size_that_was_found_is_noted(store, put) -> None:
    put(1, b"one" * 1000)
    collected(store, Limits())
    assert read_statistics(store.folder, store.locks).estimated_bytes == size(store)
    log_build(store.folder, reused=0, ran=1, seconds_saved=0, stored_bytes=5)
    assert read_statistics(store.folder, store.locks).estimated_bytes == size(store) + 5


PARTS = st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=3)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(st.tuples(PARTS, st.integers(0, 20)), max_size=8),
    limit=st.integers(0, 4000),
    days=st.none() | st.integers(0, 20),
)
def test_any_store_is_within_its_limits_afterwards_and_has_lost_no_more_than_it_had_to(
    tmp_path_factory, records, limit, days
) -> None:
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


def test_a_file_that_is_linked_to_a_blob_keeps_its_bytes_and_its_mode(store, put, tmp_path) -> None:
    record = put(1, b"one", days=9)
    os.link(store.blobs.path(record.files()[0].digest), tmp_path / "linked")
    assert collected(store, Limits(max_bytes=0)).blobs == 1
    assert (tmp_path / "linked").read_bytes() == b"one"
    assert (tmp_path / "linked").stat().st_mode & 0o222 == 0
