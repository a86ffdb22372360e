"""Who is told of a sweep while it runs: of stages like any observer, and of cells."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from winml_dag.engine.events import Observer, PassingOn, ReadProgress, Silent, StageResult
from winml_dag.pipeline.sweep.result import CellStatus

if TYPE_CHECKING:
    from winml_dag.engine.eta import Eta
    from winml_dag.engine.reason import Reason
    from winml_dag.engine.stage import Node


class Watcher(Observer, Protocol):
    """Told of stages as any observer is, with the name of a cell before the id of each node; and of cells."""

    def phase(self, doing: str, cells: Sequence[str]) -> None:
        """What comes now is done for each of *cells*."""

    def cell(self, name: str, status: CellStatus, why: str = "") -> None:
        """What became of a cell in this phase."""

    def foretold(self, eta: Eta) -> None:
        """What tells how long the stages will take that run from now on."""


class SilentWatcher(Silent):
    """One that says nothing."""

    def phase(self, doing: str, cells: Sequence[str]) -> None: ...

    def cell(self, name: str, status: CellStatus, why: str = "") -> None: ...

    def foretold(self, eta: Eta) -> None: ...


class Timed(PassingOn):
    """Tells *observer*, and remembers when each stage began and how long it took, by its key.

    ``started_at`` is in seconds since this was made.
    """

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._zero = time.monotonic()
        self._began: dict[str, float] = {}
        self.started_at: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None:
        self._began[node.id] = round(time.monotonic() - self._zero, 3)
        super().started(node, reason, estimate_seconds, progress)

    def finished(self, result: StageResult) -> None:
        began = self._began.pop(result.node.id, None)
        if began is not None and result.cache_key is not None:
            self.started_at[result.cache_key] = began
            self.seconds[result.cache_key] = result.elapsed_seconds or 0.0
        super().finished(result)
