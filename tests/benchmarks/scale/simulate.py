"""One simulated run of a graph by the real scheduler, and what it cost: on the virtual clock, and in processor time."""

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
from winml_dag.engine.merge import Merged
from winml_dag.engine.plan import prefetch
from winml_dag.engine.resources import Admission, Capacity
from winml_dag.engine.schedule import RunOptions, Scheduler
from winml_dag.engine.stage import Node
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.records import KeyInputs, Record

_FINAL = "finalize"


@dataclass(frozen=True)
class How:
    """How to simulate: on so many machines, with what remote; the others as `VirtualRuns` has them."""

    machines: int
    offer: Offer = field(default_factory=Offer)
    overhead: float = 0.0
    stretch: float = 1.0
    grow: float = 1.0
    jitter: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Left:
    """What a run leaves behind for the next: in the remote, and on this machine the last key under each name."""

    shelf: Shelf = field(default_factory=Shelf)
    blobs: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Played:
    """One run.

    ``seconds``: of the clock, from the first look until the last folder is filled. ``least``: the lower bound of that,
    the larger of all work on all machines and the longest chain. ``busy``: seconds of the clock for which machines were
    held, ``work``: of these, of work. ``ahead`` and ``scheduled``: processor seconds of the look ahead and of the
    scheduler.
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
    """Play *merged* through, on a machine with an empty store; *left*: what a run before has left in the remote."""
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
    # Of the processor seconds the share that was not the simulation's own: a busy machine delays both alike.
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
    """What lies in the folders of all cells in the end."""
    return [
        file
        for result in results
        if result.node.stage.name == _FINAL and result.record is not None
        for file in result.record.files()
    ]


def _usual(records: Recorded, how: How) -> Mapping[str, Sequence[Record]]:
    """What a team's cache has of other work: a record of each run that was recorded."""
    names = {node_id.partition(".")[0] for cell in records.cells.values() for node_id in cell}
    return {name: [_record(name, run, how) for run in records.with_stage(name)] for name in names}


def _record(stage: str, ran: Ran, how: How) -> Record:
    made = KeyInputs(stage, 0, {}, {}, {})
    outputs = {slot: Artifact(()) for slot in ran.outputs}
    return Record(digest_of(stage), made.config_hash, made, outputs, elapsed_seconds=ran.seconds * how.stretch)
