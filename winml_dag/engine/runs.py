"""The runs of a build that go on, as its scheduler sees them: it begins some, hears which have ended, and asks a clock.

That is all it knows of processes, threads and time. So the same scheduler can be driven by another clock, and by runs
that happen elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Protocol

from winml_dag.engine.decide import Run
from winml_dag.engine.progress import Watch
from winml_dag.engine.run import Runner, RunOutcome, Underway
from winml_dag.engine.stage import Node
from winml_dag.engine.waiting import Waiting
from winml_dag.store.artifact import Artifact


@dataclass(frozen=True, eq=False)
class Ended:
    """A run whose place is free. ``outcome``: what became of it; None as long as nobody has looked."""

    node: Node
    decision: Run
    outcome: RunOutcome | None


class Runs(Protocol):
    """Used from one thread, within its block. Whatever ends the block by an exception ends all runs before."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def now(self) -> float:
        """Seconds since any moment."""

    def start(self, node: Node, decision: Run, inputs: Mapping[str, Artifact], watch: Watch) -> RunOutcome | None:
        """Begin a run with the artifacts by slot, and return None; or what became of it, if it did not come to a run.
        *watch* follows the progress of the work.
        """

    def wait(self) -> list[Ended]:
        """Wait for an end. May come back with none, and a run may be told of a second time: with its outcome, after
        :meth:`conclude` had none.
        """

    def conclude(self, ended: Ended) -> RunOutcome | None:
        """What became of a run that :meth:`wait` gave without an outcome. None: that takes long, and will be told."""


class LocalRuns:
    """Runs of *runner* in processes of this machine, *jobs* at a time.

    Commands are started and followed by the thread that asks; what else runs has a thread each, which waits for it.
    """

    def __init__(self, runner: Runner, jobs: int) -> None:
        self._runner = runner
        self._jobs = jobs
        # Commands by the descriptor of their process, and those whose process has ended.
        self._underway: dict[int, Underway] = {}
        self._ended: dict[Ended, Underway] = {}
        self._threads: dict[Future[RunOutcome], tuple[Node, Run]] = {}
        # Commands that a thread waits for or concludes.
        self._handed_on: dict[Future[RunOutcome], Underway] = {}
        self._pool: ThreadPoolExecutor
        self._waiting: Waiting[RunOutcome]

    def __enter__(self) -> None:
        # Stages take no more threads than there are jobs. The others store large outputs of commands, which must not
        # wait for a stage that began later.
        self._pool = ThreadPoolExecutor(2 * self._jobs, thread_name_prefix="stage")
        self._waiting = Waiting()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                self._runner.stop()
            self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        finally:
            self._waiting.close()
            cancelled = [underway for future, underway in self._handed_on.items() if future.cancelled()]
            self._runner.abandon([*self._underway.values(), *self._ended.values(), *cancelled])
            self._runner.close()

    def now(self) -> float:
        return time.monotonic()

    def start(self, node: Node, decision: Run, inputs: Mapping[str, Artifact], watch: Watch) -> RunOutcome | None:
        begun = self._runner.begin(node, decision, inputs)
        if begun is None:
            self._follow(self._pool.submit(self._runner.run, node, decision, inputs, watch), node, decision)
        elif isinstance(begun, Underway) and begun.descriptor < 0:
            self._hand_on(self._runner.see_through, begun)
        elif isinstance(begun, Underway):
            self._underway[begun.descriptor] = begun
            self._waiting.add_process(begun.descriptor)
        else:
            return begun
        return None

    def wait(self) -> list[Ended]:
        deadline = min((underway.deadline for underway in self._underway.values()), default=inf)
        processes, futures = self._waiting.wait(deadline)
        if not processes and not futures:
            self._end_late()
        commands = [self._command_ended(descriptor) for descriptor in processes]
        # One that is no run only wakes who waits.
        ended = [future for future in futures if future in self._threads]
        for future in ended:
            self._handed_on.pop(future, None)
        return commands + [Ended(*self._threads.pop(future), future.result()) for future in ended]

    def conclude(self, ended: Ended) -> RunOutcome | None:
        underway = self._ended[ended]
        if underway.is_large():
            # Its bytes take longer than any command to start: a thread of its own, in no place of a command.
            self._hand_on(self._runner.end, underway)
            outcome = None
        else:
            outcome = self._runner.end(underway)
        del self._ended[ended]
        return outcome

    def _hand_on(self, work: Callable[[Underway], RunOutcome], underway: Underway) -> None:
        future = self._pool.submit(work, underway)
        self._handed_on[future] = underway
        self._follow(future, underway.node, underway.decision)

    def _follow(self, future: Future[RunOutcome], node: Node, decision: Run) -> None:
        self._threads[future] = node, decision
        self._waiting.add_future(future)

    def _command_ended(self, descriptor: int) -> Ended:
        self._waiting.remove_process(descriptor)
        underway = self._underway.pop(descriptor)
        ended = Ended(underway.node, underway.decision, None)
        self._ended[ended] = underway
        return ended

    def _end_late(self) -> None:
        now = time.monotonic()
        for underway in self._underway.values():
            if underway.deadline <= now:
                underway.time_out()
