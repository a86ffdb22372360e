"""The corpus, built and judged: ``python tests/corpus/runner.py [--quick] [--only PATTERN] [--against FILE] ...``.

Every model is built by winml_dag in every cell, and beside it by plain onnxruntime with the same samples. Both results
run on samples that neither has seen, and the exit code is 1 when a promise is broken: what plain onnxruntime can build
we can, at least as well, and what comes out is right or ends in a sentence.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("", "benchmarks")]

import plain
import real
from cells import CELLS, Cell, quick_cells
from hostile import cases
from netgraphs import Case
from ours import Builder, Built, Subject
from section import section, totals
from verdicts import Judged, broken, differences, judged

_TOGETHER = 12
_MEASURE_SECONDS = 600.0
_HERE = Path(__file__).resolve().parent


class Measurer:
    """The process of :mod:`measuring`, in *folder*, where onnxruntime's tools leave files. It is restarted if it
    crashes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **told: Any) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(_HERE / "measuring.py")],
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        watch = threading.Timer(_MEASURE_SECONDS, process.kill)
        watch.start()
        try:
            process.stdin.write(json.dumps(told) + "\n")
            process.stdin.flush()
            found: dict[str, Any] = json.loads(process.stdout.readline())
            return found
        except (ValueError, OSError):
            self.close()
            return {"error": f"the process ended with code {process.returncode}"}
        finally:
            watch.cancel()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class Corpus:
    """Subjects and their cached results; *folder* keeps models, results and caches between runs.

    *few*: plain onnxruntime's results are computed only where winml_dag has none, and in fewer ways.
    """

    def __init__(self, folder: Path, *, few: bool = False) -> None:
        self._folder = folder.resolve()
        self._few = few
        self._builders: queue.SimpleQueue[Builder] = queue.SimpleQueue()
        self._measurers: queue.SimpleQueue[Measurer] = queue.SimpleQueue()

    def subject(self, case: Case | real.Real, cells: Sequence[Cell]) -> Subject:
        folder = self._folder / "models" / case.name
        graph = case.write(folder)
        return Subject(case.name, case.family, folder, graph.export, graph.may_refuse, graph.calibration, tuple(cells))

    def judge(self, subjects: Sequence[Subject]) -> list[Judged]:
        """Build *subjects* and judge every cell."""
        builder = self._builders.get_nowait() if not self._builders.empty() else Builder(self._folder)
        measurer = self._measurers.get_nowait() if not self._measurers.empty() else Measurer(self._folder)
        try:
            built = builder.build(subjects)
            return [found for subject in subjects for found in self._judged(subject, built, measurer)]
        finally:
            self._builders.put(builder)
            self._measurers.put(measurer)

    def _judged(self, subject: Subject, built: Mapping[tuple[str, str], Built], measurer: Measurer) -> Iterator[Judged]:
        missing = Built(None, "It is not among the cells of the sweep.", 0.0)
        # Per target: the CPU has more samples.
        runs = {
            ep: measurer.ask(do="reference", folder=str(subject.folder), ep=ep).get("error", "")
            for ep in {cell.ep for cell in subject.cells}
        }
        for cell in subject.cells:
            ours = built.get((subject.name, cell.name), missing)
            figures = {}
            if ours.model is not None and not runs[cell.ep]:
                figures = measurer.ask(do="ours", folder=str(subject.folder), cell=cell.name, model=str(ours.model))
            # In a quick run, others matter only where winml_dag rejects the model.
            is_asked = not runs[cell.ep] and not (self._few and ours.model is not None)
            others = self._plain(subject, cell, measurer) if is_asked else {}
            yield judged(subject, cell, ours, figures, others, runs[cell.ep])

    def _plain(self, subject: Subject, cell: Cell, measurer: Measurer) -> dict[str, dict[str, Any]]:
        """Return the metrics of plain onnxruntime's result by way, or why there is none; cached by what produced it."""
        digest = hashlib.sha256("".join((_HERE / name).read_text() for name in _MEASURING).encode())
        for file in sorted(subject.folder.iterdir()):
            digest.update(file.read_bytes())
        found = {}
        for way in plain.ways(cell, few=self._few):
            key = hashlib.sha256(digest.digest() + f"{cell.name} {way} {_versions()}".encode()).hexdigest()
            kept = self._folder / "plain" / f"{key}.json"
            if not kept.exists():
                asked = {"folder": str(subject.folder), "cell": cell.name, "way": way}
                told = measurer.ask(do="plain", calibration=subject.calibration, **asked)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(told), encoding="utf-8")
            found[way] = json.loads(kept.read_text(encoding="utf-8"))
        return found

    def close(self) -> None:
        for those in (self._builders, self._measurers):
            while not those.empty():
                those.get_nowait().close()


