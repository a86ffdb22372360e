"""Running stages of a finished build again: equal outputs, the first difference, and what is left alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from winml_dag.engine.events import Silent, StageResult
from winml_dag.errors import UsageError
from winml_dag.pipeline.assess.reproduce import Reproduction, StageReproduction, Verdict, reproduce
from winml_dag.pipeline.build import build
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.run import Driver
from winml_dag.store.blobs import STAMP_NS
from winml_dag.store.store import Store

# Shell commands: $0 is the input, and $1 the output. TOLD is a file that no key has.
COPY = 'cp "$0" "$1"'
NOISE = '{ head -c 100 /dev/zero; head -c 32 /dev/urandom; } > "$1"'
TOLD = 'cat "$TOLD" > "$1"'
FAILS_WHEN_TOLD = '[ ! -s "$TOLD" ] || { echo now it cannot; exit 1; }; cp "$0" "$1"'
TWO = {"first": COPY, "second": FAILS_WHEN_TOLD}

pytestmark = pytest.mark.skipif(os.name != "posix", reason="stages are commands of a shell")


class Bench:
    """A recipe of stages in a row, of which the first reads a source file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, Store(folder / "cache")
        self.source, self.told = folder / "source.txt", folder / "told"
        self.source.write_text("a source")
        self.told.touch()

    def planned(self, scripts: Mapping[str, str]) -> BuildGraph:
        stages = {}
        read = "source.txt"
        for name, script in scripts.items():
            stages[name] = {
                "command": ["sh", "-c", script, "{inputs.read}", "{outputs.out}"],
                "env": {"TOLD": str(self.told)},
                "inputs": {"read": read},
                "outputs": {"out": f"{name}.out"},
            }
            read = f"{name}.out"
        recipe = self.folder / "recipe.yaml"
        recipe.write_text(yaml.safe_dump({"stages": stages}), encoding="utf-8")
        return plan_request(Request(recipe, Overrides()), self.store, download=False)

    def build(self, scripts: Mapping[str, str]) -> BuildGraph:
        planned = self.planned(scripts)
        assert not build(planned, Driver(self.store)).failed
        return planned

    def reproduce(self, planned: BuildGraph, *names: str, runs: int = 1) -> Reproduction:
        return reproduce(planned, self.store, names, runs=runs, jobs=2)

    def only(self, planned: BuildGraph, *, runs: int = 1) -> StageReproduction:
        (stage,) = self.reproduce(planned, runs=runs).stages
        return stage

    def blob(self, planned: BuildGraph, node_id: str) -> Path:
        name = f"{planned.summary.scope}\n{node_id}"
        (file,) = self.store.latest([name])[name].files()
        path = self.store.blobs.path(file.digest)
        path.chmod(0o644)
        return path

    def state(self) -> dict[str, tuple[bytes, int | None]]:
        """Return every file of the user's, every blob with its stamp and every record. No scratch folder is left.

        The time of a record's file is that of its last use, and comparing is a use.
        """
        assert list((self.store.folder / "scratch").iterdir()) == []
        places = [*self.folder.glob("*.*"), *(self.store.folder / "blobs").rglob("*")]
        records = [(path, None) for path in (self.store.folder / "records").rglob("*")]
        files = [*((path, path.stat().st_mtime_ns) for path in places), *records]
        return {str(path): (path.read_bytes(), time) for path, time in files if path.is_file()}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_equal_bytes_are_equal_and_nothing_is_changed(bench: Bench) -> None:
    planned = bench.build(TWO)
    before = bench.state()
    found = bench.reproduce(planned, runs=2)
    assert found.equal
    assert [(stage.id, stage.verdict, stage.runs, stage.files) for stage in found.stages] == [
        ("first", Verdict.EQUAL, 2, 1),
        ("second", Verdict.EQUAL, 2, 1),
    ]
    assert bench.state() == before
    assert [stage.id for stage in bench.reproduce(planned, "second").stages] == ["second"], "only what is chosen runs"
    with pytest.raises(UsageError, match=r"no stage 'sekond'.*first"):
        bench.reproduce(planned, "sekond")


