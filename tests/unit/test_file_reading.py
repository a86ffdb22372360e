"""Files: which names are safe, which are read completely, and what the times of a file system say of their changes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from winml_dag import file_reading
from winml_dag.cli import run
from winml_dag.errors import InputError, StoreError
from winml_dag.file_reading import SETTLED_NS, parse_json, probe_clock, read_bytes, read_json, read_text, settled_ns
from winml_dag.onnxmodel.sidecar import sidecar_name
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.uptodate import check
from winml_dag.store.files import check_name

UNSAFE = ["..", "a/../b", "/a", "nul", "COM1.txt", "conin$", "a/CONOUT$", "a\ud800", "a.", "a ", "a:b", "a\\b", "a\x00"]


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_file_name_is_refused(name: str) -> None:
    with pytest.raises(StoreError):
        check_name(name)
    with pytest.raises(InputError):
        sidecar_name(Path("model.onnx"), name)


def test_ordinary_file_name_is_accepted() -> None:
    for name in ("a", "a.onnx.data", "a/b.bin", "console.txt", "größe.bin"):
        assert check_name(name) == sidecar_name(Path("model.onnx"), name) == name


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 100_000])
def test_file_up_to_size_limit_is_read_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    assert read_bytes(path, 100_000) == path.read_bytes()
    if size:
        with pytest.raises(OSError, match="too large"):
            read_bytes(path, size - 1)


def test_line_endings_are_normalized_as_in_python(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("a\r\nü\rc\n".encode())
    assert read_text(path) == path.read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files in folders")
@pytest.mark.parametrize("what", ["fifo", "link to a fifo", "/dev/zero", "/dev/stdin", "folder", "dangling"])
def test_special_file_is_refused_immediately(tmp_path: Path, what: str) -> None:
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
def test_proc_file_larger_than_its_size_is_read() -> None:
    assert read_text("/proc/self/status").startswith("Name:")


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("depth", [150, 800, 100_000])
def test_deeply_nested_json_is_refused(tmp_path: Path, opening: str, depth: int) -> None:
    text = opening * depth + "1" + "".join({"[": "]", "{": "}"}[c] for c in reversed(opening) if c in "[{") * depth
    with pytest.raises(ValueError, match="nests too deep"):
        parse_json(text)
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError, match="nests too deep"):
        read_json(tmp_path / "file")


def test_reasonably_nested_json_is_read() -> None:
    value: object = 1
    for _ in range(40):
        value = {"a": [value, 2]}
    assert parse_json(json.dumps(value)) == value


_TICK_NS = 4 * 10**6 + 3


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(file_reading, "_clocks", {})
    return tmp_path.stat().st_dev


@pytest.mark.parametrize(
    ("stamp", "step", "expected"),
    [
        pytest.param(lambda ns: ns, 5_000, 0, id="each change has its own time"),
        pytest.param(lambda ns: ns // _TICK_NS * _TICK_NS, 5_000, SETTLED_NS // 100, id="ticks of the kernel"),
        pytest.param(lambda ns: ns // _TICK_NS * _TICK_NS, 2 * _TICK_NS, SETTLED_NS // 100, id="between all writes"),
        pytest.param(lambda ns: ns // 10**7 * 10**7, 5_000, SETTLED_NS, id="exFAT"),
        pytest.param(lambda ns: ns // 10**9 * 10**9, 5_000, SETTLED_NS, id="seconds"),
        pytest.param(lambda ns: ns - 10**9, 5_000, SETTLED_NS, id="a server that is late"),
        pytest.param(lambda ns: ns + 10**8, 5_000, SETTLED_NS, id="a server that is early"),
    ],
)
def test_settling_time_depends_on_timestamp_resolution(
    stamp, step: int, expected: int, device: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**18 + 123, 10**19, step))
    monkeypatch.setattr("time.time_ns", lambda: next(clock))
    monkeypatch.setattr(file_reading, "change_time_ns", lambda *_: stamp(next(clock)))
    probe_clock(tmp_path / "absent")
    assert settled_ns(device) == SETTLED_NS, "before a probe, times count as coarse"
    probe_clock(tmp_path)
    assert settled_ns(device) == expected
    assert not list(tmp_path.iterdir())


def test_exact_timestamps_are_distinct(device: int, tmp_path: Path) -> None:
    probe_clock(tmp_path)
    if settled_ns(device):
        pytest.skip("this file system does not give each change a time of its own")
    file = tmp_path / "file"
    file.write_bytes(b"0")
    times = [file.stat().st_ctime_ns]
    for _ in range(500):
        file.write_bytes(b"1")
        times.append(file.stat().st_ctime_ns)
    assert len({*times}) == len(times)


def test_files_are_settled_right_after_build(device: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", str(tmp_path / "cache"))
    Path("a.txt").write_text("a")
    copy = [sys.executable, "-c", "import sys, shutil; shutil.copy(*sys.argv[1:])", "{inputs.a}", "{outputs.b}"]
    stage = {"command": copy, "inputs": {"a": "a.txt"}, "outputs": {"b": "b.txt"}}
    Path("r.yaml").write_text(json.dumps({"stages": {"copy": stage}}))
    assert run(["build", "-c", "r.yaml"]) == 0
    if settled_ns(device):
        pytest.skip("this file system does not give each change a time of its own")
    words = Request(Path("r.yaml"), Overrides()).words
    assert words is not None
    found = check(str(tmp_path / "cache"), words)
    assert found is not None
    assert found.is_up_to_date
    assert found.entry.header.racy == []
