"""A log is kept whole unless it is a flood; then its two ends are."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from winml_dag.engine.log import shorten_log


@given(st.binary(max_size=300), st.integers(100, 200))
def test_both_ends_of_a_log_stay_and_what_is_left_out_is_counted(tmp_path_factory, data: bytes, largest: int) -> None:
    log = tmp_path_factory.mktemp("log") / "log.txt"
    log.write_bytes(data)
    shorten_log(log, largest)
    kept = log.read_bytes()
    half = largest // 2
    if len(data) <= largest:
        assert kept == data
    else:
        assert kept.startswith(data[:half])
        assert kept.endswith(data[-half:])
        assert b"\n[... %d bytes are left out here ...]\n" % (len(data) - 2 * half) in kept
        assert len(kept) < largest + 60


def test_a_log_that_is_not_there_is_nothing_to_shorten(tmp_path: Path) -> None:
    shorten_log(tmp_path / "log.txt")
    assert not (tmp_path / "log.txt").exists()
