"""What became of a sweep: the content of ``sweep.json``, which the next run, the report and other programs read.

It holds what no manifest can: cells that failed, were refused or left out, what was shared, and what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SWEEP = "sweep.json"
FORMAT = 1


class CellStatus(StrEnum):
    """What became of a cell. ``refused``: it cannot be built as it is written. ``left out``: the recipe excludes it.
    ``not reached``: the run ended before, or it is of another shard.
    """

    BUILT = "built"
    UP_TO_DATE = "up to date"
    FAILED = "failed"
    REFUSED = "refused"
    LEFT_OUT = "left out"
    NOT_REACHED = "not reached"


@dataclass(frozen=True)
class StageRun:
    """One stage of a cell.

    Attributes:
        status: ``ran``, ``reused``, ``skipped`` or ``failed``.
        elapsed_seconds: spent in this run; 0 when it was not run for this cell.
        made_in_seconds: what making the result took, whenever that was; of a reuse, what that saved. None without one.
        started_seconds: after the sweep began; None when it did not run in it.
        cells: how many cells of the sweep stand on this very result.
    """

    id: str
    stage: str
    status: str
    reason: str
    cache_key: str | None = None
    elapsed_seconds: float = 0.0
    made_in_seconds: float | None = None
    started_seconds: float | None = None
    peak_memory_bytes: int | None = None
    made_at: str = ""
    made_by: str = ""
    cells: int = 1


@dataclass(frozen=True)
class Failure:
    """Why a cell has no result. ``stage`` is None where none had begun; ``log`` is where the whole log lies."""

    stage: str | None
    error: str
    advice: str = ""
    log: str | None = None
    tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """What perf or eval told of a cell. ``report`` is theirs, as ``--format json`` prints it; ``measured`` is ``live``
    or ``cached``. ``error``: why there is none.
    """

    measured: str = ""
    made_at: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class CellResult:
    """What became of one cell.

    Attributes:
        name: unique in the sweep; by default the labels of its values, joined with ``/``.
        values: by axis, the label of the value.
        folder: its output folder, relative to that of ``sweep.json``, with ``/``; absolute where it is not below it.
        why: for a status that needs it, the reason in a sentence.
        reached: the id of the last stage that has a result; None without one.
        saved_seconds: what the results that it found had taken to make.
        trial_of: the cell whose mixed precision was searched for, of which this is a trial.
        command: what builds this cell alone.
    """

    name: str
    values: Mapping[str, str]
    folder: str
    status: CellStatus
    why: str = ""
    reached: str | None = None
    stages: tuple[StageRun, ...] = ()
    failure: Failure | None = None
    elapsed_seconds: float = 0.0
    saved_seconds: float = 0.0
    perf: Measured | None = None
    eval: Measured | None = None
    trial_of: str | None = None
    command: str = ""

    @property
    def is_there(self) -> bool:
        return self.status in (CellStatus.BUILT, CellStatus.UP_TO_DATE)


@dataclass(frozen=True)
class SharedGraph:
    """What the one graph of all cells came to. ``stages``: its nodes; ``stages_apart``: the sum over the cells.

    ``seconds_ran`` and ``seconds_saved`` add up work, whatever ran at the same time; ``critical_path`` are the nodes
    that nothing could have made shorter, with ``critical_path_seconds`` as their sum.
    """

    builds: int = 0
    stages: int = 0
    stages_apart: int = 0
    by_stage: Mapping[str, int] = field(default_factory=dict)
    by_status: Mapping[str, int] = field(default_factory=dict)
    seconds_ran: float = 0.0
    seconds_saved: float = 0.0
    critical_path: tuple[str, ...] = ()
    critical_path_seconds: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """A cell as a goal sees it. ``why`` says what ruled it out; empty for one that meets all bounds. ``values``: the
    measure to minimize and all bounded ones, by name; None where it was not measured.
    """

    cell: str
    values: Mapping[str, float | None]
    why: str = ""


@dataclass(frozen=True)
class SearchResult:
    """What a search for mixed precision came to, which began with ``cell``.

    Attributes:
        kept: in what the worst nodes are kept: ``16 bits`` or ``float``.
        ranked: how many nodes there are to keep, worst first.
        tried: whether the bounds on quality hold, by how many of the worst nodes are kept; 0 is the cell itself.
        fewest: the smallest of these that holds, of which one less was tried and does not; None without one.
        nodes: the names of these nodes.
        trial: the cell that has them.
        why: how it ended, in a sentence.
    """

    cell: str
    kept: str
    ranked: int
    tried: Mapping[int, bool]
    fewest: int | None = None
    nodes: tuple[str, ...] = ()
    trial: str | None = None
    why: str = ""


@dataclass(frozen=True)
class GoalResult:
    """The winner among cells that differ only in what the goal chooses. ``group``: the values that they share;
    ``winner`` is None where no cell meets the bounds; ``folder`` is where the winner was put. ``pending``: some of the
    cells have no result yet.
    """

    group: Mapping[str, str]
    minimize: str
    subject_to: Mapping[str, str]
    winner: str | None
    candidates: tuple[Candidate, ...]
    folder: str | None = None
    why: str = ""
    search: SearchResult | None = None
    pending: bool = False

    @property
    def failed(self) -> bool:
        """Whether there is no winner in place, though all that it is chosen among is known."""
        return self.folder is None and not self.pending


@dataclass(frozen=True)
class SweepResult:
    """A whole sweep. ``axes``: by name, the labels of their values, in the order of the recipe. ``interrupted``: the
    run was ended before it was through. ``recipe``: the file or files, as they were named.
    """

    name: str
    recipe: str
    began_at: str
    elapsed_seconds: float
    axes: Mapping[str, tuple[str, ...]]
    cells: tuple[CellResult, ...]
    graph: SharedGraph = field(default_factory=SharedGraph)
    goals: tuple[GoalResult, ...] = ()
    jobs: int = 1
    host: Mapping[str, str] = field(default_factory=dict)
    made_by: str = ""
    interrupted: bool = False
    format: int = FORMAT
