"""A cache with a size limit: where the limit comes from, when it is enforced, and how far the cache shrinks."""

from __future__ import annotations

import os

import pytest
from store_samples import size

from winml_dag.errors import UsageError
from winml_dag.store import gc as module
from winml_dag.store.cache_folder import LOG, log_build
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.usage import (
    VARIABLE,
    configured_limit,
    keep_to_limit,
    limit_text,
    log_size,
    set_limit,
)


@pytest.fixture(autouse=True)
def _no_limit_around(monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def put(store, fill):
    """Publishes a record of about 10 KB, each used later than the previous one, all long ago; logged as builds do."""

    def put(number: int) -> None:
        record = store.publish(
            Record(f"{number:064x}", "c", KeyInputs("export", 1, {}, {}, {}), {}),
            {"out": fill({"model": b"%04d" % number * 2500})},
        )
        os.utime(store.records.path(record.cache_key), (10**9 + number, 10**9 + number))
        log_build(store.folder, reused=0, ran=1, seconds_saved=0, stored_bytes=10_000)

    return put


def test_it_is_set_changed_and_removed_and_the_environment_wins_either_way(store, monkeypatch) -> None:
    assert configured_limit(store.folder) is None
    assert set_limit(store.folder, "50GiB") == configured_limit(store.folder) == 50 * 2**30
    assert limit_text(store.folder) == "50GiB"
    set_limit(store.folder, "2GB")
    assert configured_limit(store.folder) == 2 * 10**9
    with monkeypatch.context() as patched:
        patched.setenv(VARIABLE, "1GB")
        assert configured_limit(store.folder) == 10**9
        patched.setenv(VARIABLE, "none")
        assert configured_limit(store.folder) is None
        assert limit_text(store.folder) == ""
    for _ in range(2):
        assert set_limit(store.folder, "none") is None
        assert configured_limit(store.folder) is None


def test_a_limit_that_is_no_size_names_its_place(store, monkeypatch) -> None:
    with pytest.raises(UsageError, match="the limit: '5' is not a size"):
        set_limit(store.folder, "5")
    (store.folder / "limit").write_text("lots")
    with pytest.raises(UsageError, match=r"cache.limit: 'lots' is not a size"):
        configured_limit(store.folder)
    monkeypatch.setenv(VARIABLE, "5")
    with pytest.raises(UsageError, match=VARIABLE):
        configured_limit(store.folder)


def test_a_cache_that_outgrows_its_limit_shrinks_to_four_fifths_of_it_oldest_first(store, put) -> None:
    for number in range(12):
        put(number)
    set_limit(store.folder, "100KB")
    done = keep_to_limit(store)
    assert done is not None
    assert done.left_bytes == size(store) <= 80_000
    assert store.records.keys() == [f"{number:064x}" for number in range(done.records, 12)]


def test_a_cache_within_its_limit_is_measured_once_and_then_not_gone_through(store, put, monkeypatch) -> None:
    set_limit(store.folder, "100KB")
    put(0)
    assert keep_to_limit(store) is None
    monkeypatch.setattr(module, "collect", lambda *_, **__: pytest.fail("went through the store"))
    for number in range(1, 8):
        put(number)
        assert keep_to_limit(store) is None


def test_what_was_stored_twice_is_measured_again_and_nothing_is_removed(store, put) -> None:
    set_limit(store.folder, "100KB")
    for _ in range(20):
        put(0)
    assert keep_to_limit(store) is None
    assert len(store.records.keys()) == 1


def test_lost_statistics_mean_measuring_again(store, put) -> None:
    set_limit(store.folder, "100KB")
    for number in range(12):
        put(number)
    log_size(store.folder, 0)
    (store.folder / LOG).unlink()
    assert keep_to_limit(store) is not None


def test_while_another_collects_nothing_is_done(store, put) -> None:
    put(0)
    assert keep_to_limit(store) is None, "there is no limit"
    set_limit(store.folder, "1KB")
    with store.locks.hold("collect"):
        assert keep_to_limit(store) is None
    assert keep_to_limit(store) is not None
