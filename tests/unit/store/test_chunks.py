"""Big files pass through two threads: the result equals that of one thread, whatever fails."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from winml_dag.store import digest
from winml_dag.store.digest import hash_in_chunks


@pytest.fixture(params=["positioned", "sought"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of reading at a place: that of POSIX, and the one that Windows is left with."""
    monkeypatch.setattr(digest, "CHUNK_BYTES", 8)
    monkeypatch.setattr(digest, "_WRITE_BYTES", 5)
    if request.param == "sought":
        monkeypatch.setattr(digest, "_Source", digest._SoughtSource)


class Recorder:
    """A hash that keeps its input."""

    def __init__(self) -> None:
        self.fed = b""

    def update(self, data: memoryview) -> None:
        self.fed += bytes(data)

    def hexdigest(self) -> str:
        return self.fed.hex()


def open_raw(path: Path, mode: str) -> BinaryIO:
    opened = open(path, mode, buffering=0)  # noqa: SIM115
    assert isinstance(opened, io.FileIO)
    return opened


@pytest.mark.usefixtures("way")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.binary(max_size=100))
def test_every_byte_is_hashed_once_in_order_and_copied(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "source").write_bytes(data)
    hasher = Recorder()
    with open_raw(tmp_path / "source", "rb") as source, open_raw(tmp_path / "target", "wb") as target:
        hash_in_chunks(source, hasher, target)
    assert hasher.fed == data
    assert (tmp_path / "target").read_bytes() == data


@pytest.mark.usefixtures("way")
def test_a_file_that_grows_is_taken_up_to_an_end_that_it_had_and_the_copy_is_what_was_hashed(tmp_path: Path) -> None:
    class Growing(Recorder):
        def update(self, data: memoryview) -> None:
            super().update(data)
            with open(tmp_path / "source", "ab") as more:
                more.write(b"more")

    (tmp_path / "source").write_bytes(b"0123456789" * 2)
    hasher = Growing()
    with open_raw(tmp_path / "source", "rb") as source, open_raw(tmp_path / "target", "wb") as target:
        hash_in_chunks(source, hasher, target)
    assert hasher.fed == (tmp_path / "target").read_bytes()
    assert hasher.fed == (tmp_path / "source").read_bytes()[: len(hasher.fed)]
    assert len(hasher.fed) >= 20


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("at", [0, 1, 2, 5])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad sector"), KeyboardInterrupt()])
def test_what_goes_wrong_in_either_thread_is_raised_and_no_thread_stays(
    tmp_path: Path, at: int, error: BaseException
) -> None:
    class Failing(Recorder):
        def update(self, data: memoryview) -> None:
            if len(self.fed) == at * 8:
                raise error
            super().update(data)

    (tmp_path / "source").write_bytes(bytes(60))
    before = threading.active_count()
    with open_raw(tmp_path / "source", "rb") as source, pytest.raises(type(error)) as caught:
        hash_in_chunks(source, Failing())
    assert caught.value is error
    assert threading.active_count() == before


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX")
def test_a_write_that_the_system_cuts_short_goes_on_until_the_system_refuses(tmp_path: Path) -> None:
    """The limit is in the middle of a chunk: its write is short, and the next one fails."""
    code = """
        import resource, xxhash
        from winml_dag.store.digest import CHUNK_BYTES, hash_in_chunks
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * CHUNK_BYTES // 2,) * 2)
        with open("source", "rb", buffering=0) as source, open("target", "wb", buffering=0) as target:
            hash_in_chunks(source, xxhash.xxh3_128(), target)
    """
    (tmp_path / "source").write_bytes(bytes(3 * digest.CHUNK_BYTES))
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "File too large" in result.stderr
    assert (tmp_path / "target").stat().st_size == 3 * digest.CHUNK_BYTES // 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what runs right now")
def test_no_processor_is_spare_while_others_use_them_all() -> None:
    busy = [
        subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        for process in busy:
            assert process.stdout is not None
            process.stdout.readline()
        assert not digest.has_spare_processor()
    finally:
        for process in busy:
            process.kill()
            process.communicate()
