"""The result of a sweep: the content of ``sweep.json``, which the next run, the report and other programs read.

It holds what no manifest has: cells that failed, were rejected or excluded, shared stages, and measurements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from winml_dag.errors import InputError, StoreError
from winml_dag.file_reading import MOST_BYTES_OF_MANY, parse_json, read_bytes

if TYPE_CHECKING:
    from pydantic import TypeAdapter


SWEEP = "sweep.json"
FORMAT = 2


class CellStatus(StrEnum):
    """The status of a cell.

    ``refused``: it cannot be built as written. ``skipped``: the recipe excludes it. ``not reached``: the run ended
    before, or it is in another shard.
    """

    BUILT = "built"
    UP_TO_DATE = "up to date"
    FAILED = "failed"
    REFUSED = "refused"
    SKIPPED = "skipped"
    NOT_REACHED = "not reached"


@dataclass(frozen=True)
class StageRun:
    """One stage of a cell.

    Attributes:
        status: ``ran``, ``reused``, ``skipped`` or ``failed``.
        elapsed_seconds: time spent in this run; 0 when it was not run for this cell.
        made_in_seconds: the time that making the result took, whenever that was; for a reuse, the time saved. None
            without a result.
        started_seconds: since the start of the sweep; None when it did not run in it.
        cells: how many cells of the sweep share this result.
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
    """Why a cell has no result. ``stage`` is None if none had started; ``log`` is the path of the full log."""

    stage: str | None
    error: str
    advice: str = ""
    log: str | None = None
    tail: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return f"failed{f' in {self.stage}' if self.stage else ''}: {self.error}"


@dataclass(frozen=True)
class Measured:
    """The result of perf or eval for a cell.

    ``report`` is what the command prints with ``--format json``; ``measured`` is ``live`` or ``cached``. ``error``: why
    there is no report.
    """

    measured: str = ""
    made_at: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class CellResult:
    """The result of one cell.

    Attributes:
        name: unique in the sweep; by default the labels of its values, joined with ``/``.
        values: the label of its value, by axis.
        folder: its output folder, relative to that of ``sweep.json``, with ``/``; absolute if it is outside.
        why: the reason in a sentence, for a status that needs one.
        reached: the id of the last stage that has a result; None without one.
        saved_seconds: the time that the reused results took to make.
        trial_of: the cell that this one is a trial of, in a search for mixed precision.
        command: the command that builds this cell alone.
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
    """Totals of the merged graph of all cells.

    Attributes:
        stages: the number of its nodes; ``stages_apart``: the sum over the cells.
        seconds_ran, seconds_saved: total work, regardless of parallelism.
        critical_path: the nodes that bound the duration from below; ``critical_path_seconds``: their sum.
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
    """A cell in view of a goal.

    ``why``: what rules it out; empty if it meets all bounds. ``values``: the minimized measure and all bounded ones, by
    name; None if not measured.
    """

    cell: str
    values: Mapping[str, float | None]
    why: str = ""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search for mixed precision that started from ``cell``.

    Attributes:
        kept: the precision of the worst nodes: ``16 bits`` or ``float``.
        ranked: how many nodes can be kept, worst first.
        tried: whether the bounds on quality hold, by the number of worst nodes kept; 0 is the cell itself.
        fewest: the smallest of these numbers that holds, while the tried number one below does not; None without one.
        nodes: the names of these nodes.
        trial: the cell that keeps them.
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
    """The winner among cells that differ only in what the goal chooses.

    ``group``: the values that they share; ``winner`` is None if no cell meets the bounds; ``folder``: where the winner
    was published. ``pending``: some of the cells have no result yet.
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
        """Whether no winner was published although all cells have results."""
        return self.folder is None and not self.pending


@dataclass(frozen=True)
class SweepResult:
    """A whole sweep.

    ``axes``: the labels of their values by name, in the order of the recipe. ``interrupted``: the run was ended early.
    ``recipe``: the file or files, as named.
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


T = TypeVar("T")


class DecodeError(ValueError):
    """A value of the wrong form; the text contains the location and the expected type."""


def encode(value: object) -> Any:
    """Return *value* as JSON values for :func:`decode`."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value, mode="json")


def decode(kind: type[T], value: object) -> T:
    """Return the dataclass *kind* with the fields in *value*.

    Raises:
        DecodeError: for a field that is missing or of another type.
    """
    from pydantic import ValidationError

    wanted: Any = kind
    try:
        found: T = _adapter(wanted).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        what = first["msg"].removeprefix("Input ").replace("tuple", "list")
        raise DecodeError(f"{where} {'is missing' if first['type'] == 'missing' else what}") from None
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    # Imported here: the module is also for those who only name a status, and pydantic takes 0.1 s.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def read_sweep(folder: Path) -> SweepResult | None:
    """Return the content of the ``sweep.json`` in *folder*; None when there is none.

    Raises:
        InputError: for a file that is damaged, of another format, or from another program.
    """
    path = folder / SWEEP
    try:
        return sweep_of(read_bytes(path, MOST_BYTES_OF_MANY))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DecodeError as error:
        raise InputError(
            f"{path} is not what a sweep has left there: {error}.",
            advice="Move it away, or choose another folder with -o.",
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None


def sweep_of(data: bytes) -> SweepResult:
    """Return the sweep in the text *data*. Raises DecodeError."""
    return decode_text(SweepResult, data, FORMAT)


def decode_text(kind: type[T], data: bytes, known: int) -> T:
    """Return the dataclass *kind* in the JSON *data*, whose ``format`` is *known*. Raises DecodeError."""
    try:
        value: Any = parse_json(data, allow_nan=False)
    except ValueError as error:
        raise DecodeError(f"it is not JSON ({error})") from None
    found = value.get("format", known) if isinstance(value, dict) else known
    if found != known:
        raise DecodeError(f"its format is {found!r}, and this version knows {known} only")
    return decode(kind, value)


def text_of(sweep: SweepResult) -> bytes:
    """Return the content of ``sweep.json``."""
    # A lone surrogate is a byte of a name that is not valid text; JSON can represent it, UTF-8 cannot.
    return lined_text(encode(sweep), "cells").encode("utf-8", "backslashreplace")


def lined_text(value: Mapping[str, Any], *lists: str) -> str:
    """Return the object *value* as JSON, with *lists* last and a line for each of their items.

    So files can be compared line by line.
    """

    def dumped(each: object) -> str:
        return json.dumps(each, ensure_ascii=False, allow_nan=False)

    members = [f"{json.dumps(name)}: {dumped(each)}" for name, each in value.items() if name not in lists]
    for name in value.keys() & {*lists}:
        items = ",\n".join(map(dumped, value[name]))
        members.append(f"{json.dumps(name)}: [\n{items}\n]" if items else f"{json.dumps(name)}: []")
    return "{\n" + ",\n".join(members) + "\n}\n"


def write_sweep(folder: Path, sweep: SweepResult) -> None:
    """Write *sweep* into *folder* atomically. Raises StoreError when that fails."""
    from winml_dag.store.files import write_whole

    try:
        write_whole(folder / SWEEP, text_of(sweep))
    except OSError as error:
        raise StoreError(
            f"Cannot write {folder / SWEEP}: {error.strerror or error}.",
            advice="Make the folder writable, free some space, or choose another one with -o.",
        ) from None
