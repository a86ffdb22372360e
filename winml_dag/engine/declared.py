"""What a stage of the user's left behind, held against what it declares; complaints teach how it should be."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from winml_dag.engine.execute import Job, Outcome, log_tail
from winml_dag.engine.fileaccess import in_short, undeclared
from winml_dag.engine.prepare import Prepared
from winml_dag.engine.sandbox import not_declared
from winml_dag.errors import StageError
from winml_dag.store.files import files_below, name_below


def check_done(prepared: Prepared) -> None:
    """Raise StageError when what a stage left behind is not what its node declares."""
    job = prepared.job
    if job.at is None:
        _refuse_several(job)
        return
    _check_outputs(job, prepared.began, job.at)
    if job.is_traced:
        _refuse_undeclared(prepared, job.at)
    if prepared.own is not None and (extra := _undeclared(job.at, prepared.own)):
        raise StageError(
            f"{job.node.id} wrote {', '.join(extra)} in its folder, and does not declare it.",
            advice="Declare it as an output and write to its placeholder, or write to the temporary folder ($TMPDIR).",
        )


def explain(prepared: Prepared, outcome: Outcome) -> Outcome:
    """A failure with what may have caused it: files of the project that the log names and the stage cannot see."""
    job = prepared.job
    if prepared.own is None or job.at is None or job.node.folder is None or not outcome.error:
        return outcome
    named = not_declared(log_tail(outcome.log), job.node.folder, job.at, prepared.own)
    if not named:
        return outcome
    is_are = "is in the project but not" if len(named) == 1 else "are in the project but not"
    return replace(
        outcome,
        error=f"{outcome.error} {', '.join(named)} {is_are} among its inputs.",
        advice="Declare what it reads under inputs.",
    )


def _check_outputs(job: Job, began: float, project: Path) -> None:
    """Raise StageError when a declared output was not written, or something else was beside it.

    *began*: when it did, of ``time.time``; *project*: the folder in which it ran.
    """
    for slot, path in job.node.paths.items():
        try:
            mode = os.lstat(job.output_path(slot)).st_mode
        except FileNotFoundError:
            raise _not_written(job, slot, began, project) from None
        if path.endswith("/"):
            if not stat.S_ISDIR(mode):
                raise StageError(f"{job.node.id} made {{outputs.{slot}}} a file; {path} is declared as a folder.")
            if next(iter(files_below(Path(job.output_path(slot)))), None) is None:
                raise _not_written(job, slot, began, project)
        elif stat.S_ISDIR(mode):
            raise StageError(
                f"{job.node.id} made {{outputs.{slot}}} a folder; {path} is declared as a file.",
                advice=f"Declare {path}/ if it should be a folder.",
            )
        if extra := next(_beside(job, slot, path), None):
            raise StageError(
                f"{job.node.id} wrote {extra} beside {{outputs.{slot}}}, and does not declare it.",
                advice="Declare the folder that both lie in, with / at its end, as the output.",
            )


def _refuse_undeclared(prepared: Prepared, folder: Path) -> None:
    job = prepared.job
    declared = {os.path.realpath(watched.path) for watched in prepared.watched}
    # A function runs in a worker: that is Python and this package.
    own = [job.folder, Path(sys.prefix), Path(sys.base_prefix), Path(__file__).resolve().parents[1]]
    if found := undeclared(job.trace, declared, [path.resolve() for path in own], folder, prepared.began):
        raise StageError(
            f"{job.node.id} read {in_short(found, folder.resolve())}, and does not declare that.",
            advice="Declare it under inputs, so that an edit of it is noticed.",
        )


def _refuse_several(job: Job) -> None:
    """Raise StageError when a stage that names its files itself has put out several where one is declared."""
    for slot, path in job.node.paths.items():
        names = [entry.name for entry in files_below(job.output_folder(slot))]
        if len(names) > 1 and not path.endswith("/"):
            raise StageError(
                f"{path} is declared as a file, and {job.node.stage.name} puts out several: {', '.join(names)}.",
                advice=f"Declare a folder for them, such as {path.partition('.')[0]}/.",
            )


def _undeclared(project: Path, own: frozenset[str]) -> list[str]:
    """The files in *project* that are none of its *own*: what a stage has written there without saying so."""
    names = (name_below(project, entry.path) for entry in files_below(project))
    return [name for name in names if name not in own]


def _beside(job: Job, slot: str, path: str) -> Iterator[str]:
    """Files and links of the slot's folder that are not the output, or not in it, by their names in the project."""
    root = job.output_folder(slot)
    for entry in files_below(root):
        name = name_below(root, entry.path)
        if name != path and not (path.endswith("/") and name.startswith(path)):
            yield name


def _not_written(job: Job, slot: str, began: float, project: Path) -> StageError:
    path = job.node.paths[slot]
    name, placeholder = job.node.id, f"{{outputs.{slot}}}"
    message = f"{name} wrote no {placeholder}."
    if job.node.command is None:
        advice = f"Write to outputs[{slot!r}], the path that the function is given, not to {path}."
    else:
        advice = f"Let the command write to {placeholder}, not to {path}."
    if _changed_since(project / path, began):
        message = f"{name} wrote {path} itself, and no {placeholder}."
        advice += " The build puts it there when the stage has ended well."
    return StageError(message, advice=advice)


def _changed_since(path: Path, began: float) -> bool:
    """Whether anything at *path* was written after *began*; clocks of file systems are up to 2 s behind (FAT)."""
    files = [path, *(Path(entry.path) for entry in files_below(path))]
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and began - 0.05 <= status.st_mtime <= time.time():
            return True
    return False
