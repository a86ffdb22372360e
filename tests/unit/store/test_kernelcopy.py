"""The kernel copies big files where possible; either way the result is correct, or an error."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from winml_dag.store import clone
from winml_dag.store.clone import clone_and_digest
from winml_dag.store.digest import digest_bytes

pytestmark = pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="this system has no copy_file_range")

DATA = os.urandom(1 << 20) + b"the end"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that counts as big, and takes several ranges and chunks."""
    monkeypatch.setattr(clone, "BIG_BYTES", 1 << 19)
    monkeypatch.setattr(clone, "_RANGE_BYTES", 100_000)
    monkeypatch.setattr(clone, "CHUNK_BYTES", 30_000)
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


@pytest.mark.parametrize("function", ["xxh3-128", "sha256"])
def test_the_copy_and_its_digest_are_right(source: Path, tmp_path: Path, function) -> None:
    assert clone_and_digest(source, tmp_path / "target", function) == (digest_bytes(DATA, function), len(DATA))
    assert (tmp_path / "target").read_bytes() == DATA


def test_the_digest_is_that_of_what_arrived(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that is modified during the copy does not pass for the source."""
    copy = os.copy_file_range

    def copy_and_spoil(source: int, target: int, count: int) -> int:
        copied = copy(source, target, count)
        os.pwrite(target, b"spoilt", 0)
        return copied

    monkeypatch.setattr(os, "copy_file_range", copy_and_spoil)
    digest, _ = clone_and_digest(source, tmp_path / "target", "xxh3-128")
    assert digest == digest_bytes((tmp_path / "target").read_bytes()) != digest_bytes(DATA)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_the_kernel_cannot_it_is_copied_all_the_same(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert clone_and_digest(source, tmp_path / "target", "xxh3-128") == (digest_bytes(DATA), len(DATA))
    assert (tmp_path / "target").read_bytes() == DATA


@pytest.mark.parametrize("ranges", [0, 3])
def test_a_full_disk_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: int) -> None:
    copy, left = os.copy_file_range, iter(range(ranges))

    def fill_up(source: int, target: int, count: int) -> int:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return copy(source, target, count)

    monkeypatch.setattr(os, "copy_file_range", fill_up)
    with pytest.raises(OSError, match="No space left"):
        clone_and_digest(source, tmp_path / "target", "xxh3-128")
    assert not (tmp_path / "target").exists()


def test_an_error_of_the_thread_that_hashes_is_raised(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "readv", fail)
    with pytest.raises(OSError, match="Input/output"):
        clone_and_digest(source, tmp_path / "target", "xxh3-128")
    assert not (tmp_path / "target").exists()
