"""Simulated runs on a virtual clock: a heap of end times, and machines that keep what they made or fetched."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from types import TracebackType
from typing import TypeAlias

from recorded import Ran
from virtualstore import VirtualStore
from world import VirtualClock, VirtualRemote

from winml_dag.engine import events
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.exchange import Watch
from winml_dag.engine.plan import Reuse, Run
from winml_dag.engine.run import Ended
from winml_dag.engine.stage import Node
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.records import Record

MADE_AT = "2026-01-01T00:00:00+00:00"


@dataclass(frozen=True, eq=False)
class _Underway:
    node: Node
    decision: Run
    inputs: Mapping[str, Artifact]
    machine: int
    began: float
    seconds: float


_Steps: TypeAlias = Generator[float, float, Record]


@dataclass(frozen=True)
class Span:
    """When a run occupied its machine, in clock seconds, and for how much of that it worked."""

    node_id: str
    began: float
    ended: float
    seconds: float


class VirtualRuns:
    """See ``Runs``.

    *machines* with one slot each start with empty stores and share a remote; the longest idle one is next.

    Its requests are those of `ClusterRuns` and the workers' runners. *ran*: the recorded run of a node. *overhead*:
    clock seconds that the scheduler takes per run. *stretch* and *grow*: factors on recorded durations and file sizes.
    *jitter*: the maximum relative deviation from the recorded duration. *told* receives every run. ``spent``: seconds
    of the simulation itself, in ``time.perf_counter``: reading processor time costs more than what is measured.
    """

    def __init__(
        self,
        clock: VirtualClock,
        remote: VirtualRemote,
        store: VirtualStore,
        ran: Callable[[Node], Ran],
        machines: int,
        *,
        overhead: float = 0.0,
        stretch: float = 1.0,
        grow: float = 1.0,
        jitter: float = 0.0,
        seed: int = 0,
        told: Callable[[Span], None] = lambda _: None,
    ) -> None:
        self.spent = 0.0
        self.work_seconds = 0.0
        self.busy_seconds = 0.0
        self.started = self.found = 0
        self._clock = clock
        self._remote = remote
        self._store = store
        self._ran = ran
        self._overhead = overhead
        self._stretch = stretch
        self._grow = grow
        self._jitter = jitter
        self._chance = random.Random(seed)
        self._told = told
        self._free = deque(range(machines))
        self._has: list[set[int]] = [set() for _ in range(machines)]
        # The time of the next step of each run.
        self._events: list[tuple[float, int, _Underway, _Steps]] = []
        self._numbers = count()
        self._found: list[Ended] = []

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._events.clear()

    def now(self) -> float:
        return self._clock.seconds

    def start(self, node: Node, decision: Run, inputs: Mapping[str, Artifact], watch: Watch) -> None:  # noqa: ARG002 - nobody looks
        entered = perf_counter()
        self._clock.seconds += self._overhead
        if (made := self._store.shelf.records.get(decision.key)) is not None:
            # As a runner finds out after claiming the key.
            self.found += 1
            self._found.append(Ended(node, decision, Reuse(made, events.found(made))))
            return
        seconds = self._ran(node).seconds * self._stretch * self._chance.uniform(1 - self._jitter, 1 + self._jitter)
        underway = _Underway(node, decision, inputs, self._free.popleft(), self._clock.seconds, seconds)
        self.started += 1
        self.work_seconds += seconds
        steps = self._steps(underway)
        self._push(next(steps), underway, steps)
        self.spent += perf_counter() - entered

    def wait(self) -> list[Ended]:
        """Return all runs that have ended by now, or by the next end."""
        entered = perf_counter()
        ended, self._found = self._found, []
        while self._events and (not ended or self._events[0][0] <= self._clock.seconds):
            moment, _, underway, steps = heapq.heappop(self._events)
            if (record := self._go_on(moment, underway, steps)) is not None:
                self._clock.until(moment)
                ended.append(self._ended(moment, underway, record))
        self.spent += perf_counter() - entered
        return ended

    def _go_on(self, moment: float, underway: _Underway, steps: _Steps) -> Record | None:
        """Let a run take its next step, at *moment*. Return the result of the last step."""
        try:
            self._push(steps.send(moment), underway, steps)
        except StopIteration as stop:
            record: Record = stop.value
            return record
        return None

    def _push(self, moment: float, underway: _Underway, steps: _Steps) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), underway, steps))

    def _steps(self, underway: _Underway) -> _Steps:
        """Simulate a worker's run: each step yields its end time and receives that moment."""
        remote, has, ran = self._remote, self._has[underway.machine], self._ran(underway.node)
        now = yield remote.ask_for_records(underway.began, 1, 0)
        read = {file.digest: file.size for artifact in underway.inputs.values() for file in artifact.files}
        now = yield remote.get(now, [size for digest, size in read.items() if hash(digest) not in has])
        now = yield now + underway.seconds
        record = self._record(underway)
        made = {file.digest: file.size for file in record.files()}
        has.update(map(hash, (*read, *made)))
        log = [(f"{record.cache_key}.log", ran.log_bytes)] if ran.log_bytes else []
        now = yield remote.put_blobs(now, [*made.items(), *log])
        now = yield remote.put_record(now, ran.record_bytes)
        # The building machine checks that it could fetch the results.
        yield remote.ask_for_blobs(now, len(made))
        return record

    def _ended(self, moment: float, underway: _Underway, record: Record) -> Ended:
        self._store.made(record, self._ran(underway.node).record_bytes)
        self._free.append(underway.machine)
        self.busy_seconds += moment - underway.began
        self._told(Span(underway.node.id, underway.began, moment, underway.seconds))
        decision = underway.decision
        result = StageResult(underway.node, Status.RAN, decision.reason, decision.key, record, record.elapsed_seconds)
        return Ended(underway.node, decision, result)

    def _record(self, underway: _Underway) -> Record:
        key, key_inputs = underway.decision.key, underway.decision.key_inputs
        ran = self._ran(underway.node)
        outputs = {
            slot: Artifact(
                tuple(
                    _file(underway.inputs, file.copied, place)
                    or FileEntry(_name(place), digest_of(f"{key}.{slot}.{place}"), round(file.size * self._grow))
                    for place, file in enumerate(files)
                )
            )
            for slot, files in ran.outputs.items()
        }
        return Record(
            key, key_inputs.config_hash, key_inputs, outputs, elapsed_seconds=underway.seconds, made_at=MADE_AT
        )


def digest_of(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _name(place: int) -> str:
    return f"{place:02}"


def _file(inputs: Mapping[str, Artifact], copied: tuple[str, int] | None, place: int) -> FileEntry | None:
    """Return the file that equals an input, under its name here."""
    if copied is None:
        return None
    read = inputs[copied[0]].files[copied[1]]
    return read if read.name == _name(place) else FileEntry(_name(place), read.digest, read.size)
