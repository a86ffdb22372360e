"""Graphs on a store with a remote: number of requests, fetched data, and a remote that vanishes during a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from engine_samples import Bench, Ran, join, node, source_artifacts
from servers.memory import MemoryRemote

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import Status
from winml_dag.engine.graph import Graph, Part, merge
from winml_dag.engine.plan import prefetch
from winml_dag.engine.stage import Node, Source, Workspace
from winml_dag.store.records import Record
from winml_dag.store.remote.settings import Mode, SigningKey, TierSettings
from winml_dag.store.remote.tier import Remotes
from winml_dag.store.remote.trust import Maker, Trust
from winml_dag.store.store import Store

TRUST = Trust((SigningKey("team", b"k" * 32),), Maker("winml_dag 0.1.0"))


class Asked(Remotes):
    """Records the number of keys in each lookup."""

    looks: list[int]

    def records(self, keys: Collection[str]) -> dict[str, Record]:
        self.looks.append(len(keys))
        return super().records(keys)


class SharedBench(Bench):
    """A machine with its own store in front of *remote*."""

    def __init__(self, folder: Path, name: str, remote: MemoryRemote) -> None:
        (folder / name).mkdir(exist_ok=True)
        super().__init__(folder / name)
        self.looks: list[int] = []

        def behind(store: Store) -> Remotes:
            level = (remote, TierSettings("memory://", Mode.READ_WRITE))
            found = Asked([level], store.blobs, TRUST, scratch=store.incoming, locks=store.locks, warn=lambda _: None)
            found.looks = self.looks
            return found

        self.shared = Store(folder / name / "cache", behind)
        self.store = self.shared  # type: ignore[assignment]

    def built(self, nodes: list[Node], sources: list[Source], **how: object) -> Ran:
        ran = self.run(nodes, sources, **how)  # type: ignore[arg-type]
        self.shared.settle()
        assert ran.of(Status.FAILED) == []
        return ran

    def text(self, file: object) -> str:
        return self.shared.blobs.path(file.digest).read_text()  # type: ignore[attr-defined]


Machine = Callable[[str], SharedBench]


@pytest.fixture
def remote() -> MemoryRemote:
    return MemoryRemote()


@pytest.fixture
def machine(tmp_path: Path, remote: MemoryRemote) -> Iterator[Machine]:
    made: list[SharedBench] = []

    def machine(name: str) -> SharedBench:
        made.append(SharedBench(tmp_path, name, remote))
        return made[-1]

    yield machine
    for bench in made:
        bench.shared.close()


def line(label: str = "", *, salt: int = 0) -> list[Node]:
    """Return a chain of five stages, the last with its own *salt*."""
    nodes = [node(f"{label}first", "weights", of="first")]
    for before, name in [("first", "second"), ("second", "third"), ("third", "fourth")]:
        nodes.append(node(f"{label}{name}", f"{label}{before}.out", of=name))
    return [*nodes, node(f"{label}last", f"{label}fourth.out", of="last", salt=salt)]


def source(bench: SharedBench) -> Source:
    return bench.source("weights", "w")


def test_remote_lookups_grow_with_graph_depth_only(machine: Machine) -> None:
    there, here = machine("there"), machine("here")
    for number in range(8):
        there.built(line(salt=number), [source(there)], scope=str(number))
    weights = source(here)
    graphs = [Graph.of(line(salt=number), [weights]) for number in range(8)]
    parts = [Part(f"cell{number}", graph, source_artifacts(graph, here.store)) for number, graph in enumerate(graphs)]
    together = merge(parts)
    prefetch(together.graph, together.sources, here.store)
    assert here.looks == [1, 1, 1, 1, 8]
    for number in range(8):
        planned = here.plan(line(salt=number), [weights], scope=str(number))
        assert {result.status for result in planned} == {Status.REUSED}
    assert len(here.looks) == 5


def test_rebuild_queries_no_remote(machine: Machine) -> None:
    there, here = machine("there"), machine("here")
    there.built(line(), [source(there)])
    assert len(here.built(line(), [source(here)], rebuild=True).of(Status.RAN)) == 5
    assert here.looks == []


def test_newly_decidable_stages_are_looked_up_together(machine: Machine) -> None:
    def nodes(salt: int) -> list[Node]:
        return [node("first", "weights", salt=salt), *(node(f"reader{number}", "first.out") for number in range(6))]

    def work(node: Node, workspace: Workspace) -> JsonObject:
        if node.id != "first":
            return join(node, workspace)
        (workspace.outputs["out"] / "first-out.txt").write_text("the same whatever the salt")
        return {}

    there, here = machine("there"), machine("here")
    there.built(nodes(0), [source(there)], work=work)
    ran = here.built(nodes(1), [source(here)], work=work)
    assert ran.of(Status.RAN) == ["first"]
    assert here.looks == [1, 6]


def test_run_without_remote_never_prefetches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("asked for what lies nowhere else")

    monkeypatch.setattr(type(bench.store), "prefetch_records", never)
    weights = bench.source("weights", "w")
    assert bench.run(line(), [weights]).of(Status.FAILED) == []
    assert bench.plan(line(), [weights])


def test_any_blobs_may_vanish_after_decisions(machine: Machine, remote: MemoryRemote, bench: Bench) -> None:
    """Many readers of many makers, in several positions: each detects the loss at a different time."""
    makers = [node(f"maker{number}", "weights", outputs=("one", "two")) for number in range(5)]
    inputs = [maker.output(slot) for maker in makers for slot in ("one", "two")]

    def nodes(salt: int) -> list[Node]:
        readers = [node(f"reader{number}", *inputs[number:], *inputs[:number], salt=salt) for number in range(8)]
        return [*makers, *readers, node("all", *(reader.output("out") for reader in readers), salt=salt)]

    there, here = machine("there"), machine("here")
    there.built(nodes(0), [source(there)])
    weights = source(here)
    assert {result.status for result in here.plan(nodes(0), [weights])} == {Status.REUSED}
    remote.blobs.clear()
    again = here.built(nodes(1), [weights], jobs=4)
    assert len(again.of(Status.RAN)) == 14
    lost = "missing or damaged in the cache, and in no remote that answers: "
    assert again.reason("maker0").startswith(f"{lost}maker0-")
    expected = bench.run(nodes(1), [bench.source("weights", "w")])
    assert here.text(again.file("all")) == bench.text(expected.file("all"))


def test_inputs_are_fetched_only_when_a_stage_runs(machine: Machine, remote: MemoryRemote) -> None:
    there, here = machine("there"), machine("here")
    first = there.built(line(salt=0), [source(there)])
    remote.calls.clear()
    here.built(line(salt=1), [source(here)])
    assert [digest for method, digest in remote.calls if method == "read"] == [first.file("fourth").digest]
