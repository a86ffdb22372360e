"""What a run tells while it goes on, and what it says of each stage at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeAlias

from winml_dag.canonical import JsonObject
from winml_dag.engine.progress import Progress
from winml_dag.engine.reason import Reason
from winml_dag.engine.stage import Node
from winml_dag.errors import StageError
from winml_dag.store.record import Record

# How far a stage's work is; None while it tells nothing.
ReadProgress: TypeAlias = Callable[[], Progress | None]


class Status(StrEnum):
    """What became of a stage (in a plan: what would)."""

    RAN = "ran"
    REUSED = "reused"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class StageResult:
    """One stage of a run or of a plan.

    ``cache_key`` is None while an input is not known yet; ``record`` is there for what ran or was reused.
    ``elapsed_seconds`` is time spent in this run (0 for a reuse), in a plan the estimate, None without one.
    ``error``, ``advice``, ``log``, ``tail`` and ``metrics``, what it had measured by then, tell of a failure. One that
    has a ``record`` all the same did its work, and what came out is not what this build needs; ``kept`` is a copy of
    the file that says why.
    ``progress``: what its work told last, if anything. ``assumes``: in a plan, the stages that this holds for only if
    they give what they gave before.
    """

    node: Node
    status: Status
    reason: Reason
    cache_key: str | None = None
    record: Record | None = None
    elapsed_seconds: float | None = 0.0
    error: str = ""
    advice: str = ""
    log: Path | None = None
    tail: tuple[str, ...] = ()
    progress: Progress | None = None
    metrics: JsonObject = field(default_factory=dict)
    kept: Path | None = None
    assumes: tuple[str, ...] = ()

    @classmethod
    def refused(
        cls, node: Node, reason: Reason, record: Record, error: StageError, elapsed_seconds: float | None = 0.0
    ) -> StageResult:
        """The result *record* has, which does not do for *node*."""
        return cls(
            node,
            Status.FAILED,
            reason,
            record.cache_key,
            record,
            elapsed_seconds,
            error=error.message,
            advice=error.advice,
        )


class Observer(Protocol):
    """Told from the scheduler's thread, in the order in which things happen.

    *progress* reads how far the work is, from any thread and as often as one likes; None while it tells nothing.
    """

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None: ...

    def finished(self, result: StageResult) -> None: ...


class Silent:
    """An observer that says nothing."""

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None: ...

    def finished(self, result: StageResult) -> None: ...


class PassingOn:
    """An observer that tells *observer* all that it is told itself, for those that add to that or leave out of it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None:
        self._observer.started(node, reason, estimate_seconds, progress)

    def finished(self, result: StageResult) -> None:
        self._observer.finished(result)
