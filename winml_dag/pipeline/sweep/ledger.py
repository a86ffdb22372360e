"""The state of all cells while a sweep runs, and its ``sweep.json``, which stays intact if the run is killed.

Several runs may work on one sweep, with different or the same cells. So each write starts from the file's content:
results of cells that this run was not asked for, or has not reached, stay.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine.eta import CriticalPath
from winml_dag.errors import InputError, StoreError, UsageError
from winml_dag.file_reading import read_bytes
from winml_dag.pipeline.jsonfile import has_mark
from winml_dag.pipeline.publish import refuse_file
from winml_dag.pipeline.sweep.cells import keys_of, shared_graph, with_sharing
from winml_dag.pipeline.sweep.result import (
    SWEEP,
    CellResult,
    CellStatus,
    GoalResult,
    SweepResult,
    read_sweep,
    write_sweep,
)
from winml_dag.recipe.reading import ModuleItem, module_items
from winml_dag.store.commit import folder_key
from winml_dag.store.files import in_words, write_whole

if TYPE_CHECKING:
    from winml_dag.pipeline.sweep.result import CellResult
    from winml_dag.recipe.sweep import Cell, Sweep
    from winml_dag.store.store import Store


_NOT_REQUESTED = "it was not asked for yet: runs were for other cells"
_ENDED = "the run ended before its turn came"
# The interval between writes while cells finish: lose as little as possible, unless writing takes too long.
_SECONDS_BETWEEN = 1.0
_TIMES_ITS_COST = 20


class Ledger:
    """The cells of one run of *sweep* into *folder*; *requested* are those of this run, *head* has all other fields.

    ``results``: those of this run so far, by the name of a cell or trial.

    Raises:
        UsageError: when a file that is not owned is in the way.
        StoreError: when a file is in the folder's path.
    """

    def __init__(self, sweep: Sweep, folder: Path, requested: Collection[str], store: Store, head: SweepResult) -> None:
        self._cells: Mapping[str, Cell] = {cell.name: cell for cell in sweep.cells}
        self._has_goals = bool(sweep.goals)
        self._folder = folder
        self._requested = frozenset(requested)
        self._store = store
        self._head = head
        self._began = time.monotonic()
        refuse_file(folder)
        try:
            self.before = read_sweep(folder)
        except InputError as error:
            # Raise it as a usage error: for a build, the wrong folder was chosen.
            raise UsageError(error.message, advice=error.advice) from None
        self._last = _by_name(self.before)
        self.results: dict[str, CellResult] = {}
        # None until this run determines them.
        self._trials: dict[str, CellResult] | None = None
        self._goals: tuple[GoalResult, ...] = ()
        self._longest = CriticalPath((), 0.0)
        self._next_write = self._began + _SECONDS_BETWEEN
        self._has_written = False

    def last(self, cell: Cell) -> CellResult | None:
        """Return the file's result of *cell* from when the run began, if the cell's folder is the same."""
        return self._last.get((cell.name, cell.folder))

    def gone(self) -> Iterator[str]:
        """Yield existing folders of cells that the sweep no longer has."""
        now = {cell.folder for cell in self._cells.values()}
        for cell in () if self.before is None else self.before.cells:
            is_trial = self._has_goals and cell.trial_of in self._cells
            if cell.folder not in now and not is_trial and (self._folder / cell.folder).is_dir():
                yield cell.folder

    def take(self, result: CellResult) -> None:
        """Record the result of a cell or trial; occasionally write the file, if the result is new."""
        self.results[result.name] = result
        last = self._last.get((result.name, result.folder))
        if time.monotonic() >= self._next_write and (last is None or _essence(last) != _essence(result)):
            # An error here does not end a run of hours; the final write reports it.
            with suppress(StoreError, InputError):
                self.write(interrupted=True)

    def lasted(self, chain: CriticalPath) -> None:
        """Record the critical path of a graph of this run."""
        if chain.seconds > self._longest.seconds:
            self._longest = chain

    def conclude(self, goals: tuple[GoalResult, ...], trials: tuple[CellResult, ...]) -> None:
        """Record the results of the goals, and the cells that searches added."""
        self._goals = goals
        self._trials = {trial.name: trial for trial in trials}

    def write(self, *, interrupted: bool = False) -> SweepResult:
        """Write the current state. *interrupted*: the run has not finished.

        Raises:
            StoreError, InputError: when that fails, or another file is in its path.
        """
        began = time.monotonic()
        with self._store.claim(folder_key(self._folder / SWEEP)):
            result = self.result(read_sweep(self._folder), interrupted=interrupted)
            write_sweep(self._folder, result)
        self._has_written = True
        ended = time.monotonic()
        self._next_write = ended + max(_SECONDS_BETWEEN, _TIMES_ITS_COST * (ended - began))
        return result

    def result(self, written: SweepResult | None, *, interrupted: bool = False) -> SweepResult:
        """Return the current state: of this run, and otherwise what is *written* in the file."""
        now = _by_name(written)
        cells = [self._of(cell, now) for cell in self._cells.values()]
        # Trials and goals are from this run, else as written, unless the sweep now has no goals.
        trials, goals = self._trials, self._goals
        if trials is None:
            trials = {}
            if written is not None and self._has_goals:
                kept = (each for each in written.cells if each.trial_of in self._cells and each.name not in self._cells)
                trials, goals = {each.name: each for each in kept}, written.goals
        every = with_sharing([*cells, *trials.values()])
        # Results of other cells in the file are from an earlier run.
        own = [each for each in every if each.name in self.results or each.name in (self._trials or ())]
        return replace(
            self._head,
            elapsed_seconds=round(time.monotonic() - self._began, 3),
            cells=every,
            graph=shared_graph(own, self._longest),
            goals=goals,
            interrupted=interrupted,
        )

    def is_as_before(self) -> bool:
        """Whether the file already has this state: a run with nothing to do does not rewrite it."""
        before = self.before
        # An intermediate write marks the run as interrupted.
        if before is None or before.interrupted or self._has_written or not self._requested <= self.results.keys():
            return False
        # The file cannot have measurements of this run, even if their times, in whole seconds, are equal.
        measured = (each for one in self.results.values() for each in (one.perf, one.eval))
        if any(each is not None and each.measured == "live" for each in measured):
            return False
        was, now = (
            (each.axes, each.name, each.recipe, each.goals, [_essence(cell) for cell in each.cells])
            for each in (before, self.result(before))
        )
        return was == now

    def _of(self, cell: Cell, now: Mapping[tuple[str, str], CellResult]) -> CellResult:
        if cell.name in self.results:
            return self.results[cell.name]
        if cell.left_out:
            return CellResult(cell.name, cell.values, cell.folder, CellStatus.SKIPPED, why=cell.left_out)
        # The folder still has that build, even if the recipe has changed.
        if (written := now.get((cell.name, cell.folder))) is not None:
            return replace(written, values=cell.values)
        why = _ENDED if cell.name in self._requested else _NOT_REQUESTED
        return CellResult(cell.name, cell.values, cell.folder, CellStatus.NOT_REACHED, why=why)


def new_head(sweep: Sweep, recipe: str, jobs: int) -> SweepResult:
    """Return the fields of a run that are determined before it starts."""
    from winml_dag import TOOL_ID
    from winml_dag.pipeline.host import this_host

    return SweepResult(
        name=sweep.name,
        recipe=recipe,
        began_at=datetime.now(UTC).isoformat(timespec="seconds"),
        elapsed_seconds=0.0,
        axes=sweep.axes,
        cells=(),
        jobs=jobs,
        host=this_host().identity(device="cpu"),
        made_by=TOOL_ID,
    )


def _by_name(sweep: SweepResult | None) -> dict[tuple[str, str], CellResult]:
    return {} if sweep is None else {(cell.name, cell.folder): cell for cell in sweep.cells}


def _essence(cell: CellResult) -> tuple[object, ...]:
    """Return what is equal for a cell in two runs of which the second had nothing to do."""
    status = CellStatus.UP_TO_DATE if cell.is_there else cell.status
    measured = [None if each is None else (bool(each.error), each.made_at) for each in (cell.perf, cell.eval)]
    return cell.name, cell.folder, dict(cell.values), status, cell.why, keys_of(cell), measured, cell.trial_of


SUMMARY = "module_summary.json"


def modules_of(sweep: Sweep, folder: Path) -> tuple[ModuleItem, ...]:
    """Return the modules that the cells of *sweep* build; none if it is not a list of modules.

    Raises:
        UsageError: when a file that is not owned is in the summary's path in *folder*.
    """
    items = module_items(sweep.path) if not sweep.axes and len(sweep.files) == 1 else None
    if items and os.path.lexists(folder / SUMMARY) and not has_mark(folder / SUMMARY, "instances"):
        raise UsageError(
            f"{folder / SUMMARY} exists and is not a summary of modules, so it is not overwritten.",
            advice="Move it, or choose another folder with -o.",
        )
    return items or ()


def write_summary(folder: Path, items: Sequence[ModuleItem], cells: Sequence[CellResult], model: str | None) -> None:
    """Write the results of *cells*, each one of *items* of *model*, to *folder*; an equal summary is not rewritten."""
    from winml_dag.pipeline.manifest import read_manifest

    instances: list[JsonObject] = []
    model_ids: list[str] = []
    for item, cell in zip(items, cells, strict=True):
        manifest = read_manifest(folder / cell.folder) if cell.is_there else None
        elapsed = None if manifest is None else manifest.build.elapsed_seconds
        model_ids += [manifest.build.model_id] if manifest is not None and manifest.build.model_id else []
        instances.append(
            {
                "module_path": item.module_path,
                "class_name": item.class_name or "module",
                "output_dir": str(folder / cell.folder),
                "build_elapsed_s": round(cell.elapsed_seconds if elapsed is None else elapsed, 2),
                "error": None if cell.is_there else cell.why,
            }
        )
    value: JsonObject = {
        "model_id": next(iter(model_ids), model),
        "module_class": instances[0]["class_name"],
        "instance_count": len(instances),
        "instances": instances,
    }
    data = (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
    path = folder / SUMMARY
    if not path.is_file() or read_bytes(path) != data:
        with in_words(f"Cannot write {path}"):
            write_whole(path, data)
