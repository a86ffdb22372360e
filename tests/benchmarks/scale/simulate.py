"""One simulated run of a graph by the real scheduler, and its cost: on the virtual clock, and in processor time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphs import cell_of
from recorded import Ran, Recorded, recorded
from virtualruns import Span, VirtualRuns, digest_of
from virtualstore import Shelf, VirtualStore
from world import Offer, VirtualClock, VirtualRemote, Went

from winml_dag.engine.eta import chains
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.graph import Merged
from winml_dag.engine.plan import prefetch
from winml_dag.engine.resources import Admission, Capacity
from winml_dag.engine.schedule import RunOptions, Scheduler
from winml_dag.engine.stage import Node
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.records import KeyInputs, Record

_FINAL = "finalize"


@dataclass(frozen=True)
class How:
    """How to simulate: number of machines and the remote; the rest as in `VirtualRuns`."""

    machines: int
    offer: Offer = field(default_factory=Offer)
    overhead: float = 0.0
    stretch: float = 1.0
    grow: float = 1.0
    jitter: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Left:
    """What a run leaves for the next: in the remote, and on this machine the last key under each name."""

    shelf: Shelf = field(default_factory=Shelf)
    blobs: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Played:
    """One run.

    ``seconds``: on the clock, from the first lookup until the last folder is complete. ``least``: its lower bound, the
    larger of the total work over all machines and the longest chain. ``busy``: clock seconds in which machines were
    occupied, ``work``: the part of it spent on work. ``ahead`` and ``scheduled``: processor seconds of the prefetch and
    of the scheduler.
    """

    stages: int
    ran: int
    machines: int
    seconds: float
    work: float
    chain: float
    busy: float
    ahead: float
    scheduled: float
    went: Went

    @property
    def least(self) -> float:
        return max(self.work / self.machines, self.chain)

    @property
    def utilisation(self) -> float:
        return self.work / self.machines / self.seconds if self.seconds else 0.0


def simulate(
    merged: Merged, how: How, left: Left | None = None, told: Callable[[Span], None] = lambda _: None
) -> tuple[Played, Left]:
    """Simulate *merged* on a machine with an empty store. *left*: what an earlier run has left in the remote."""
    left = left or Left()
    records = recorded()
    clock, remote = VirtualClock(), VirtualRemote(how.offer)
    remote.held = left.blobs
    store = VirtualStore(clock, remote, left.shelf, _usual(records, how), dict(left.names))
    spans: dict[str, float] = {}

    def tell(span: Span) -> None:
        spans[span.node_id] = span.seconds
        told(span)

    runs = VirtualRuns(
        clock,
        remote,
        store,
        lambda node: _ran(records, node),
        how.machines,
        overhead=how.overhead,
        stretch=how.stretch,
        grow=how.grow,
        jitter=how.jitter,
        seed=how.seed,
        told=tell,
    )
    gc.collect()
    began = time.process_time()
    prefetch(merged.graph, merged.sources, store)
    ahead = time.process_time() - began
    options = RunOptions("", order=merged.order)
    began, wall = time.process_time(), time.perf_counter()
    results = Scheduler(
        merged.graph, merged.sources, store, runs, options, admission=Admission(Capacity(how.machines))
    ).run()
    # The share of processor seconds not spent in the simulation itself: a busy machine delays both alike.
    share = 1 - runs.spent / (time.perf_counter() - wall)
    scheduled = (time.process_time() - began) * share
    store.fetch_ahead(_asked_for(results))
    played = Played(
        len(results),
        sum(result.status is Status.RAN for result in results),
        how.machines,
        clock.seconds,
        runs.work_seconds,
        max(chains(merged.graph, spans).values(), default=0.0),
        runs.busy_seconds,
        ahead,
        scheduled,
        replace(remote.went),
    )
    return played, Left(left.shelf, remote.held, store.names)


def _ran(records: Recorded, node: Node) -> Ran:
    return records.of(*cell_of(node.id))


def _asked_for(results: Sequence[StageResult]) -> list[FileEntry]:
    """Return the files in the output folders of all cells at the end."""
    return [
        file
        for result in results
        if result.node.stage.name == _FINAL and result.record is not None
        for file in result.record.files()
    ]


def _usual(records: Recorded, how: How) -> Mapping[str, Sequence[Record]]:
    """Return a team's cache of other work: a record of each recorded run."""
    names = {node_id.partition(".")[0] for cell in records.cells.values() for node_id in cell}
    return {name: [_record(name, run, how) for run in records.with_stage(name)] for name in names}


def _record(stage: str, ran: Ran, how: How) -> Record:
    made = KeyInputs(stage, 0, {}, {}, {})
    outputs = {slot: Artifact(()) for slot in ran.outputs}
    return Record(digest_of(stage), made.config_hash, made, outputs, elapsed_seconds=ran.seconds * how.stretch)
