"""Recorded stores: an intact one must stay readable, and no damaged one may give wrong bytes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from winml_dag.engine.keys import cache_key
from winml_dag.engine.plan import Reuse, decide
from winml_dag.errors import StoreError
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.digest import digest_file
from winml_dag.store.gc import Limits, collect
from winml_dag.store.store import Store
from winml_dag.store.upkeep import repair, verify

FIXTURES = Path(__file__).parents[3] / "cache_fixtures"


def opened(name: str, folder: Path) -> Store:
    """Open a copy of a recorded store: opening creates files in it."""
    shutil.copytree(FIXTURES / name, folder / "store")
    return Store(folder / "store")


def keys(store: Store) -> list[str]:
    return sorted(path.parent.name + path.stem for path in (store.folder / "records").rglob("*.json"))


def test_format_1_is_read_whole_without_its_index(tmp_path: Path) -> None:
    store = opened("format-1", tmp_path)
    assert verify(store).clean
    found = [store.record(key) for key in keys(store)]
    assert {record.key_inputs.stage for record in found if record} == {
        "optimize",
        "calibrate",
        "quantize",
        "validate",
        "finalize",
    }
    for record in found:
        assert record is not None
        # Its key must still follow from its key inputs: otherwise it would never be found again.
        assert cache_key(record.key_inputs) == record.cache_key
        assert store.missing(record.files()) == []
        for slot, artifact in record.outputs.items():
            store.fetch(artifact, tmp_path / record.key_inputs.stage / slot)
            for file in artifact.files:
                assert digest_file(tmp_path / record.key_inputs.stage / slot / file.name) == file.digest


@pytest.mark.parametrize("name", ["format-1-flipped-blob", "format-1-truncated-blob", "format-1-lost-blob"])
def test_a_damaged_blob_is_missed_and_never_given_out(tmp_path: Path, name: str) -> None:
    store = opened(name, tmp_path)
    records = [record for key in keys(store) if (record := store.record(key))]
    concerned = [record for record in records if store.missing(record.files())]
    assert concerned
    for record in concerned:
        (artifact,) = record.outputs.values()
        with pytest.raises(BlobDamaged):
            store.fetch(artifact, tmp_path / record.cache_key)
    assert len(verify(store).incomplete) == len(concerned)


def test_a_damaged_record_counts_as_absent_and_is_named(tmp_path: Path) -> None:
    store = opened("format-1-flipped-record", tmp_path)
    every = keys(store)
    assert len(verify(store).unreadable) == 1
    assert len([key for key in every if store.record(key) is None]) == 1


def check_whole(store: Store, folder: Path) -> None:
    """Assert that every record is found, and its files match their digests."""
    found = [record for key in keys(store) if (record := store.record(key))]
    assert len(found) == 5
    for record in found:
        assert isinstance(decide(store.latest(["name"]).get("name"), record.key_inputs, store), Reuse)
        for slot, artifact in record.outputs.items():
            store.fetch(artifact, folder / record.cache_key / slot)


def test_what_was_asked_of_it_then_is_a_hit_today(tmp_path: Path) -> None:
    check_whole(opened("format-1", tmp_path), tmp_path / "fetched")


@pytest.mark.parametrize("name", ["format-1-truncated-index", "format-1-damaged-index"])
@pytest.mark.parametrize("repaired", [False, True])
def test_a_damaged_index_costs_nothing_that_was_built(tmp_path: Path, name: str, repaired: bool) -> None:
    store = opened(name, tmp_path)
    if repaired:
        assert repair(store).repaired
    check_whole(store, tmp_path / "fetched")
    assert verify(store).clean
    assert repair(store).rows == ()
    assert store.index.names("record") == keys(store)


def test_records_without_blobs_count_as_not_built_until_they_are_taken_out(tmp_path: Path) -> None:
    store = opened("format-1-records-only", tmp_path)
    every = keys(store)
    records = [store.record(key) for key in every]
    for record in records:
        assert record is not None
        assert not isinstance(decide(store.latest(["name"]).get("name"), record.key_inputs, store), Reuse)
    assert verify(store).incomplete == tuple(every)
    report = repair(store)
    assert report.removed == tuple(every)
    assert report.repaired
    assert keys(store) == []
    assert verify(store).clean


def test_files_of_somebody_else_are_named_and_survive_repair_and_collection(tmp_path: Path) -> None:
    store = opened("format-1-foreign-files", tmp_path)
    report = repair(store)
    assert report.foreign == ("blobs/thesis.docx", "blobs/xxh3-128/31/desktop.ini", "records/notes.txt")
    assert not report.clean
    assert report.repaired
    check_whole(store, tmp_path / "fetched")
    collect(store, Limits(max_bytes=0, older_than_seconds=0))
    for name in (*report.foreign, "readme.md"):
        assert (store.folder / name).read_text() == "precious\n"


def test_a_collection_takes_records_of_an_older_program_like_any_others(tmp_path: Path) -> None:
    store = opened("format-1", tmp_path)
    for key in keys(store):
        os.utime(store.records.path(key), (10**9, 10**9))
    done = collect(store, Limits(older_than_seconds=86_400))
    assert done is not None
    assert done.records == 5


def test_an_unknown_format_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="999"):
        opened("format-1-unknown-format", tmp_path)
