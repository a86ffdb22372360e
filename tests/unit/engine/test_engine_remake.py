"""Damage in the cache costs only reruns of the affected stages, and never gives a wrong result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine_samples import Bench, Notes, join, node
from memory_store import NotedStore

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.stage import Node, Workspace
from winml_dag.errors import StageError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.digest import digest_bytes
from winml_dag.store.records import Record

PATIENCE = 60.0


def line(*, salt: int = 0) -> list[Node]:
    return [node("export", "weights"), node("quantize", "export.out"), node("compile", "quantize.out", salt=salt)]


def writing(node_id: str, texts: list[str]) -> Callable[[Node, Workspace], JsonObject]:
    """Return work that gives different bytes each time, for the node *node_id*."""

    def work(node: Node, workspace: Workspace) -> JsonObject:
        if node.id != node_id:
            return join(node, workspace)
        (workspace.outputs["out"] / "text.txt").write_text(texts.pop(0))
        return {}

    return work


def test_lost_intermediate_is_rebuilt_without_its_readers(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    first = bench.run(line(), [weights])
    bench.store.lose(first.file("quantize"))
    again = bench.run(line(), [weights])
    assert again.calls == ["quantize"]
    assert again.reason("quantize") == "missing or damaged in the cache: quantize-out.txt"
    assert bench.run(line(), [weights]).calls == []


def test_corrupt_input_is_detected_on_read_and_rebuilt_first(bench: Bench) -> None:
    weights = bench.source("weights", "w")
    bench.store.rot(bench.run(line(), [weights]).file("quantize"))
    again = bench.run(line(salt=1), [weights])
    assert again.calls == ["quantize", "compile"]
    assert again.of(Status.REUSED) == ["export"]
    assert bench.text(again.file("compile")) == "compile1:out(quantize0:out(export0:out(w)))"
    assert bench.run(line(salt=1), [weights]).calls == []


def test_corrupt_output_equal_to_a_source_is_rebuilt(bench: Bench) -> None:
    weights = bench.source("weights", "w")

    def copy(node: Node, workspace: Workspace) -> JsonObject:
        if node.id == "merge":
            return join(node, workspace)
        (workspace.outputs["out"] / "source.txt").write_text("w")
        return {}

    first = bench.run([node("copy", "weights"), node("merge", "weights", "copy.out")], [weights], work=copy)
    bench.store.rot(first.file("copy"))
    again = bench.run([node("copy", "weights"), node("merge", "weights", "copy.out", salt=1)], [weights], work=copy)
    assert again.calls == ["copy", "merge"]


def test_failed_stage_is_not_retried_when_its_input_is_rebuilt(bench: Bench) -> None:
    def nodes(salt: int) -> list[Node]:
        return [
            node("export"),
            node("bad", "export.out", salt=salt),
            node("good", "export.out", "other.out", salt=salt),
        ]

    def work(node: Node, workspace: Workspace) -> JsonObject:
        if node.id == "bad":
            bench.store.rot(exported)
            raise StageError("no")
        return join(node, workspace)

    exported = bench.run([*nodes(0), node("other")]).file("export")
    again = bench.run([*nodes(1), node("other", salt=1)], work=work, keep_going=True)
    assert sorted(again.calls) == ["bad", "export", "good", "other"]
    assert again.of(Status.FAILED) == ["bad"]


class VanishingStore(NotedStore):
    """The first stored artifact cannot be fetched. All requests but one learn so only after it was regenerated."""

    def __init__(self) -> None:
        super().__init__()
        self.vanished: FileEntry | None = None
        self.waiting = 0
        self.made_again = threading.Event()
        self._first = threading.Lock()

    def fetch(self, artifact: Artifact, folder: Path) -> None:
        if self.vanished in artifact.files and self.waiting:
            self.waiting -= 1
            if self._first.acquire(blocking=False):
                self.lose(self.vanished)
            else:
                assert self.made_again.wait(PATIENCE)
            raise BlobDamaged(self.vanished, "missing")
        super().fetch(artifact, folder)


@dataclass
class Settled(Notes):
    """Signals when the scheduler has processed the run of *export*."""

    made_again: threading.Event = field(default_factory=threading.Event)

    def finished(self, result: StageResult) -> None:
        if result.node.id == "export" and result.status is Status.RAN:
            self.made_again.set()
        super().finished(result)


def test_late_reports_of_one_loss_do_not_stop_the_run(tmp_path: Path) -> None:
    store = VanishingStore()
    bench = Bench(tmp_path, store)

    def nodes(salt: int) -> list[Node]:
        return [node("export"), *(node(f"reader{number}", "export.out", salt=salt) for number in range(6))]

    store.vanished = bench.run(nodes(0)).file("export")
    store.waiting = 6
    again = bench.run(nodes(1), jobs=7, notes=Settled(made_again=store.made_again))
    assert again.of(Status.FAILED) == []
    assert sorted(again.calls) == ["export", *(f"reader{number}" for number in range(6))]


class RottingStore(NotedStore):
    """A failing disk: outputs of *stage* are damaged as soon as they are stored."""

    def __init__(self, stage: str) -> None:
        super().__init__()
        self._stage = stage

    def publish(self, record: Record, folders: Mapping[str, Path], log: Path | None = None) -> Record:
        record = super().publish(record, folders, log)
        if record.key_inputs.stage == self._stage:
            for file in record.files():
                self.rot(file)
        return record


def test_store_that_damages_everything_ends_the_run_with_advice(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RottingStore("quantize"))
    ran = bench.run(line(), [bench.source("weights", "w")])
    assert ran.of(Status.FAILED) == ["compile"]
    assert "quantize-out.txt is damaged" in ran.results["compile"].error
    assert "--cache-dir" in ran.results["compile"].advice


def test_results_are_consistent_after_a_differing_rebuild(bench: Bench) -> None:
    """``early`` runs on the first bytes, then its input is damaged and regenerated as bytes of an earlier run."""

    def nodes(salt: int) -> list[Node]:
        return [node("export", salt=salt), node("early", "export.out"), node("late", "export.out", "early.out")]

    bench.run(nodes(0), work=writing("export", ["known"]))
    write = writing("export", ["new", "known"])
    rotten: list[str] = []

    def work(node: Node, workspace: Workspace) -> JsonObject:
        if node.id == "early" and not rotten:
            rotten.append(digest_bytes(b"new"))
            bench.store.rot(FileEntry("new", rotten[0], 3))
        return write(node, workspace)

    ran = bench.run(nodes(1), work=work)
    assert bench.text(ran.file("export")) == "known"
    assert bench.text(ran.file("early")) == "early0:out(known)"
    assert bench.text(ran.file("late")) == "late0:out(known,early0:out(known))"


def test_stage_running_on_replaced_input_is_decided_again(bench: Bench) -> None:
    """``slow`` has read the first bytes and still runs when they are found damaged and regenerated differently."""
    remade = threading.Event()
    texts = ["first", "second"]

    def work(node: Node, workspace: Workspace) -> JsonObject:
        if node.id == "export":
            (workspace.outputs["out"] / "text.txt").write_text(text := texts.pop(0))
            if text == "second":
                remade.set()
            return {}
        if node.id == "slow" and not remade.is_set():
            bench.store.rot(first.file("export"))
            started.set()
            assert remade.wait(PATIENCE)
        if node.id == "gate" and node.config != before[1].config:
            assert started.wait(PATIENCE)
        return join(node, workspace)

    started = threading.Event()

    def nodes(salt: int) -> list[Node]:
        return [
            node("export"),
            node("gate", salt=salt),
            node("slow", "export.out", salt=salt),
            node("quick", "export.out", "gate.out"),
        ]

    before = nodes(0)
    remade.set()
    first = bench.run(before, work=work)
    remade.clear()
    again = bench.run(nodes(1), work=work, jobs=2)
    assert bench.text(again.file("slow")) == "slow1:out(second)"
    assert bench.text(again.file("quick")) == "quick0:out(second,gate1:out())"
    assert again.of(Status.RAN) == ["export", "gate", "quick", "slow"]


def test_waiting_duplicate_is_decided_once_after_rebuild(bench: Bench) -> None:
    """``second`` waits for ``first``, which does the same, while their input is found damaged and regenerated
    differently.

    Then it is decided again, and waits for a free slot when ``first`` ends.
    """
    rotten, reread, ended = threading.Event(), threading.Event(), threading.Event()
    write = writing("export", ["before", "after"])

    def work(node: Node, workspace: Workspace) -> JsonObject:
        if node.id == "first" and not rotten.is_set():
            bench.store.rot(exported)
            rotten.set()
            assert reread.wait(PATIENCE)
        elif node.id == "first":
            ended.set()
        elif node.id == "gate":
            assert rotten.wait(PATIENCE)
        elif node.id in ("other", "blocker"):
            if node.id == "other":
                reread.set()
            assert ended.wait(PATIENCE)
        return write(node, workspace)

    nodes = [
        node("export"),
        node("gate"),
        node("first", "export.out", of="twin"),
        node("other", "export.out", "gate.out"),
        node("blocker", "gate.out"),
        node("second", "export.out", of="twin"),
        node("last", "first.out", "second.out", "other.out"),
    ]
    exported = bench.run(nodes[:1], work=write).file("export")
    again = bench.run(nodes, work=work, jobs=3, order={each.id: place for place, each in enumerate(nodes)})
    assert again.of(Status.FAILED) == []
    assert bench.text(again.file("second")) == bench.text(again.file("first")) == "twin0:out(after)"
