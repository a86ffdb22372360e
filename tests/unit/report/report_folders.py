"""Folders as sweeps and builds leave them, with the parts of a manifest that a report reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from winml_dag.pipeline.sweep.result import (
    CellResult,
    CellStatus,
    Failure,
    Measured,
    StageRun,
    SweepResult,
    write_sweep,
)

HOST = {"processor": "a processor", "memory": "8 GiB"}


def digest(text: str) -> str:
    return f"xxh3-128:{text.encode().hex():0>32}"[:41]


def stage(
    name: str, seconds: float = 1.0, *, cached: bool = False, stage_id: str = "", **fields: Any
) -> dict[str, Any]:
    return {
        "id": stage_id or name,
        "name": name,
        "status": "completed",
        "elapsed_seconds": seconds,
        "cached": cached,
        "reason": "found in the cache" if cached else "never built before",
        "cache_key": name,
        "outputs": {},
        "toolchain": {"onnx": "1.23.2", "qnn library libX.so": digest("x")},
        "metrics": {"peak_memory_bytes": 1000},
        "made_at": "2026-11-22T10:00:00+00:00",
        "made_by": "winml_dag 0.1.0",
        **fields,
    }


def skipped(name: str, reason: str) -> dict[str, Any]:
    return {"name": name, "status": "skipped", "reason": reason, "elapsed_seconds": 0.0}


def manifest(
    *,
    model: str = "tiny",
    precision: str = "w8a8",
    ep: str = "QNNExecutionProvider",
    device: str = "npu",
    size: int = 1000,
    sidecar: int = 0,
    cosine: float | None = 0.99,
    compiled: bool = True,
    **fields: Any,
) -> dict[str, Any]:
    """Return the manifest of a build whose model has *size* bytes, *sidecar* of them in an external file."""
    files = [{"name": "model.onnx", "digest": digest(f"m{size}"), "size": size - sidecar}]
    if sidecar:
        files.append({"name": "model_qnn.bin", "digest": digest(f"b{sidecar}"), "size": sidecar})
    quality = {"output": "y", "cosine": cosine, "cosine_min": cosine, "sqnr_db": 30.0, "max_abs_error": 0.1}
    validated = {"quality": {**quality, "samples": 3, "data": "random"}, "min_cosine": 0.9, "peak_memory_bytes": 5000}
    quantized = {"nodes_quantized": 9, "nodes_skipped": 1, "nodes_skipped_reasons": {"Softmax": {"no rule": 1}}}
    placed = {"ep_context_partitions": 2, "nodes_on_cpu": {"Gather": 3}, "ep_sdk_version": "v2"}
    return {
        "schema_version": 1,
        "source": "hf",
        "model_id": model,
        "task": "text-classification",
        "precision": precision,
        "execution_provider": ep,
        "device": device,
        "timestamp": "2026-11-22T10:00:00+00:00",
        "elapsed_seconds": 7.0,
        "notices": ["Calibrating on random data."],
        "sources": {},
        "stages": [
            stage("export", 5.0, cached=True),
            stage("quantize", 1.5, **quantized) if precision != "fp32" else skipped("quantize", "fp32 needs none"),
            stage("compile", 0.5, **placed) if compiled else skipped("compile", "the CPU runs ONNX as it is"),
            stage("validate", metrics=validated) if cosine is not None else skipped("validate", "switched off"),
            stage("finalize", 0.25, outputs={"model": {"digest": f"sha256:{size}", "size": size, "files": files}}),
        ],
        "files": [*files, {"name": "compiled.onnx", "digest": files[0]["digest"], "size": files[0]["size"]}],
        **fields,
    }


def put_build(folder: Path, value: Mapping[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "build_manifest.json").write_text(json.dumps(manifest() if value is None else value), encoding="utf-8")
    return folder


def perf(p50: float, *, host: Mapping[str, str] = HOST, inferences: int = 100, emulated: bool = False) -> Measured:
    report = {
        "latency_ms": {"p50": p50, "p90": p50 * 1.1, "p99": p50 * 1.5, "inferences": inferences},
        "warmup": 10,
        "load": {"seconds": 0.5},
        "memory_bytes": {"peak": 2**20},
        "host": dict(host),
        "notices": ["QNN's NPU is emulated on this processor: ..."] if emulated else [],
    }
    return Measured("live", "2026-11-22T11:00:00+00:00", report)


def evaluated(value: float, reference: float = 0.9) -> Measured:
    estimate = {"value": value, "low": value - 0.05, "high": value + 0.05, "interval": "wilson"}
    metric = {
        "candidate": estimate,
        "reference": {**estimate, "value": reference},
        "difference": {"value": value - reference, "significant": False},
    }
    report = {"task": "text-classification", "samples": 50, "metrics": {"macro_f1": metric, "accuracy": metric}}
    return Measured("cached", "2026-11-22T11:00:00+00:00", report)


def cell(name: str, status: CellStatus = CellStatus.BUILT, **fields: Any) -> CellResult:
    """Return a cell; ``bert/w8a8/npu`` is that of the model, precision and target."""
    values = dict(zip(("model", "precision", "target"), name.split("/"), strict=False))
    return CellResult(name, values, name, status, **{"command": f"winml-dag build --filter {name}", **fields})


def failed(name: str) -> CellResult:
    failure = Failure("quantize", "It did not fit.", "Try another.", "failures/x.log", ("line 1", "line 2"))
    stages = (
        StageRun("export", "export", "ran", "never built before"),
        StageRun("quantize", "quantize", "failed", "new"),
    )
    why = f"quantize failed: {failure.error}"
    return cell(name, CellStatus.FAILED, why=why, reached="export", failure=failure, stages=stages)


def sweep(cells: Sequence[CellResult], name: str = "small", **fields: Any) -> SweepResult:
    axes = {
        axis: tuple(dict.fromkeys(one.values[axis] for one in cells if axis in one.values))
        for axis in ("model", "precision", "target")
    }
    given = {"recipe": "sweep.yaml", "began_at": "2026-11-22T10:00:00+00:00", "elapsed_seconds": 20.0, **fields}
    return SweepResult(name=name, axes=axes, cells=tuple(cells), **given)


def put_sweep(folder: Path, result: SweepResult, builds: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write *result* to *folder*, with manifests for those of its cells in *builds*."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in builds.items():
        put_build(folder / name, value)
    write_sweep(folder, result)
    return folder


def without(result: SweepResult, *names: str) -> SweepResult:
    """Return *result* as in another shard: the cells *names* were not reached."""
    cells = (
        replace(one, status=CellStatus.NOT_REACHED, why="of another shard") if one.name in names else one
        for one in result.cells
    )
    return replace(result, cells=tuple(cells))
