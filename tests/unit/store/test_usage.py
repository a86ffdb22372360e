"""The usage log of builds, its statistics, the size limit of a cache, and how sizes are written: no build fails because
of them.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from store_samples import size

from winml_dag.errors import UsageError
from winml_dag.store import gc, usage
from winml_dag.store.cache_folder import LIMIT_VARIABLE, LOG, log_build
from winml_dag.store.quantities import counted, duration_text, parse_duration, parse_size, size_text
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.store import Store
from winml_dag.store.usage import (
    Statistics,
    Traffic,
    configured_limit,
    keep_to_limit,
    log_size,
    log_traffic,
    read_statistics,
    set_limit,
)


def found(store: Store) -> Statistics:
    return read_statistics(store.folder, store.locks)


def test_builds_are_counted(store) -> None:
    assert found(store) == Statistics()
    assert found(store).hit_ratio is None
    log_build(store.folder, reused=0, ran=4, seconds_saved=0, stored_bytes=1000)
    log_build(store.folder, reused=3, ran=1, seconds_saved=12.34, stored_bytes=200)
    counted = found(store)
    assert (counted.builds, counted.reused, counted.ran, counted.seconds_saved) == (2, 3, 5, 12.34)
    assert counted.hit_ratio == 3 / 8
    assert counted.since is not None
    assert counted.estimated_bytes is None, "nothing was measured yet"


def test_remote_traffic_is_summed_and_survives_compaction(store) -> None:
    log_traffic(store.folder, Traffic())
    assert not (store.folder / LOG).exists(), "nothing went, so there is nothing to note"
    log_traffic(store.folder, Traffic(requests=5, records_found=3, bytes_fetched=1000))
    log_traffic(store.folder, Traffic(requests=2, left_alone=1, record_bytes=70))
    added = Traffic(requests=7, records_found=3, bytes_fetched=1000, left_alone=1, record_bytes=70)
    assert found(store).traffic == added
    log_build(store.folder, reused=1, ran=2, seconds_saved=3)
    with open(store.folder / LOG, "ab") as file:
        file.write(b"\n" * usage._LONG_BYTES)
    compacted = found(store)
    assert (store.folder / LOG).stat().st_size < usage._LONG_BYTES
    assert found(store) == compacted
    assert (compacted.traffic, compacted.builds) == (added, 1)
    with open(store.folder / LOG, "a") as file:
        file.write(f"remote 17 5 3\nremote {'1 ' * 30}\nremote 17\n")
    assert found(store).traffic == added


@settings(max_examples=40)
@given(damage=st.binary(max_size=300))
@example(damage=b"build 17")
@example(damage=b"\xff\xfe\x00")
@example(damage=b"build 1 2 3 4 5 6")
@example(damage=b"build 1 -2 3 4.0 5")
@example(damage=b"build 1 2 3 nan 5")
@example(damage=b"size 1 1e9")
def test_damaged_lines_are_ignored(tmp_path_factory, damage) -> None:
    store = Store(tmp_path_factory.mktemp("any"))
    log_build(store.folder, reused=1, ran=1, seconds_saved=1)
    with open(store.folder / LOG, "ab") as file:
        file.write(damage)  # cut off: without a newline at the end
    log_build(store.folder, reused=1, ran=1, seconds_saved=1)
    assert (found(store).builds, found(store).seconds_saved) == (2, 2)


def test_long_log_is_compacted(store) -> None:
    for number in range(1000):
        log_build(store.folder, reused=1, ran=2, seconds_saved=0.5, stored_bytes=3)
        if number == 700:
            log_size(store.folder, 10**6)
    before = found(store)
    assert (before.builds, before.estimated_bytes) == (1000, 10**6 + 299 * 3)
    assert (store.folder / LOG).stat().st_size < 200
    assert found(store) == before
    log_build(store.folder, reused=1, ran=0, seconds_saved=0.5)
    assert found(store).builds == 1001


def test_log_that_grew_meanwhile_is_not_replaced(store, monkeypatch) -> None:
    monkeypatch.setattr(usage, "_LONG_BYTES", 0)
    counted = usage._counted

    def counted_late(lines):
        log_build(store.folder, reused=7, ran=0, seconds_saved=0)
        return counted(lines)

    log_build(store.folder, reused=1, ran=0, seconds_saved=0)
    with monkeypatch.context() as patched:
        patched.setattr(usage, "_counted", counted_late)
        found(store)
    assert found(store).reused == 8


def test_processes_can_log_concurrently(store) -> None:
    script = (
        "import sys; from winml_dag.store.cache_folder import log_build\n"
        "for _ in range(150): log_build(sys.argv[1], reused=1, ran=0, seconds_saved=0.1)"
    )
    crowd = [subprocess.Popen([sys.executable, "-c", script, str(store.folder)]) for _ in range(2)]
    assert [process.wait() for process in crowd] == [0] * 2
    assert found(store).builds == 300
    assert found(store).seconds_saved == 30


def test_unwritable_cache_is_ignored(tmp_path) -> None:
    log_build(tmp_path / "absent", reused=1, ran=0, seconds_saved=1)
    (tmp_path / LOG).mkdir()
    log_build(tmp_path, reused=1, ran=0, seconds_saved=1)
    assert list(tmp_path.iterdir()) == [tmp_path / LOG]


@pytest.fixture(autouse=True)
def _no_limit_around(monkeypatch) -> None:
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)


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


def test_invalid_limit_is_reported_with_its_place(store, monkeypatch) -> None:
    with pytest.raises(UsageError, match="the limit: '5' is not a size"):
        set_limit(store.folder, "5")
    (store.folder / "limit").write_text("lots")
    with pytest.raises(UsageError, match=r"cache.limit: 'lots' is not a size"):
        configured_limit(store.folder)
    monkeypatch.setenv(LIMIT_VARIABLE, "5")
    with pytest.raises(UsageError, match=LIMIT_VARIABLE):
        configured_limit(store.folder)


def test_oversized_cache_shrinks_to_four_fifths_of_limit(store, put) -> None:
    for number in range(12):
        put(number)
    set_limit(store.folder, "100KB")
    done = keep_to_limit(store)
    assert done is not None
    assert done.left_bytes == size(store) <= 80_000
    assert store.records.keys() == [f"{number:064x}" for number in range(done.records, 12)]


def test_cache_within_limit_is_scanned_once(store, put, monkeypatch) -> None:
    set_limit(store.folder, "100KB")
    put(0)
    assert keep_to_limit(store) is None
    monkeypatch.setattr(gc, "collect", lambda *_, **__: pytest.fail("went through the store"))
    for number in range(1, 8):
        put(number)
        assert keep_to_limit(store) is None


def test_blobs_stored_twice_are_remeasured_and_nothing_is_removed(store, put) -> None:
    set_limit(store.folder, "100KB")
    for _ in range(20):
        put(0)
    assert keep_to_limit(store) is None
    assert len(store.records.keys()) == 1


def test_lost_statistics_trigger_remeasurement(store, put) -> None:
    set_limit(store.folder, "100KB")
    for number in range(12):
        put(number)
    log_size(store.folder, 0)
    (store.folder / LOG).unlink()
    assert keep_to_limit(store) is not None


def test_limit_is_skipped_while_another_process_collects(store, put) -> None:
    put(0)
    assert keep_to_limit(store) is None, "there is no limit"
    set_limit(store.folder, "1KB")
    with store.locks.hold("collect"):
        assert keep_to_limit(store) is None
    assert keep_to_limit(store) is not None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512B", 512),
        ("2KB", 2000),
        ("2kB", 2000),
        ("1KiB", 1024),
        ("10GiB", 10 * 2**30),
        ("1.5 GB", 1_500_000_000),
        (" 3TiB ", 3 * 2**40),
    ],
)
def test_size_is_a_number_with_a_unit(text, size) -> None:
    assert parse_size(text, "--max-size") == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("2m", 120), ("12h", 43_200), ("30d", 2_592_000), ("1w", 604_800)]
)
def test_duration_is_a_number_with_a_unit(text, seconds) -> None:
    assert parse_duration(text, "--older-than") == seconds


def test_invalid_size_or_duration_is_refused_with_example() -> None:
    for text in ("", "10", "10G", "10gib", "-1GB", "1e3MB", "GiB", "1,5GB", "10 GiB or so", "∞GB", "1.GB"):
        with pytest.raises(UsageError, match=r"--max-size: .* is not a size\..* such as 10GiB"):
            parse_size(text, "--max-size")
    for text in ("", "30", "30x", "1 month", "-1d", "30D"):
        with pytest.raises(UsageError, match=r"--older-than: .* is not a duration\."):
            parse_duration(text, "--older-than")


def test_sizes_durations_and_counts_are_formatted() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 5 * 2**20, 3 * 2**40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3072.0 GiB",
    ]
    assert [duration_text(time) for time in (1.25, 90, 3600 * 5.5, 86_400 * 3)] == [
        "1.2 s",
        "2 min",
        "5 h 30 min",
        "3 d 0 h",
    ]
    assert (counted(1, "blob"), counted(2, "blob")) == ("1 blob", "2 blobs")
