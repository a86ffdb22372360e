"""Small graphs of text stages, and a bench that runs them in this process, with a store of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from memory_executor import MemoryExecutor, Work
from memory_store import NotedStore

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import Reason, StageResult, Status
from winml_dag.engine.exchange import Progress
from winml_dag.engine.execute import Executor
from winml_dag.engine.graph import Graph
from winml_dag.engine.plan import plan_graph
from winml_dag.engine.run import LocalRuns, Runner
from winml_dag.engine.schedule import RunOptions, Scheduler
from winml_dag.engine.stage import InputSlot, Node, Source, SourceFile, Stage, Workspace
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import Fingerprints
from winml_dag.store.store import Store

TEXT = "text"

properties = settings(max_examples=25)


def source_artifact(source: Source, fingerprints: Fingerprints) -> Artifact:
    """Return the content of the files of *source*."""
    return Artifact.of(fingerprints.entry(file.path, file.name) for file in source.files)


def source_artifacts(graph: Graph, store: Store) -> dict[str, Artifact]:
    return {source.name: source_artifact(source, store.fingerprints) for source in graph.sources.values()}


def stage(name: str, slots: Iterable[str] = (), outputs: Iterable[str] = ("out",), *, version: int = 1) -> Stage:
    return Stage(
        name=name,
        version=version,
        work="",
        config="",
        inputs={slot: InputSlot(frozenset({TEXT})) for slot in slots},
        outputs=dict.fromkeys(outputs, TEXT),
    )


def node(
    node_id: str,
    *inputs: str,
    of: str | None = None,
    salt: int = 0,
    outputs: Iterable[str] = ("out",),
    version: int = 1,
    toolchain: Mapping[str, str] | None = None,
) -> Node:
    """Return a node that reads the artifacts *inputs* in slots ``in0``, ``in1``...; *of*: its stage's name, by default
    its id.
    """
    slots = {f"in{number}": name for number, name in enumerate(inputs)}
    declared = stage(of or node_id, slots, outputs, version=version)
    return Node(node_id, declared, {"text": {"salt": salt}}, slots, toolchain=toolchain or {})


def salt(node: Node) -> int:
    section = node.config["text"]
    assert isinstance(section, Mapping)
    value = section["salt"]
    assert isinstance(value, int)
    return value


def read(workspace: Workspace) -> list[str]:
    """Return the texts of all inputs, by slot."""
    return [
        path.read_text()
        for slot in sorted(workspace.inputs)
        for path in sorted(workspace.inputs[slot].iterdir())
        if path.is_file()
    ]


def join(node: Node, workspace: Workspace) -> JsonObject:
    """Write outputs that depend on all inputs: ``quantize7:out(weights)``."""
    for slot, folder in workspace.outputs.items():
        text = f"{node.stage.name}{salt(node)}:{slot}({','.join(read(workspace))})"
        (folder / f"{node.stage.name}-{slot}.txt").write_text(text)
    return {"inputs": len(workspace.inputs)}


@dataclass
class Notes:
    """An observer that records its callbacks, and each node's progress reader."""

    lines: list[str] = field(default_factory=list)
    progress: dict[str, Callable[[], Progress | None]] = field(default_factory=dict)

    def started(
        self,
        node: Node,
        reason: Reason,  # noqa: ARG002
        estimate_seconds: float | None,  # noqa: ARG002
        progress: Callable[[], Progress | None],
    ) -> None:
        self.progress[node.id] = progress
        self.lines.append(f"start {node.id}")

    def finished(self, result: StageResult) -> None:
        self.lines.append(f"{result.status} {result.node.id}")


def run_graph(
    graph: Graph,
    store: Store,
    executor: Executor,
    options: RunOptions,
    scratch: Path,
    *,
    digests: Mapping[str, Artifact] | None = None,
    notes: Notes | None = None,
    failures: Path | None = None,
    **how: Any,
) -> dict[str, StageResult]:
    """Run *graph* in the folder *scratch*, and return the results by node. *how*: settings of the ``Runner``."""
    scratch.mkdir(exist_ok=True)
    runner = Runner(
        graph,
        store,
        executor,
        store.fingerprints,
        scratch=scratch,
        failures=failures or scratch.with_name("failures"),
        made_by="tests",
        rebuild=options.rebuild,
        **how,
    )
    digests = source_artifacts(graph, store) if digests is None else digests
    runs = LocalRuns(runner, options.jobs)
    results = Scheduler(graph, digests, store, runs, options, notes or Notes()).run()
    assert list(scratch.iterdir()) == [], "every run clears its scratch folder"
    return {result.node.id: result for result in results}


@dataclass(frozen=True)
class Ran:
    """One run: its results by node, the nodes that were executed, and the observer callbacks."""

    results: Mapping[str, StageResult]
    calls: list[str]
    told: list[str]

    def of(self, status: Status) -> list[str]:
        return sorted(node_id for node_id, result in self.results.items() if result.status is status)

    def reason(self, node_id: str) -> str:
        return str(self.results[node_id].reason)

    def file(self, node_id: str, slot: str = "out") -> FileEntry:
        record = self.results[node_id].record
        assert record is not None
        (file,) = record.outputs[slot].files
        return file


class Bench:
    """Runs graphs one after the other with one store."""

    def __init__(self, folder: Path, store: NotedStore | None = None) -> None:
        self.folder = folder
        self.store = store or NotedStore()
        self.failures = folder / "failures"
        self._numbers = itertools.count()

    def source(self, name: str, text: str) -> Source:
        path = self.folder / f"{name}.txt"
        path.write_text(text)
        return Source(name, TEXT, (SourceFile("source.txt", path),))

    def run(
        self,
        nodes: Iterable[Node],
        sources: Iterable[Source] = (),
        *,
        work: Work = join,
        jobs: int = 1,
        keep_going: bool = False,
        rebuild: bool = False,
        scope: str = "here",
        notes: Notes | None = None,
        memory_bytes: int | None = None,
        order: Mapping[str, int] | None = None,
    ) -> Ran:
        executor, notes = MemoryExecutor(work), notes or Notes()
        options = RunOptions(scope, jobs, keep_going, rebuild, order=order or {}, memory_bytes=memory_bytes)
        scratch = self.folder / f"scratch{next(self._numbers)}"
        results = run_graph(Graph.of(nodes, sources), self.store, executor, options, scratch, notes=notes)
        return Ran(results, executor.calls, notes.lines)

    def plan(
        self, nodes: Iterable[Node], sources: Iterable[Source] = (), *, scope: str = "here", explain: bool = False
    ) -> list[StageResult]:
        graph = Graph.of(nodes, sources)
        return list(plan_graph(graph, source_artifacts(graph, self.store), self.store, scope=scope, explain=explain))

    def text(self, file: FileEntry) -> str:
        return self.store.bytes_of(file).decode()
