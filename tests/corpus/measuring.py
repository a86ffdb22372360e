"""A process that makes and judges models, for :mod:`runner`: a line of JSON per request, and one as response.

It is a separate process because plain onnxruntime, also with QNN, occasionally crashes the process that calls it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import judge
import onnxruntime
import plain
from cells import Cell, cell_of
from netgraphs import Feed, read_feeds


@lru_cache(maxsize=4)
def _feeds(folder: str, file: str) -> list[Feed]:
    path = Path(folder) / file
    return read_feeds(path) if path.exists() else []


def _held_out(folder: str, cell: Cell) -> list[Feed]:
    """Return the evaluation samples. QNN's models have the batch size that they were calibrated with."""
    return [*_feeds(folder, "held.npz"), *(_feeds(folder, "wide.npz") if cell.ep == "cpu" else [])]


@lru_cache(maxsize=4)
def _reference(folder: str, ep: str) -> tuple[list[list[Any]], list[str]]:
    session = judge.open_on_cpu(Path(folder) / "model.onnx", optimized=False)
    names = [value.name for value in session.get_outputs()]
    return judge.outputs(session, _held_out(folder, Cell(ep, ""))), names


def _measure(folder: str, cell: Cell, model: Path) -> dict[str, Any]:
    session = judge.open_on_qnn(model) if cell.ep == "qnn" else judge.open_on_cpu(model)
    reference, names = _reference(folder, cell.ep)
    figures = judge.compare(reference, judge.outputs(session, _held_out(folder, cell)), names).to_json()
    return {**figures, "integers": judge.integers(model)}


def measure_ours(folder: str, cell: Cell, model: Path) -> dict[str, Any]:
    """Return the metrics of winml_dag's result, also without graph optimizations, which may hide an invalid model.

    The noise is measured with them, as users get it, and compared with plain onnxruntime's.
    """
    found = _measure(folder, cell, model)
    if cell.ep == "cpu":
        session = judge.open_on_cpu(model, optimized=False)
        reference, names = _reference(folder, cell.ep)
        bare = judge.compare(reference, judge.outputs(session, _held_out(folder, cell)), names).to_json()
        worse = min(found, {**found, **bare}, key=lambda one: (not one["strays"], one["cosine"]))
        found = {**worse, "sqnr_db": found["sqnr_db"]}
    changed = judge.changes(Path(folder) / "model.onnx", model, fixed=cell.ep == "qnn")
    quantized = model.with_name("quantized.onnx")
    integers = quantized if cell.ep == "qnn" and quantized.exists() else model
    return {
        **found,
        "changed": changed,
        "granularity": judge.granularity(integers),
        "stored": judge.stored(integers),
    }


_work: dict[str, tempfile.TemporaryDirectory[str]] = {}


def measure_plain(folder: str, cell: Cell, way: str, count: int) -> dict[str, Any]:
    """Return the metrics of what onnxruntime's own tools make in *way* with *count* samples; ways share
    preparations.
    """
    key = f"{folder} {cell.ep}"
    if key not in _work:
        _work.clear()
        _work[key] = tempfile.TemporaryDirectory()
    feeds = _feeds(folder, "samples.npz")[:count]
    model = plain.make(cell, way, Path(folder) / "model.onnx", feeds, Path(_work[key].name))
    return {**_measure(folder, cell, model), "stored": judge.stored(model)}


def answer(told: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if told["do"] == "reference":
            _reference(told["folder"], told["ep"])
            return {}
        cell = cell_of(told["cell"])
        if told["do"] == "ours":
            return measure_ours(told["folder"], cell, Path(told["model"]))
        return measure_plain(told["folder"], cell, told["way"], told["calibration"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300] if str(error) else ''}"}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    onnxruntime.set_default_logger_severity(4)
    logging.disable(logging.CRITICAL)
    # Symbolic shape inference leaves a file in the current folder when it fails.
    with tempfile.TemporaryDirectory() as current:
        os.chdir(current)
        for line in sys.stdin:
            answers.write(json.dumps(answer(json.loads(line))) + "\n")
            answers.flush()
        os.chdir(os.path.sep)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
