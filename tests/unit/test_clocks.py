"""How long a change counts as racy follows from the times that a file system really gives."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from winml_dag import file_reading
from winml_dag.cli import run
from winml_dag.file_reading import SETTLED_NS, probe_clock, settled_ns
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.uptodate import check

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
def test_the_times_decide(
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


def test_exact_times_are_exact(device: int, tmp_path: Path) -> None:
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


def test_right_after_a_build_the_next_one_reads_no_file(
    device: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
