"""Recorded stores: an intact one must stay readable, and no damaged one may give wrong bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from winml_dag.engine.plan import Reuse, decide
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.digest import digest_file
from winml_dag.store.gc import Limits, collect
from winml_dag.store.records import Record, cache_key
from winml_dag.store.store import Store
from winml_dag.store.upkeep import repair, verify

FIXTURES = Path(__file__).parents[3] / "cache_fixtures"


def opened(name: str, folder: Path) -> Store:
    """Open a copy of a recorded store: opening creates files in it."""
    shutil.copytree(FIXTURES / name, folder / "store")
    return Store(folder / "store")


def keys(store: Store) -> list[str]:
    return sorted(path.parent.name + path.stem for path in (store.folder / "records").rglob("*.json"))


def check_whole(store: Store, folder: Path) -> list[Record]:
    """Assert that every record is a hit today, and its files match their digests; return the records."""
    found = [record for key in keys(store) if (record := store.record(key))]
    assert len(found) == 5
    for record in found:
        assert isinstance(decide(store.latest(["name"]).get("name"), record.key_inputs, store), Reuse)
        for slot, artifact in record.outputs.items():
            store.fetch(artifact, folder / record.cache_key / slot)
            for file in artifact.files:
                assert digest_file(folder / record.cache_key / slot / file.name) == file.digest
    return found


def test_format_1_is_readable_without_index(tmp_path: Path) -> None:
    store = opened("format-1", tmp_path)
    assert verify(store).clean
    found = check_whole(store, tmp_path / "fetched")
    assert {record.key_inputs.stage for record in found} == {
        "optimize",
        "calibrate",
        "quantize",
        "validate",
        "finalize",
    }
    # A key must still follow from its key inputs: otherwise it would never be found again.
    assert all(cache_key(record.key_inputs) == record.cache_key for record in found)


@pytest.mark.parametrize("harm", ["flipped-blob", "truncated-blob", "lost-blob", "records-only"])
def test_record_without_intact_blob_is_incomplete_until_repaired(tmp_path: Path, harm: str) -> None:
    store = opened(f"format-1-{harm}", tmp_path)
    records = [record for key in keys(store) if (record := store.record(key))]
    concerned = [record for record in records if store.missing(record.files())]
    assert len(concerned) == len(records) if harm == "records-only" else concerned
    for record in concerned:
        assert not isinstance(decide(store.latest(["name"]).get("name"), record.key_inputs, store), Reuse)
        for slot, artifact in record.outputs.items():
            with pytest.raises(BlobDamaged):
                store.fetch(artifact, tmp_path / record.cache_key / slot)
    named = tuple(sorted(record.cache_key for record in concerned))
    assert verify(store).incomplete == named
    report = repair(store)
    assert (report.removed, report.repaired) == (named, True)
    assert verify(store).clean


def test_damaged_record_counts_as_absent_and_is_named(tmp_path: Path) -> None:
    store = opened("format-1-flipped-record", tmp_path)
    every = keys(store)
    assert len(verify(store).unreadable) == 1
    assert len([key for key in every if store.record(key) is None]) == 1


@pytest.mark.parametrize(("name", "repaired"), [("format-1-truncated-index", True), ("format-1-damaged-index", False)])
def test_damaged_index_loses_no_results(tmp_path: Path, name: str, repaired: bool) -> None:
    store = opened(name, tmp_path)
    if repaired:
        assert repair(store).repaired
    check_whole(store, tmp_path / "fetched")
    assert verify(store).clean
    assert repair(store).rows == (() if repaired else tuple(keys(store)))
    assert repair(store).rows == ()
    assert store.index.names("record") == keys(store)


def test_foreign_files_are_named_and_survive_repair_and_collection(tmp_path: Path) -> None:
    store = opened("format-1-foreign-files", tmp_path)
    report = repair(store)
    assert report.foreign == ("blobs/thesis.docx", "blobs/xxh3-128/31/desktop.ini", "records/notes.txt")
    assert not report.clean
    assert report.repaired
    check_whole(store, tmp_path / "fetched")
    collect(store, Limits(max_bytes=0, older_than_seconds=0))
    for name in (*report.foreign, "readme.md"):
        assert (store.folder / name).read_text() == "precious\n"
