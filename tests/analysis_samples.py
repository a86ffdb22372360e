"""Support tables as the generator would write them, and how to analyze a model as the engine would."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from winml_dag.engine.stage import Workspace
from winml_dag.ep.support import Case, Outcome
from winml_dag.ep.support.table import About, rows_of, table_bytes
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages import optimize
from winml_dag.stages.analyze import RESULT_FILE, AnalyzeConfig
from winml_dag.stages.analyze.analysis import run
from winml_dag.stages.analyze.judging import case_of

TAKEN = Outcome(compiled=True, ran=True)
LEFT = Outcome(compiled=False, ran=True)
FAILS = Outcome(compiled=False, ran=False)

ABOUT = About("QNNExecutionProvider", "npu", "2.0", "2.51", "1.31", "1.19", {}, emulated=True, opset=21)


def table(rows: Iterable[tuple[Case, Outcome]]) -> bytes:
    """Return the table that measuring *rows* would give, with enough cases each for a failure to count."""
    return table_bytes(ABOUT, rows_of([row for row in rows for _ in range(3)]))


def cases_of(model: onnx.ModelProto) -> list[Case]:
    """Return the case of every node of *model*, with inferred shapes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        read = read_model(path, values=True)
    scope = Dataflow(read)
    return [case_of(node, scope) for node in read.graph.nodes]


@dataclass(frozen=True)
class Analyzed:
    """The results: the metrics, the report, and the discovered capabilities as bytes."""

    metrics: Any
    result: Any
    flags: bytes


def analyze(
    model: onnx.ModelProto | Path, config: AnalyzeConfig, *tables: bytes, flags: bytes | None = None
) -> Analyzed:
    """Run the stage in a folder of its own, as a separate process would."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return _analyze_here(model, config, tables, flags)


def _analyze_here(
    model: onnx.ModelProto | Path, config: AnalyzeConfig, tables: Iterable[bytes], flags: bytes | None
) -> Analyzed:
    inputs, outputs = {"model": Path("model")}, {slot: Path("out") / slot for slot in ("result", "flags")}
    for path in (*inputs.values(), *outputs.values()):
        path.mkdir(parents=True)
    if isinstance(model, Path):
        for file in model.parent.glob(f"{model.name}*"):
            shutil.copy(file, "model")
    else:
        onnx.save(model, "model/model.onnx")
    for place, content in enumerate(tables):
        inputs["support"] = Path("support")
        inputs["support"].mkdir(exist_ok=True)
        Path(f"support/{place}_qnn_npu.support").write_bytes(content)
    if flags is not None:
        inputs["flags"] = Path("flags")
        inputs["flags"].mkdir()
        Path("flags", optimize.FILE).write_bytes(flags)
    metrics = run(config, Workspace(inputs, outputs))
    result = json.loads((outputs["result"] / RESULT_FILE).read_text(encoding="utf-8"))
    return Analyzed(metrics, result, (outputs["flags"] / optimize.FILE).read_bytes())