_MEASURING = ("plain.py", "judge.py", "measuring.py", "cells.py")


def _versions() -> str:
    from importlib.metadata import version

    return " ".join(version(name) for name in ("onnx", "onnxruntime", "onnxruntime-qnn"))


def chosen(arguments: argparse.Namespace) -> list[tuple[Case | real.Real, Sequence[Cell]]]:
    """Return the cases and their cells that *arguments* select."""
    found: list[tuple[Case | real.Real, Sequence[Cell]]] = [
        (case, quick_cells(number) if arguments.quick else CELLS) for number, case in enumerate(cases())
    ]
    if not arguments.quick and arguments.wheels is not None:
        found += real.cases(arguments.wheels)
    wanted = [
        (case, [cell for cell in cells if fnmatch.fnmatch(cell.name, arguments.cells)])
        for case, cells in found
        if fnmatch.fnmatch(case.name, arguments.only)
    ]
    return [(case, cells) for case, cells in wanted if cells]


def run(
    corpus: Corpus,
    asked: Sequence[tuple[Case | real.Real, Sequence[Cell]]],
    jobs: int,
    tell: Callable[[Sequence[Judged]], object] = lambda _: None,
) -> list[Judged]:
    """Judge all cells of *asked*; *tell* is called with the results whenever there are more."""
    # Large models separately, small ones together; large ones first, so that none is left over at the end.
    large = [[item] for item in asked if item[0].family.startswith("real")]
    small = [item for item in asked if not item[0].family.startswith("real")]
    parts = [*large, *(small[at : at + _TOGETHER] for at in range(0, len(small), _TOGETHER))]
    found: dict[int, list[Judged]] = {}
    began = time.monotonic()

    def one(at: int) -> None:
        subjects = []
        for case, cells in parts[at]:
            try:
                subjects.append(corpus.subject(case, cells))
            except real.NoSuchVersion as error:
                print(f"left out: {case.name}: {error}", file=sys.stderr)
        found[at] = corpus.judge(subjects)
        seconds = time.monotonic() - began
        print(f"{len(found)}/{len(parts)} {parts[at][0][0].name} {seconds:.0f} s", file=sys.stderr, flush=True)
        tell([each for at in sorted(found) for each in found[at]])

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, range(len(parts))))
    return [each for at in sorted(found) for each in found[at]]


def _set_native_words_aside(log: Path) -> None:
    """Redirect what onnxruntime and QNN write to stderr of this process and its children to *log*."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    with log.open("w") as file:
        os.dup2(file.fileno(), 2)


def _keep(path: Path | None, found: Sequence[Judged]) -> None:
    if path is not None:
        path.write_text(json.dumps([one.to_json() for one in found], indent=1), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="models whose name fits this pattern")
    parser.add_argument("--cells", default="*", help="cells whose name fits this pattern, such as 'qnn/*'")
    parser.add_argument("--quick", action="store_true", help="hostile graphs in a few cells")
    parser.add_argument("--wheels", type=Path, help="the folder that packages with models are installed in")
    parser.add_argument("--folder", type=Path, default=Path("out/corpus"), help="what is kept between runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="where all results go")
    parser.add_argument("--against", type=Path, help="results of an earlier run: tell what became better or worse")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    _set_native_words_aside(arguments.folder / "native.log")
    corpus = Corpus(arguments.folder.resolve(), few=arguments.quick)
    began = time.monotonic()
    try:
        found = run(corpus, chosen(arguments), arguments.jobs, lambda those: _keep(arguments.json, those))
    finally:
        corpus.close()
    if arguments.against:
        before = [Judged(**one) for one in json.loads(arguments.against.read_text(encoding="utf-8"))]
        print("\n".join(differences(before, found)))
    print(totals(found))
    print(f"{len(found)} cells in {time.monotonic() - began:.0f} s")
    faults = list(broken(found))
    wrong_cases = None
    if not arguments.quick and arguments.only == "*" and (_HERE / "node_cases.py").exists():
        import node_cases

        wrong_cases = node_cases.main([])
        if wrong_cases:
            faults.append("onnx's own cases of operators come out of optimize differently")
    print("\n".join(faults))
    if arguments.write:
        from page import publish

        publish({"corpus": section(found, wrong_cases)}, writes=True)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
