from __future__ import annotations

import os
import sqlite3
import sys
import time
from pathlib import Path

import pytest
from store_samples import KEY, OTHER_KEY, contents, spoil

from winml_dag.errors import StoreError
from winml_dag.store.blobs import STAMP_NS, Blobs
from winml_dag.store.store import Store
from winml_dag.store.upkeep import Cleared, clear, info, repair, verify

WEIGHTS = b"weights" * 100


@pytest.fixture
def two_records(store, publish):
    """Two records that share their weights."""
    return [
        publish(store, {"model.onnx": b"one", "model.onnx.data": WEIGHTS}),
        publish(store, {"model.onnx": b"other", "model.onnx.data": WEIGHTS}, OTHER_KEY),
    ]


@pytest.mark.usefixtures("two_records")
def test_intact_store_is_clean_and_info_counts_shared_bytes(store) -> None:
    report = verify(store)
    assert report.clean
    assert report.repaired
    assert (report.records, report.blobs) == (2, 3)
    assert repair(store) == report
    found = info(store)
    assert (found.records, found.blobs) == (2, 3)
    assert found.unique_bytes == len(b"one") + len(b"other") + len(WEIGHTS)
    assert found.apparent_bytes == found.unique_bytes + len(WEIGHTS)
    assert found.scratch_bytes == found.quarantine_bytes == 0
    assert found.index_bytes > 0
    with store.scratch.open() as root:
        (root / "work").write_bytes(b"12345")
        assert info(store).scratch_bytes == 5


@pytest.mark.parametrize("harm", ["lost", "rotten"])
def test_damaged_blob_is_named_and_repair_removes_its_record(store, two_records, harm) -> None:
    file = two_records[0].files()[0]
    if harm == "lost":
        store.blobs.path(file.digest).unlink()
    else:
        spoil(store.blobs.path(file.digest), b"onf", stamped=True)
    report = verify(store)
    assert not report.clean
    assert report.damaged == ((file.digest,) if harm == "rotten" else ())
    assert report.incomplete == (KEY,)
    assert list(contents(store.quarantine).values()) == ([b"onf"] if harm == "rotten" else [])
    report = repair(store)
    assert (report.removed, report.incomplete, report.damaged, report.records) == ((KEY,), (KEY,), (), 1)
    assert report.repaired
    assert store.record(KEY) is None
    assert store.record(OTHER_KEY) == two_records[1]
    assert verify(store).clean


@pytest.mark.parametrize("denied", [False, True], ids=["a file is in its place", "nobody may make it"])
def test_damaged_blob_stays_damaged_without_quarantine(store, two_records, denied: bool) -> None:
    if denied:
        # Nobody can create a folder there, not even root.
        if sys.platform != "linux":
            pytest.skip("needs a file system that refuses everybody")
        store.blobs = Blobs(store.blobs.folder, Path("/sys/quarantine"))
    else:
        store.quarantine.write_text("in the way")
    rotten = two_records[0].files()[0]
    spoil(store.blobs.path(rotten.digest), b"onf")
    for _ in range(2):
        assert verify(store).damaged == (rotten.digest,)
        assert store.missing([rotten]) == [rotten]


@pytest.mark.usefixtures("two_records")
def test_verify_finds_a_damaged_record(store) -> None:
    store.records.path(KEY).write_text("damaged")
    report = verify(store)
    assert report.unreadable == (KEY,)
    assert store.record(KEY) is None
    assert list(contents(store.quarantine).values()) == [b"damaged"]
    assert verify(store).clean


@pytest.mark.usefixtures("two_records")
@pytest.mark.parametrize(
    ("folder", "hours", "stays"),
    [("blobs", 0, True), ("blobs", 2, False), ("incoming", 23, True), ("incoming", 25, False)],
)
def test_verify_removes_old_unfinished_files(store, monkeypatch, folder: str, hours: int, stays: bool) -> None:
    partial = store.folder / folder / "1.partial"
    partial.parent.mkdir(exist_ok=True)
    partial.write_text("half")
    os.utime(partial, ns=(STAMP_NS, STAMP_NS))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + hours * 3600)
    assert verify(store).clean
    assert partial.exists() == stays


@pytest.mark.usefixtures("two_records")
def test_clear_removes_everything_and_reports_freed_bytes(store, publish) -> None:
    store.remember({"name": KEY})
    (store.quarantine).mkdir()
    (store.quarantine / "index-1").write_bytes(b"x" * 10_000)
    store.incoming.mkdir()
    (store.incoming / "1.partial").write_bytes(b"x" * 10_000)
    store.failures.mkdir()
    (store.failures / "quantize-1.log").write_text("no")
    cleared = clear(store)
    assert (cleared.records, cleared.blobs) == (2, 3)
    assert cleared.freed_bytes >= 20_000 + len(WEIGHTS)
    assert not store.incoming.exists()
    assert store.record(KEY) is None
    assert store.latest(["name"]).get("name") is None
    assert contents(store.blobs.folder) == contents(store.quarantine) == contents(store.failures) == {}
    assert clear(store) == Cleared(0, 0, 0)
    assert publish(store, {"model.onnx": b"one"}) == store.record(KEY)
    assert verify(store).clean


@pytest.mark.parametrize("use", ["claim", "scratch"])
def test_clear_refuses_while_store_is_in_use(store, two_records, use) -> None:
    with store.claim(KEY) if use == "claim" else store.scratch.open(), pytest.raises(StoreError, match="in use"):
        clear(store)
    assert store.record(KEY) == two_records[0]
    assert store.missing(two_records[0].files()) == []


def test_verify_restamps_copied_blob(store, two_records) -> None:
    moved = two_records[0].files()[0]
    os.utime(store.blobs.path(moved.digest))
    report = verify(store)
    assert report.clean
    assert report.restamped == (moved.digest,)
    assert verify(store).restamped == ()


@pytest.mark.usefixtures("two_records")
def test_repair_keeps_a_record_being_completed(store) -> None:
    lost = store.record(KEY).files()[0]
    store.blobs.path(lost.digest).unlink()
    with Store(store.folder).claim(KEY):
        report = repair(store)
    assert report.incomplete == (KEY,)
    assert report.removed == ()
    assert not report.repaired
    assert store.record(KEY) is not None


def test_repair_makes_index_match_record_files(store, two_records) -> None:
    unknown = "f" * 64
    store.index.remove("record", [OTHER_KEY])
    store.index.write("record", {unknown: None}, {unknown: "export"})
    store.index.write("latest", {"name": KEY})
    assert repair(store).rows == (OTHER_KEY, unknown)
    assert store.index.names("record") == sorted([KEY, OTHER_KEY])
    assert store.records_of("export", 5) == two_records[::-1]
    assert store.latest(["name"]).get("name") == two_records[0]
    assert repair(store).rows == ()


@pytest.mark.usefixtures("two_records")
def test_repair_removes_invalid_index_rows(store) -> None:
    store.index.write("latest", {"name": KEY})
    with sqlite3.connect(store.folder / "index" / "cache.db") as database:
        database.execute("UPDATE Cache SET value = '[\"0000000000000000\",1]' WHERE key = 'latest:name'")
        database.execute("UPDATE Cache SET mode = 4 WHERE key = ?", (f"record:{KEY}",))
        count = database.execute("SELECT COUNT(*) FROM Cache").fetchone()[0]
    database.close()
    assert repair(store).rows == (KEY,)
    assert store.index.names("latest") == []
    with sqlite3.connect(store.folder / "index" / "cache.db") as database:
        assert database.execute("SELECT COUNT(*) FROM Cache").fetchone()[0] == count - 1
    database.close()
