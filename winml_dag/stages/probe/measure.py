"""Measures an execution provider, sample by sample, into a file of rows.

Providers crash and hang, so samples are tried in separate processes, a few hundred in each. A sample that crashes its
process is a row like any other. Samples in the file are not measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from winml_dag.canonical import canonical_json
from winml_dag.ep.provider import complete_options
from winml_dag.ep.registry import Target, find_ep
from winml_dag.ep.support.case import Case, Outcome, case_json, case_of_json
from winml_dag.ep.support.table import read_table
from winml_dag.errors import StageError

if TYPE_CHECKING:
    from winml_dag.stages.probe.samples.every import Sample

_IN_ONE_PROCESS = 400
_HANGS_AFTER_SECONDS = 240
_MOST_IDLE = 3
KINDS = ("all", "core", "cells", "exports")


@dataclass(frozen=True)
class Measurements:
    """What is measured: samples *first* to *last* of *seed* on *target*.

    *held_back* uses other sizes, and omits ONNX's tests as they are. With the tables *doubted_by*, many samples are
    drawn for each number, and the first is measured that one table does not know or on which they disagree. *of*
    selects what is drawn: ``all`` operators; the ``core`` of most models; ``cells``, every operator with every type in
    turn; or ``exports``, operators as often as exported models have them.
    """

    target: Target
    seed: int
    first: int
    last: int
    held_back: bool = False
    doubted_by: tuple[Path, ...] = ()
    of: str = "all"


def measure(wanted: Measurements, rows: Path, on_progress: Callable[[int, int], None] = lambda *_: None) -> None:
    """Append missing samples to the file *rows*. *on_progress* gets the number done and the total."""
    _drop_partial_line(rows)
    done = _next_number(rows, wanted.first)
    idle = 0
    while done <= wanted.last:
        last = min(done + _IN_ONE_PROCESS - 1, wanted.last)
        command = [
            sys.executable, "-m", __spec__.name if __name__ == "__main__" else __name__,
            "--ep", wanted.target.ep.alias, "--device", wanted.target.device, "--seed", str(wanted.seed),
            "--first", str(done), "--last", str(last), "--rows", str(rows),
            *(["--held-back"] if wanted.held_back else []),
            "--of", wanted.of,
            *(f"--doubted-by={path}" for path in wanted.doubted_by),
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            _wait(child, rows)
        _drop_partial_line(rows)
        after = _next_number(rows, wanted.first)
        if after <= last and not _has_begun(rows, after):
            idle += 1  # it died or was too slow before it tried anything
            if idle == _MOST_IDLE:
                raise StageError(f"The process that tries {wanted.target.ep.name} ends before it begins.")
        elif after <= last:
            with rows.open("a", encoding="utf-8", newline="\n") as file:
                _write(file, {"number": after, "outcome": [False, False, True], "words": "it ended the process"})
            after += 1
        done = after
        on_progress(done - wanted.first, wanted.last - wanted.first + 1)


def _has_begun(rows: Path, number: int) -> bool:
    return any(row["number"] == number and "case" in row for row in map(json.loads, _complete_lines(rows)))


def _wait(child: subprocess.Popen[bytes], rows: Path) -> None:
    """Wait until *child* exits, or kill it if it writes nothing for too long."""
    size = -1
    while True:
        try:
            child.wait(_HANGS_AFTER_SECONDS)
            return
        except subprocess.TimeoutExpired:
            now = rows.stat().st_size if rows.exists() else 0
            if now == size:
                child.kill()
                return
            size = now


def read_rows(rows: Path) -> Iterator[tuple[Case, Outcome]]:
    """The cases in a file with their outcomes; each case once."""
    cases: dict[int, Case] = {}
    seen: set[Case] = set()
    for line in _complete_lines(rows):
        row = json.loads(line)
        if "case" in row:
            cases[row["number"]] = case_of_json(row["case"])
        case = cases.get(row["number"])
        if "outcome" in row and case is not None and case not in seen:
            seen.add(case)
            compiled, ran, agrees = row["outcome"]
            yield case, Outcome(compiled, ran, agrees, row.get("words", ""))


def _complete_lines(rows: Path) -> list[str]:
    text = rows.read_text(encoding="utf-8") if rows.exists() else ""
    return text.split("\n")[:-1]


def _drop_partial_line(rows: Path) -> None:
    """Drop the partial line of a process that was killed while writing."""
    if rows.exists():
        content = rows.read_bytes()
        with rows.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)


def _next_number(rows: Path, first: int) -> int:
    numbers = (row["number"] for row in map(json.loads, _complete_lines(rows)) if "outcome" in row or "skipped" in row)
    return max(numbers, default=first - 1) + 1


def _write(file: IO[str], row: dict[str, object]) -> None:
    file.write(canonical_json(row) + "\n")  # type: ignore[arg-type]
    file.flush()


def _drawn(wanted: Measurements, number: int) -> Sample | None:
    from winml_dag.stages.probe.samples.draft import OTHER_SIZES, SIZES
    from winml_dag.stages.probe.samples.every import cell_sample, core_sample, exports_sample, sample

    sizes = OTHER_SIZES if wanted.held_back else SIZES
    if wanted.of == "cells":
        return cell_sample(number, wanted.seed, sizes)
    if wanted.of == "all":
        return sample(number, wanted.seed, sizes, tests=not wanted.held_back)
    draw = core_sample if wanted.of == "core" else exports_sample
    return draw(wanted.seed * 1_000_003 + number, sizes)


def _measure_here(wanted: Measurements, rows: Path) -> None:
    """The part that may crash, which runs in its own process."""
    from winml_dag.stages.probe.attempt import attempt, confirmed
    from winml_dag.stages.probe.onenode import case_of_model
    from winml_dag.stages.probe.samples.every import doubted

    options = complete_options(wanted.target, {})
    tables = [read_table(path) for path in wanted.doubted_by]
    with rows.open("a", encoding="utf-8", newline="\n") as file, tempfile.TemporaryDirectory() as folder:
        for number in range(wanted.first, wanted.last + 1):
            found = doubted(number, wanted.seed, tables, Path(folder)) if tables else _drawn(wanted, number)
            if found is None:
                _write(file, {"number": number, "skipped": True})
                continue
            model = found.node.model().SerializeToString()
            case = case_of_model(model, Path(folder))
            _write(file, {"number": number, "case": case_json(case)})
            expected = found.expected if found.node.quantized is None and wanted.target.ep.alias == "cpu" else None
            outcome = attempt(model, found.node.feeds(), wanted.target, options, expected)
            if expected is None:
                outcome = confirmed(case, outcome, wanted.target, options)
            _write(
                file,
                {
                    "number": number,
                    "outcome": [outcome.compiled, outcome.ran, outcome.agrees],
                    **({"words": outcome.words} if outcome.words else {}),
                },
            )


def _main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--ep", "--device"):
        parser.add_argument(name, required=True)
    for name in ("--seed", "--first", "--last"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--held-back", action="store_true")
    parser.add_argument("--of", choices=KINDS, required=True)
    parser.add_argument("--doubted-by", type=Path, action="append", default=[])
    given = parser.parse_args()
    target = Target(find_ep(given.ep), given.device)
    wanted = Measurements(
        target, given.seed, given.first, given.last, given.held_back, tuple(given.doubted_by), given.of
    )
    _measure_here(wanted, given.rows)


if __name__ == "__main__":
    _main()