def test_agreeing_runs_differ_only_from_the_record(bench: Bench) -> None:
    planned = bench.build({"told": TOLD})
    bench.told.write_text("otherwise")
    stage = bench.only(planned, runs=2)
    assert stage.runs_agree
    assert [(each.runs, each.other, each.text) for each in stage.differences] == [
        ((1, 2), "the record", "differs from byte 0 on (0 -> 9 bytes)")
    ]


def test_differences_are_reported_per_pair_and_do_not_propagate(bench: Bench) -> None:
    """Each runs from its recorded inputs, so only the faulty one differs."""
    planned = bench.build({"noise": NOISE, "second": COPY})
    before = bench.state()
    found = bench.reproduce(planned, runs=3)
    assert not found.equal
    noise, second = found.stages
    assert (noise.verdict, noise.runs_agree, second.verdict) == (Verdict.DIFFERS, False, Verdict.EQUAL)
    assert [(each.slot, each.file, each.other, each.runs) for each in noise.differences] == [
        *(("out", "noise.out", "the record", (run,)) for run in (1, 2, 3)),
        *(("out", "noise.out", "run 1", (run,)) for run in (2, 3)),
    ]
    offsets = [re.fullmatch(r"differs from byte (\d+) on", each.text) for each in noise.differences]
    assert all(match is not None and 100 <= int(match[1]) < 132 for match in offsets)
    assert bench.state() == before, "what came out differently is not stored"
    bench.blob(planned, "noise").unlink()
    (difference,) = bench.reproduce(planned, "noise").stages[0].differences
    assert "the recorded file has gone from the cache" in difference.text


@pytest.mark.parametrize("rotted", [False, True])
def test_stage_with_lost_input_is_named(bench: Bench, rotted: bool) -> None:
    planned = bench.build(TWO)
    blob = bench.blob(planned, "first")
    if rotted:  # which only reading the file reveals
        blob.write_bytes(b"\0" * blob.stat().st_size)
        os.utime(blob, ns=(STAMP_NS, STAMP_NS))
    else:
        blob.unlink()
    maker, reader = bench.reproduce(planned).stages
    assert maker.verdict is Verdict.EQUAL, "a digest is all that it takes to compare"
    assert (reader.verdict, reader.reason) == (Verdict.NOT_RUN, "missing or damaged in the cache: first.out")


def test_changed_input_is_reported_as_not_run(bench: Bench) -> None:
    bench.build(TWO)
    bench.source.write_text("another source")
    first, second = bench.reproduce(bench.planned(TWO)).stages
    assert first.verdict is second.verdict is Verdict.NOT_RUN
    assert "source.txt changed" in first.reason
    assert "first" in second.reason


def test_failed_stage_is_reported_with_log(bench: Bench) -> None:
    planned = bench.build({"fails": FAILS_WHEN_TOLD})
    before = bench.state()
    bench.told.write_text("fail")
    stage = bench.only(planned)
    assert stage.verdict is Verdict.FAILED
    assert stage.failure is not None
    assert "exit code 1" in stage.failure.error
    assert stage.failure.log is not None
    assert stage.failure.log.read_text() == "now it cannot\n"
    assert bench.state() == before
    # A source that changes meanwhile is a failure, too, and not a difference.
    bench.told.write_text("")
    bench.source.write_text("changed after planning")
    stage = bench.only(planned)
    assert stage.failure is not None
    assert "source.txt changed while it was being used" in stage.failure.error


def test_interrupt_leaves_nothing_behind(bench: Bench) -> None:
    planned = bench.build(TWO)
    before = bench.state()

    class Interrupting(Silent):
        def finished(self, result: StageResult) -> None:  # noqa: ARG002
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(planned, bench.store, observer=Interrupting())
    assert bench.state() == before
