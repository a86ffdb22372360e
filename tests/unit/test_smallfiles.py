"""Small files: which names are safe, which are read completely, and other things that can exist at their paths."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from winml_dag.errors import InputError, StoreError
from winml_dag.file_reading import parse_json, read_bytes, read_json, read_text
from winml_dag.onnxmodel.sidecar import sidecar_name
from winml_dag.store.files import check_name

UNSAFE = ["..", "a/../b", "/a", "nul", "COM1.txt", "conin$", "a/CONOUT$", "a\ud800", "a.", "a ", "a:b", "a\\b", "a\x00"]


@pytest.mark.parametrize("name", UNSAFE)
def test_an_unsafe_name_is_refused_in_a_record_and_in_a_model(name: str) -> None:
    with pytest.raises(StoreError):
        check_name(name)
    with pytest.raises(InputError):
        sidecar_name(Path("model.onnx"), name)


def test_an_ordinary_name_is_taken_by_both() -> None:
    for name in ("a", "a.onnx.data", "a/b.bin", "console.txt", "größe.bin"):
        assert check_name(name) == sidecar_name(Path("model.onnx"), name) == name


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 100_000])
def test_a_file_up_to_the_limit_is_read_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    assert read_bytes(path, 100_000) == path.read_bytes()
    if size:
        with pytest.raises(OSError, match="too large"):
            read_bytes(path, size - 1)


def test_ends_of_lines_are_those_of_python(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("a\r\nü\rc\n".encode())
    assert read_text(path) == path.read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files in folders")
@pytest.mark.parametrize("what", ["fifo", "link to a fifo", "/dev/zero", "/dev/stdin", "folder", "dangling"])
def test_what_is_no_ordinary_file_is_refused_at_once(tmp_path: Path, what: str) -> None:
    path = tmp_path / "file"
    if what.endswith("fifo"):
        os.mkfifo(path)
        if what.startswith("link"):
            (tmp_path / "link").symlink_to(path)
            path = tmp_path / "link"
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to(what if what.startswith("/") else tmp_path / "nothing")
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0  # noqa: PTH208
    with pytest.raises(OSError):  # noqa: PT011 - whatever is wrong with it
        read_bytes(path)
    assert sys.platform != "linux" or len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_a_file_that_the_system_makes_while_it_is_read_has_more_than_it_says() -> None:
    assert read_text("/proc/self/status").startswith("Name:")


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("depth", [150, 800, 100_000])
def test_json_that_nests_deeper_than_its_readers_go_is_refused(tmp_path: Path, opening: str, depth: int) -> None:
    text = opening * depth + "1" + "".join({"[": "]", "{": "}"}[c] for c in reversed(opening) if c in "[{") * depth
    with pytest.raises(ValueError, match="nests too deep"):
        parse_json(text)
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError, match="nests too deep"):
        read_json(tmp_path / "file")


def test_json_that_is_as_deep_as_anybody_writes_it_is_read() -> None:
    value: object = 1
    for _ in range(40):
        value = {"a": [value, 2]}
    assert parse_json(json.dumps(value)) == value
