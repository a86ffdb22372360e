"""Whatever graphs are merged: every part gets the same result as alone, and no work is done twice."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_samples import Bench, join, node, properties, run_graph, source_artifacts
from hypothesis import given
from hypothesis import strategies as st
from memory_executor import MemoryExecutor
from memory_store import MEMORY, NotedStore

from winml_dag.engine.events import Status
from winml_dag.engine.graph import Graph, Merged, Part, merge
from winml_dag.engine.plan import remembered_name
from winml_dag.engine.schedule import RunOptions
from winml_dag.engine.stage import Node, Source

SOURCES = ("weights", "data")


@dataclass(frozen=True)
class Drawn:
    """A drawn graph: the text of each source, and stage, setting and inputs of each node."""

    texts: tuple[str, ...]
    nodes: tuple[tuple[str, int, tuple[str, ...]], ...]


@st.composite
def graphs(draw: st.DrawFn) -> Drawn:
    # Few different values, so that graphs overlap often.
    texts = tuple(draw(st.sampled_from("ab")) for _ in SOURCES)
    nodes: list[tuple[str, int, tuple[str, ...]]] = []
    for place in range(draw(st.integers(1, 4))):
        names = [*SOURCES, *(f"n{earlier}.out" for earlier in range(place))]
        inputs = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        nodes.append((draw(st.sampled_from(["one", "two"])), draw(st.integers(0, 1)), tuple(inputs)))
    return Drawn(texts, tuple(nodes))


class Parts:
    """The drawn graphs as real ones, each with its own source files."""

    def __init__(self, folder: Path, drawn: Sequence[Drawn]) -> None:
        self.bench = Bench(folder, NotedStore())
        self.parts = [self._part(f"b{place}", each) for place, each in enumerate(drawn)]

    def _part(self, label: str, drawn: Drawn) -> Part:
        (self.bench.folder / label).mkdir()
        nodes = [node(f"n{at}", *inputs, of=of, salt=salt) for at, (of, salt, inputs) in enumerate(drawn.nodes)]
        sources = [self._source(label, name, text) for name, text in zip(SOURCES, drawn.texts, strict=True)]
        graph = Graph.of(nodes, sources)
        return Part(label, graph, source_artifacts(graph, self.bench.store))

    def _source(self, label: str, name: str, text: str) -> Source:
        written = self.bench.source(f"{label}/{name}", text)
        return Source(name, written.kind, written.files)

    def alone(self, place: int) -> dict[str, str]:
        """Return the output of each node of a part that runs alone."""
        part = self.parts[place]
        nodes: list[Node] = list(part.graph.nodes)
        bench = Bench(self.bench.folder / part.label, NotedStore())
        ran = bench.run(nodes, part.graph.sources.values())
        return {each.id: bench.text(ran.file(each.id)) for each in nodes}

    def together(self, merged: Merged, jobs: int = 2) -> tuple[list[dict[str, str]], list[str]]:
        """Return the same for all parts run as one graph, and the nodes that were run."""
        executor = MemoryExecutor(join)
        remembered = {
            node_id: [f"{self.parts[place].label}\n{own}" for place, own in readers]
            for node_id, readers in merged.readers().items()
        }
        options = RunOptions("all", jobs=jobs, remembered=remembered, order=merged.order)
        scratch = self.bench.folder / "scratch"
        results = run_graph(merged.graph, self.bench.store, executor, options, scratch, digests=merged.sources)
        texts = {}
        for name, result in results.items():
            assert result.record is not None
            texts[name] = self.bench.text(result.record.outputs["out"].files[0])
        return [{own: texts[node_id] for own, node_id in ids.items()} for ids in merged.ids], executor.calls


@properties
@given(drawn=st.lists(graphs(), min_size=1, max_size=3))
def test_merged_parts_give_their_own_results_and_equal_work_runs_once(
    drawn: list[Drawn],
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        parts = Parts(Path(folder), drawn)
        merged = merge(parts.parts)
        found, calls = parts.together(merged)
        assert found == [parts.alone(place) for place in range(len(drawn))]
        works = {text for texts in found for text in texts.values()}
        assert len(calls) == len(works), "the text of an output tells all that went into it"
        assert len(merged.graph.nodes) == len(works)
        for part in parts.parts:
            again = parts.bench.plan(part.graph.nodes, part.graph.sources.values(), scope=part.label)
            assert {(result.status, str(result.reason)) for result in again} == {(Status.REUSED, "up to date")}
            names = [remembered_name(part.label, each) for each in part.graph.nodes]
            assert all(parts.bench.store.latest([name]).get(name) is not None for name in names)


def test_shared_node_keeps_label_of_first_part(tmp_path: Path) -> None:
    shared = ("one", 0, ("weights",))
    drawn = [Drawn(("a", "a"), (shared, ("two", 0, ("n0.out",)))), Drawn(("a", "b"), (shared, ("two", 1, ("n0.out",))))]
    merged = merge(Parts(tmp_path, drawn).parts)
    assert merged.ids == ({"n0": "b0/n0", "n1": "b0/n1"}, {"n0": "b0/n0", "n1": "b1/n1"})
    assert merged.readers()["b0/n0"] == [(0, "n0"), (1, "n0")]


def test_parts_are_finished_one_after_another(tmp_path: Path) -> None:
    chains = [
        Drawn(("a", "a"), (("one", salt, ("weights",)), ("two", 0, ("n0.out",)), ("two", 1, ("n1.out",))))
        for salt in (0, 1)
    ]
    parts = Parts(tmp_path, chains)
    _, calls = parts.together(merge(parts.parts), jobs=1)
    assert calls == [f"{label}/n{place}" for label in ("b0", "b1") for place in range(3)]
