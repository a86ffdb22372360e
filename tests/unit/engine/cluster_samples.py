"""Workers of a cluster in this process: a link that runs orders at once, or loses workers, with every call noted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine_samples import join, stage
from memory_executor import MemoryExecutor

from winml_dag.engine import reason
from winml_dag.engine.admission import Capacity
from winml_dag.engine.cluster.fleet import Fleet
from winml_dag.engine.cluster.inputs import Inputs
from winml_dag.engine.cluster.order import Answer, Order
from winml_dag.engine.cluster.runs import ClusterRuns, Ordering
from winml_dag.engine.decide import Reuse, Run
from winml_dag.engine.events import StageResult
from winml_dag.engine.graph import Graph
from winml_dag.engine.keys import ingredients_of
from winml_dag.engine.known import source_artifact
from winml_dag.engine.progress import Progress, Watch
from winml_dag.engine.run import Runner
from winml_dag.engine.schedule import RunOptions, Scheduler
from winml_dag.engine.stage import Node, Source
from winml_dag.store.local import LocalStore

TOOLS = {"tool": "1"}


@dataclass(frozen=True)
class Machine:
    """A worker that makes one toolchain."""

    address: str
    tools: Mapping[str, str] = field(default_factory=lambda: TOOLS)
    places: int = 1
    memory_bytes: int = 1 << 30
    host: str = ""

    def differs(self, node: Node) -> str:
        return "" if node.toolchain == self.tools else f"has tool {self.tools['tool']}, not {node.toolchain['tool']}"


def far(node_id: str, *inputs: str, tool: str = "1") -> Node:
    """A node of a stage that may leave this machine; reads *inputs* in ``in0``, ``in1``..."""
    slots = {f"in{number}": name for number, name in enumerate(inputs)}
    declared = replace(stage(node_id, slots), work="winml_dag.stages.none:run", config="winml_dag.stages.none:Config")
    return Node(node_id, declared, {"text": {"salt": 0}}, slots, toolchain={"tool": tool})


class SampleLink:
    """See ``Link``. *before* is called with each order; what it returns is the answer, or if True that the worker has
    gone. Without, or for None, the order is carried out.

    Attributes:
        calls: address and node of each order.
    """

    def __init__(
        self, store: LocalStore, folder: Path, before: Callable[[str, Order], Answer | bool | None] = lambda *_: None
    ) -> None:
        self.calls: list[tuple[str, str]] = []
        self._store = store
        self._folder = folder
        self._before = before
        self._lock = threading.Lock()

    def perform(self, address: str, order: Order, watch: Watch, log: Path) -> Answer | None:  # noqa: ARG002
        # As texts, like all orders and answers.
        order = Order.from_text(order.to_text())
        with self._lock:
            self.calls.append((address, order.node.id))
            scratch = self._folder / str(len(self.calls))
        found = self._before(address, order)
        if found is not None:
            return None if isinstance(found, bool) else Answer.from_text(found.to_text())
        scratch.mkdir()
        watch.tell(Progress(1, 2, "halves"))
        return Answer.from_text(self._run(order, scratch).to_text())

    def stop(self) -> None: ...

    def _run(self, order: Order, scratch: Path) -> Answer:
        runner = Runner(
            Graph((order.node,), {}, {}),
            self._store,
            MemoryExecutor(join),
            self._store.fingerprints,
            scratch=scratch,
            failures=scratch,
            made_by="a worker",
            rebuild=order.rebuild,
        )
        digests = {slot: artifact.digest for slot, artifact in order.inputs.items()}
        run = Run(order.key, ingredients_of(order.node, digests), reason.FIRST_BUILD, None)
        outcome = runner.run(order.node, run, order.inputs)
        if isinstance(outcome, Reuse):
            return Answer("found", record=outcome.record)
        assert isinstance(outcome, StageResult)
        return Answer("done", record=outcome.record) if outcome.record else Answer("failed", error=outcome.error)


@dataclass
class Cluster:
    """Graphs of *nodes* run on *machines*. ``fleet`` and ``runs`` are those of the run that goes on."""

    folder: Path
    machines: list[Machine]
    before: Callable[[str, Order], Answer | bool | None] = lambda *_: None
    calls: list[tuple[str, str]] = field(default_factory=list)
    fleet: Fleet = field(default_factory=lambda: Fleet(Capacity(1)))
    runs: ClusterRuns | None = None

    def run(self, nodes: list[Node], sources: Sequence[Source] = (), *, name: str = "run") -> dict[str, StageResult]:
        graph = Graph.of(nodes, sources)
        store = LocalStore(self.folder / "store")
        scratch = self.folder / name
        (scratch / "orders").mkdir(parents=True)
        link = SampleLink(store, scratch / "orders", self.before)
        self.calls = link.calls
        self.fleet.staff(self.machines)
        runner = Runner(
            graph,
            store,
            MemoryExecutor(join),
            store.fingerprints,
            scratch=scratch,
            failures=store.failures,
            made_by="here",
            rebuild=False,
        )
        ordering = Ordering("topic", scratch, store.failures, None, rebuild=False, remotes=lambda _: None)
        self.runs = ClusterRuns(runner, Inputs(graph, store, scratch, "here"), store, self.fleet, link, ordering)
        known = {source.name: source_artifact(source, store.fingerprints) for source in sources}
        options = RunOptions("scope", keep_going=True)
        results = Scheduler(graph, known, store, self.runs, options, admission=self.fleet).run()
        return {result.node.id: result for result in results}
