"""Stores that were recorded by a build: a sound one must stay readable, and no damaged one may give wrong bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from winml_dag.engine.keys import cache_key
from winml_dag.errors import StoreError
from winml_dag.store.digest import digest_file
from winml_dag.store.local import LocalStore
from winml_dag.store.store import BlobDamaged
from winml_dag.store.upkeep import verify

FIXTURES = Path(__file__).parents[3] / "cache_fixtures"


def opened(name: str, folder: Path) -> LocalStore:
    """A copy of a recorded store: opening one puts things into it."""
    shutil.copytree(FIXTURES / name, folder / "store")
    return LocalStore(folder / "store")


def keys(store: LocalStore) -> list[str]:
    return [path.parent.name + path.stem for path in (store.folder / "records").rglob("*.json")]


def test_format_1_is_read_whole_without_its_index(tmp_path: Path) -> None:
    store = opened("format-1", tmp_path)
    assert verify(store).clean
    found = [store.record(key) for key in keys(store)]
    assert {record.ingredients.stage for record in found if record} == {
        "optimize",
        "calibrate",
        "quantize",
        "validate",
        "finalize",
    }
    for record in found:
        assert record is not None
        # Its key is still the one that these ingredients have: else nobody would ever find it again.
        assert cache_key(record.ingredients) == record.cache_key
        assert store.missing(record.files()) == []
        for slot, artifact in record.outputs.items():
            store.fetch(artifact, tmp_path / record.ingredients.stage / slot)
            for file in artifact.files:
                assert digest_file(tmp_path / record.ingredients.stage / slot / file.name) == file.digest


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


def test_an_unknown_format_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="999"):
        opened("format-1-unknown-format", tmp_path)
