"""The usage log of builds and its statistics: no build fails because of it, and damage in it is isolated."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.store import usage as module
from winml_dag.store.cache_folder import LOG, log_build
from winml_dag.store.store import Store
from winml_dag.store.usage import Statistics, Traffic, log_size, log_traffic, read_statistics


def found(store: Store) -> Statistics:
    return read_statistics(store.folder, store.locks)


def test_builds_are_counted_up(store) -> None:
    assert found(store) == Statistics()
    assert found(store).hit_ratio is None
    log_build(store.folder, reused=0, ran=4, seconds_saved=0, stored_bytes=1000)
    log_build(store.folder, reused=3, ran=1, seconds_saved=12.34, stored_bytes=200)
    counted = found(store)
    assert (counted.builds, counted.reused, counted.ran, counted.seconds_saved) == (2, 3, 5, 12.34)
    assert counted.hit_ratio == 3 / 8
    assert counted.since is not None
    assert counted.estimated_bytes is None, "nothing was measured yet"


def test_what_went_to_remotes_is_added_up_and_stays_when_lines_are_put_together(store) -> None:
    log_traffic(store.folder, Traffic())
    assert not (store.folder / LOG).exists(), "nothing went, so there is nothing to note"
    log_traffic(store.folder, Traffic(requests=5, records_found=3, bytes_fetched=1000))
    log_traffic(store.folder, Traffic(requests=2, left_alone=1, record_bytes=70))
    added = Traffic(requests=7, records_found=3, bytes_fetched=1000, left_alone=1, record_bytes=70)
    assert found(store).traffic == added
    log_build(store.folder, reused=1, ran=2, seconds_saved=3)
    with open(store.folder / LOG, "ab") as file:
        file.write(b"\n" * module._LONG_BYTES)
    compacted = found(store)
    assert (store.folder / LOG).stat().st_size < module._LONG_BYTES
    assert found(store) == compacted
    assert (compacted.traffic, compacted.builds) == (added, 1)
    with open(store.folder / LOG, "a") as file:
        file.write(f"remote 17 5 3\nremote {'1 ' * 30}\nremote 17\n")
    assert found(store).traffic == added + Traffic(requests=5, records_found=3), "an older version has fewer numbers"


@pytest.mark.parametrize(
    "damage",
    [
        b"build 17",
        b"\xff\xfe\x00",
        b"build 1 2 3 4 5 6",
        b"build 1 -2 3 4.0 5",
        b"build 1 2 3 nan 5",
        b"size 1 1e9",
        b".",
    ],
)
def test_a_torn_or_damaged_line_is_left_out_and_spoils_no_other(store, damage) -> None:
    log_build(store.folder, reused=1, ran=1, seconds_saved=1)
    with open(store.folder / LOG, "ab") as file:
        file.write(damage)  # cut off: without a newline at the end
    log_build(store.folder, reused=1, ran=1, seconds_saved=1)
    assert found(store).builds == 2
    assert found(store).seconds_saved == 2


@settings(max_examples=40)
@given(st.binary(max_size=300))
def test_no_file_whatever_is_in_it_is_an_error(tmp_path_factory, data) -> None:
    store = Store(tmp_path_factory.mktemp("any"))
    (store.folder / LOG).write_bytes(data)
    assert found(store).builds >= 0


def test_a_long_file_is_replaced_by_its_sum(store) -> None:
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


def test_a_file_that_grew_meanwhile_is_not_replaced(store, monkeypatch) -> None:
    monkeypatch.setattr(module, "_LONG_BYTES", 0)
    counted = module._counted

    def counted_late(lines):
        log_build(store.folder, reused=7, ran=0, seconds_saved=0)
        return counted(lines)

    log_build(store.folder, reused=1, ran=0, seconds_saved=0)
    with monkeypatch.context() as patched:
        patched.setattr(module, "_counted", counted_late)
        found(store)
    assert found(store).reused == 8


def test_many_processes_may_note_at_once(store) -> None:
    script = (
        "import sys; from winml_dag.store.cache_folder import log_build\n"
        "for _ in range(150): log_build(sys.argv[1], reused=1, ran=0, seconds_saved=0.1)"
    )
    crowd = [subprocess.Popen([sys.executable, "-c", script, str(store.folder)]) for _ in range(4)]
    assert [process.wait() for process in crowd] == [0] * 4
    assert found(store).builds == 600
    assert found(store).seconds_saved == 60


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path) -> None:
    log_build(tmp_path / "absent", reused=1, ran=0, seconds_saved=1)
    (tmp_path / LOG).mkdir()
    log_build(tmp_path, reused=1, ran=0, seconds_saved=1)
    assert list(tmp_path.iterdir()) == [tmp_path / LOG]


def test_noting_a_build_imports_nothing_of_the_store_but_its_own_module() -> None:
    script = (
        "import sys, winml_dag.errors, winml_dag.store; before = set(sys.modules)\n"
        "import winml_dag.store.cache_folder\n"
        "print(*(name for name in set(sys.modules) - before if name.startswith('winml_dag')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["winml_dag.store.cache_folder"]
