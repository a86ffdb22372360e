"""Collection during builds: everything that they use, read or store at any time stays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from store_samples import collected, contents, key, keys, settle

from winml_dag.store import gc as module
from winml_dag.store.gc import Limits, collect
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify

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


def test_what_a_living_run_uses_stays_and_the_rest_goes(store, put, run) -> None:
    put(1, b"one", days=9)
    held = put(2, b"two", days=9)
    uses(run, 2)
    done = collected(store, Limits(max_bytes=0))
    assert keys(store) == [2]
    assert store.missing(held.files()) == []
    assert (done.records, done.records_in_use) == (1, 1)
    run.communicate()
    assert collected(store, Limits(max_bytes=0)).left_bytes == 0


def test_what_was_stored_since_a_living_run_began_stays_though_its_record_is_not_there_yet(store, fill, run) -> None:
    uses(run)
    (fill({"new": b"new"}) / "new").replace(store.folder / "new")
    entry = store.blobs.ingest(store.folder / "new", "xxh3-128")
    done = collected(store, Limits(max_bytes=0))
    assert (done.blobs, done.blobs_in_use) == (0, 1)
    assert store.blobs.missing([entry]) == []
    run.communicate()
    assert collected(store, Limits(max_bytes=0)).blobs == 1


def test_a_record_that_is_used_between_the_look_and_the_hand_stays(store, put, monkeypatch) -> None:
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


def test_a_record_that_is_used_while_it_is_being_removed_comes_back(store, put, monkeypatch) -> None:
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


def test_a_blob_that_is_stored_again_between_the_look_and_the_hand_stays(store, put, fill, monkeypatch) -> None:
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


def test_a_second_collection_waits_or_lets_it_be(store) -> None:
    with store.locks.hold("collect"):
        assert collect(store, Limits(), wait=False) is None
