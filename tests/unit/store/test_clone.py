"""Copies of files: by whatever way, the result is correct, or an error."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from winml_dag.errors import InputError, StoreError
from winml_dag.store import clone, digest
from winml_dag.store.clone import clone_and_digest, clone_file
from winml_dag.store.digest import digest_bytes


def test_clone_of_read_only_file_is_an_independent_writable_file(tmp_path) -> None:
    source, target, plain = tmp_path / "source", tmp_path / "target", tmp_path / "plain"
    source.write_bytes(b"weights")
    source.chmod(0o444)
    clone_file(source, target)
    plain.touch()
    assert target.read_bytes() == b"weights"
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    assert target.stat().st_ino != source.stat().st_ino
    target.write_bytes(b"other")
    assert source.read_bytes() == b"weights"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_clone_permissions_follow_umask(tmp_path) -> None:
    (tmp_path / "source").write_bytes(b"secret")
    before = os.umask(0o077)
    try:
        clone_file(tmp_path / "source", tmp_path / "target")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o600


def test_unreadable_source_is_an_input_error_naming_it(tmp_path) -> None:
    with pytest.raises(InputError, match=r"absent\.onnx"):
        clone_file(tmp_path / "absent.onnx", tmp_path / "target")


def test_existing_target_is_not_overwritten_and_link_not_followed(tmp_path) -> None:
    (tmp_path / "source").write_bytes(b"new")
    (tmp_path / "precious").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    for target in ("precious", "link"):
        with pytest.raises(StoreError):
            clone_file(tmp_path / "source", tmp_path / target)
    assert (tmp_path / "precious").read_bytes() == b"old"


DATA = os.urandom(1 << 20) + b"the end"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that counts as big, so that the kernel copies it where it can, in several ranges and chunks."""
    if not hasattr(os, "copy_file_range"):
        pytest.skip("this system has no copy_file_range")
    monkeypatch.setattr(digest, "BIG_BYTES", 1 << 19)
    monkeypatch.setattr(digest, "has_spare_processor", lambda: True)
    monkeypatch.setattr(clone, "_RANGE_BYTES", 100_000)
    monkeypatch.setattr(clone, "CHUNK_BYTES", 30_000)
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


def test_digest_is_that_of_the_target(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that is modified during the copy does not pass for the source."""
    copy = os.copy_file_range

    def copy_and_spoil(source: int, target: int, count: int) -> int:
        copied = copy(source, target, count)
        os.pwrite(target, b"spoilt", 0)
        return copied

    monkeypatch.setattr(os, "copy_file_range", copy_and_spoil)
    found, _ = clone_and_digest(source, tmp_path / "target", "xxh3-128")
    assert found == digest_bytes((tmp_path / "target").read_bytes()) != digest_bytes(DATA)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_copy_falls_back_without_kernel_support(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert clone_and_digest(source, tmp_path / "target", "xxh3-128") == (digest_bytes(DATA), len(DATA))
    assert (tmp_path / "target").read_bytes() == DATA


@pytest.mark.parametrize("ranges", [0, 3])
def test_full_disk_leaves_no_target(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: int) -> None:
    copy, left = os.copy_file_range, iter(range(ranges))

    def fill_up(source: int, target: int, count: int) -> int:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return copy(source, target, count)

    monkeypatch.setattr(os, "copy_file_range", fill_up)
    with pytest.raises(OSError, match="No space left"):
        clone_and_digest(source, tmp_path / "target", "xxh3-128")
    assert not (tmp_path / "target").exists()


def test_hashing_thread_error_is_raised(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "readv", fail)
    with pytest.raises(OSError, match="Input/output"):
        clone_and_digest(source, tmp_path / "target", "xxh3-128")
    assert not (tmp_path / "target").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX")
@pytest.mark.parametrize("by_kernel", [True, False])
def test_short_writes_continue_until_the_system_refuses(tmp_path: Path, by_kernel: bool) -> None:
    code = """
        import os, resource
        from winml_dag.store import clone
        BY_KERNEL or hasattr(os, "copy_file_range") and delattr(os, "copy_file_range")
        resource.setrlimit(resource.RLIMIT_FSIZE, (clone._WRITE_BYTES * 3 // 2,) * 2)
        with open("target", "wb", buffering=0) as target, open("source", "rb", buffering=0) as source:
            clone._fill(source.fileno(), target.fileno(), "target", "xxh3-128")
    """.replace("BY_KERNEL", str(by_kernel))
    (tmp_path / "source").write_bytes(bytes(3 << 20))
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "File too large" in result.stderr
    assert (tmp_path / "target").stat().st_size == clone._WRITE_BYTES * 3 // 2
