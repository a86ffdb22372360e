"""A dask cluster in this process: a scheduler, and workers that run text stages in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dask
from distributed import Scheduler, SpecCluster
from memory_executor import MemoryExecutor

from winml_dag import __version__
from winml_dag.engine import events
from winml_dag.engine.events import StageResult
from winml_dag.engine.graph import Graph
from winml_dag.engine.plan import Run
from winml_dag.engine.run import Runner, RunOutcome
from winml_dag.engine.schedule import RunOptions
from winml_dag.engine.schedule import Scheduler as EngineScheduler
from winml_dag.engine.stage import Memory, Node, Source, key_inputs_of
from winml_dag.pipeline.cluster.cluster import Cluster, ClusterOptions
from winml_dag.pipeline.cluster.report import Installed, Report, folder_identity
from winml_dag.pipeline.cluster.worker import Order, Workplace, dask_worker
from winml_dag.pipeline.cluster.workers import connect
from winml_dag.store.remote.settings import RemoteSettings
from winml_dag.store.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from engine_samples import join, source_artifact, stage

# What a test does when a worker gets an order: return its outcome, or None to run the order.
Before = Callable[["SampleWorkplace", Order, Any], RunOutcome | None]


@dataclass(frozen=True)
class Machine:
    """A worker with one toolchain."""

    name: str
    tool: str = "1"
    places: int = 1
    memory_bytes: int = 1 << 30
    pools: tuple[str, ...] = ()


def remote_node(
    node_id: str, *inputs: str, tool: str = "1", memory_bytes: int = 0, pools: tuple[str, ...] = ()
) -> Node:
    """Return a node of a stage that may run remotely, which reads *inputs* in ``in0``, ``in1``..."""
    slots = {f"in{number}": name for number, name in enumerate(inputs)}
    work = {"work": "winml_dag.stages.none:run", "config": "winml_dag.stages.none:Config"}
    declared = replace(stage(node_id, slots), **work, memory=Memory(memory_bytes, 0))  # type: ignore[arg-type]
    return Node(node_id, declared, {"text": {"salt": 0}}, slots, toolchain={"tool": tool}, pools=pools)


class SampleWorkplace(Workplace):
    """Runs the work in memory. ``dask``: the worker that it belongs to."""

    def __init__(self, folder: Path, machine: Machine, before: Before) -> None:
        super().__init__(folder)
        self.machine = machine
        self.dask: Any = None
        self._before = before

    def vanish(self) -> None:
        """Lose the connection to the scheduler, like a machine that loses power."""
        self.dask.loop.add_callback(self.dask.batched_stream.abort)

    def report(self) -> Report:
        installed = Installed(distributions={"tool": self.machine.tool}, tools={"xxh3-128": {}, "sha256": {}}, pools=())
        return Report(
            version=__version__,
            places=self.machine.places,
            memory_bytes=self.machine.memory_bytes,
            tags=("spare",),
            host=self.machine.name,
            store=folder_identity(self.folder),
            environments={"": installed},
        )

    def _run(self, _key: str, order: Order, store: Store, running: Any) -> RunOutcome:
        return self._before(self, order, running) or self._work(order, store)

    def _work(self, order: Order, store: Store) -> RunOutcome:
        with store.scratch.open() as scratch:
            runner = Runner(
                Graph((order.node,), {}, {}),
                store,
                MemoryExecutor(join),
                store.fingerprints,
                scratch=scratch,
                failures=scratch,
                made_by="a worker",
                rebuild=order.rebuild,
            )
            key_inputs = key_inputs_of(order.node, {slot: each.digest for slot, each in order.inputs.items()})
            return runner.run(order.node, Run(order.key, key_inputs, events.FIRST_BUILD, None), order.inputs)


@dataclass
class Bench:
    """Graphs run on workers that share the store in *folder*.

    Attributes:
        calls: the name of the worker and the node of each order, in order of arrival.
        before: see :data:`Before`.
    """

    folder: Path
    before: Callable[[SampleWorkplace, Order, Any], RunOutcome | None] = lambda *_: None
    calls: list[tuple[str, str]] = field(default_factory=list)
    workplaces: list[SampleWorkplace] = field(default_factory=list)
    spec: Any = None

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def start(self, *machines: Machine) -> None:
        """Start additional workers."""

        async def begin(machine: Machine) -> None:
            workplace = SampleWorkplace(self.store, machine, self._call)
            workplace.dask = dask_worker(self.spec.scheduler_address, workplace, workplace.report())
            await workplace.dask
            self.workplaces.append(workplace)

        for machine in machines:
            self.spec.sync(begin, machine)

    def address(self, name: str) -> str:
        """Return the address of the worker called *name*."""
        return next(str(each.dask.address) for each in self.workplaces if each.machine.name == name)

    @contextmanager
    def cluster(self, settings: RemoteSettings | None = None) -> Iterator[Cluster]:
        """Yield the cluster as a build with these remotes sees it."""
        client = connect(self.spec.scheduler_address)
        try:
            yield Cluster(client, ClusterOptions(None, 1, (), 1, None), self.store, settings)
        finally:
            client.close()

    def run(
        self, nodes: Sequence[Node], sources: Sequence[Source] = (), *, name: str = "run"
    ) -> Mapping[str, StageResult]:
        with self.cluster() as cluster:
            return self.run_on(cluster, nodes, sources, name=name)

    def run_on(
        self, cluster: Cluster, nodes: Sequence[Node], sources: Sequence[Source] = (), *, name: str = "run"
    ) -> Mapping[str, StageResult]:
        graph = Graph.of(nodes, sources)
        store = Store(self.store)
        scratch = self.folder / name
        scratch.mkdir()
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
        runs = cluster.runs(runner, graph, store, scratch, timeout_seconds=None, rebuild=False)
        known = {source.name: source_artifact(source, store.fingerprints) for source in sources}
        options = RunOptions("scope", keep_going=True)
        results = EngineScheduler(graph, known, store, runs, options, admission=cluster.admission).run()
        return {result.node.id: result for result in results}

    def _call(self, workplace: SampleWorkplace, order: Order, running: Any) -> RunOutcome | None:
        self.calls.append((workplace.machine.name, order.node.id))
        return self.before(workplace, order, running)


@contextmanager
def bench(folder: Path, *machines: Machine, allowed_failures: int = 3) -> Iterator[Bench]:
    """Yield a cluster of *machines*."""
    found = Bench(folder)
    Store(found.store)
    addresses = {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": allowed_failures}),
        SpecCluster(workers={}, scheduler={"cls": Scheduler, "options": addresses}, silence_logs=False) as spec,
    ):
        found.spec = spec
        found.start(*machines)
        try:
            yield found
        finally:
            for workplace in found.workplaces:
                spec.sync(workplace.dask.close)
