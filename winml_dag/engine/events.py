"""What a run reports while it is in progress, and the result of each stage at the end."""

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

# The progress of a stage's work; None while it reports nothing.
ReadProgress: TypeAlias = Callable[[], Progress | None]


class Status(StrEnum):
    """The outcome of a stage; in a plan, the predicted one."""

    RAN = "ran"
    REUSED = "reused"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class StageResult:
    """One stage of a run or of a plan.

    ``cache_key`` is None while an input is not known yet. ``record`` is set if the stage ran or was reused.
    ``elapsed_seconds`` is the time spent in this run (0 for a reuse); in a plan it is the estimate, or None without
    one.

    ``error``, ``advice``, ``log``, ``tail`` and ``metrics`` (what was measured until then) describe a failure. A failed
    stage that has a ``record`` did its work, but the result does not satisfy this build; ``kept`` is a copy of the file
    that shows why.

    ``progress``: the last progress reported, if any. ``assumes``: in a plan, the stages whose outputs are assumed to be
    unchanged.
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
        """A result that is recorded in *record* but not acceptable for *node*."""
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
    """Receives callbacks from the scheduler's thread, in the order of events.

    *progress* returns the current progress, or None while nothing is reported. It may be called from any thread, as
    often as needed.
    """

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None: ...

    def finished(self, result: StageResult) -> None: ...


class Silent:
    """An observer that does nothing."""

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None: ...

    def finished(self, result: StageResult) -> None: ...


class PassingOn:
    """An observer that forwards all callbacks to *observer*; a base class for those that add to them or omit some."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None:
        self._observer.started(node, reason, estimate_seconds, progress)

    def finished(self, result: StageResult) -> None:
        self._observer.finished(result)
