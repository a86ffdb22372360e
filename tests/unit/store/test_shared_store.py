"""A store with a remote: what it fetches and when, and a remote that loses data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from servers.memory import MemoryRemote
from store_samples import KEY, OTHER_KEY, contents, spoil

from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.records import Record
from winml_dag.store.remote.settings import Mode, SigningKey, TierSettings
from winml_dag.store.remote.tier import Remotes
from winml_dag.store.remote.trust import Maker, Trust
from winml_dag.store.store import Store

FILES = {"model.onnx": b"graph", "model.onnx.data": b"weights" * 1000}
TRUST = Trust((SigningKey("team", b"k" * 32),), Maker("winml_dag 0.1.0", host="Linux x86_64"))

Machine = Callable[[str], Store]
Fill = Callable[[Mapping[str, bytes]], Path]


@pytest.fixture
def remote() -> MemoryRemote:
    return MemoryRemote()


@pytest.fixture
def machine(tmp_path: Path, remote: MemoryRemote) -> Machine:
    """Makes stores of separate machines with one common remote."""

    def machine(name: str) -> Store:
        level = (remote, TierSettings("memory://", Mode.READ_WRITE))

        def behind(store: Store) -> Remotes:
            return Remotes([level], store.blobs, TRUST, scratch=store.incoming, locks=store.locks, warn=lambda _: None)

        return Store(tmp_path / name, behind)

    return machine


@pytest.fixture
def made(machine: Machine, new_record: Callable[[str], Record], fill: Fill) -> Record:
    """A record that another machine has made and uploaded."""
    there = machine("there")
    record = there.publish(new_record(KEY), {"model": fill(FILES)})
    there.settle()
    there.close()
    return record


@pytest.mark.parametrize("put", [Store.fetch, Store.link])
def test_blobs_are_fetched_on_use_and_then_local(
    machine: Machine, remote: MemoryRemote, made: Record, tmp_path: Path, put: Callable[..., object]
) -> None:
    here = machine("here")
    found = here.record(KEY)
    assert found is not None
    assert dataclasses.replace(found, origin={}) == made
    assert here.came_from_remote(KEY)
    assert list(here.blobs.all()) == []
    assert len(here.remote_only(made.files())) == 2
    put(here, made.outputs["model"], tmp_path / "out")
    assert contents(tmp_path / "out") == FILES
    assert here.remote_only(made.files()) == []
    # The code that enforces the cache limit counts it as stored, once.
    assert [here.take_fetched() for _ in range(2)] == [sum(map(len, FILES.values())), 0]
    remote.calls.clear()
    put(here, made.outputs["model"], tmp_path / "again")
    assert contents(tmp_path / "again") == FILES
    here.close()
    later = machine("here")
    assert later.record(KEY) == found
    assert not later.came_from_remote(KEY)
    later.close()
    assert {method for method, _ in remote.calls} == {"close"}


def test_prefetch_includes_blobs(machine: Machine, remote: MemoryRemote, made: Record) -> None:
    here = machine("here")
    assert set(here.prefetch_records([KEY, OTHER_KEY])) == {KEY}
    remote.calls.clear()
    assert here.missing(made.files()) == []
    assert here.record(OTHER_KEY) is None, "what no remote has is asked for once in a run"
    assert remote.calls == []
    here.close()


def test_record_with_missing_blobs_is_incomplete(machine: Machine, remote: MemoryRemote, made: Record) -> None:
    remote.blobs.pop(made.files()[0].digest)
    here = machine("here")
    record = here.record(KEY)
    assert record is not None
    assert here.missing(record.files()) == [made.files()[0]]
    here.close()


def test_vanished_blob_counts_as_missing(machine: Machine, remote: MemoryRemote, made: Record, tmp_path: Path) -> None:
    here = machine("here")
    assert here.missing(made.files()) == []
    remote.blobs.clear()
    with pytest.raises(BlobDamaged):
        here.fetch(made.outputs["model"], tmp_path / "out")
    assert here.missing(made.files()) == list(made.files())
    here.close()


def test_local_corruption_is_healed_from_remote(machine: Machine, made: Record, tmp_path: Path) -> None:
    here = machine("here")
    here.fetch_ahead(made.files())
    for file in made.files():
        spoil(here.blobs.path(file.digest), bytes(file.size), stamped=True)
    here.fetch(made.outputs["model"], tmp_path / "out")
    assert contents(tmp_path / "out") == FILES
    here.close()
