"""Tiny models for execution providers, and stages run by the engine: each in a process and folder of its own."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from optimize_samples import graph

from winml_dag.engine.execute import Job, LocalExecutor
from winml_dag.engine.stage import Node
from winml_dag.ep.availability import installed, resolve_target
from winml_dag.ep.provider import complete_options
from winml_dag.ep.registry import QNN
from winml_dag.ep.session import create_session
from winml_dag.stages.compile import COMPILE

requires_qnn = pytest.mark.skipif(not installed(QNN), reason="onnxruntime-qnn is not installed")


@dataclass(frozen=True)
class StageRun:
    """What a stage reported, and its output folder."""

    metrics: dict
    error: str
    advice: str
    outputs: Path

    def files(self) -> dict[str, bytes]:
        """Return the outputs of the stage, by name within its only output slot."""
        (slot,) = self.outputs.iterdir()
        return {path.relative_to(slot).as_posix(): path.read_bytes() for path in slot.rglob("*") if path.is_file()}


@cache
def _executor() -> LocalExecutor:
    executor = LocalExecutor(("onnx", "onnxruntime", "numpy"))
    atexit.register(executor.close)
    return executor


def run_stage(
    stage, folder: Path, config: Mapping, inputs: Mapping[str, Mapping[str, Path]], *, hash_seed: int | None = None
) -> StageRun:
    """Run a stage; *inputs*: files by slot and name within the slot.

    With *hash_seed*, its process is not a fork of one that has imported what stages import.
    """
    for slot, files in inputs.items():
        for name, source in files.items():
            target = folder / "inputs" / slot / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    folder.mkdir(parents=True, exist_ok=True)
    job = Job(Node(stage.name, stage, config, dict.fromkeys(inputs, "")), folder, 600.0)
    if hash_seed is None:
        outcome = _executor().run(job)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONHASHSEED", str(hash_seed))
            with closing(LocalExecutor()) as executor:
                outcome = executor.run(job)
    return StageRun(dict(outcome.metrics), outcome.error, outcome.advice, folder / "outputs")


def compile_config(options: Mapping[str, str] | None = None, **fields: object) -> dict:
    complete = complete_options(resolve_target("qnn", "npu"), {}) if options is None else dict(options)
    usual = {"execution_provider": "QNNExecutionProvider", "device": "npu", "provider_options": complete}
    return {"compile": {**usual, **fields}}


def compiled(
    folder: Path, model: onnx.ModelProto | Path, options: Mapping[str, str] | None = None, **fields: object
) -> StageRun:
    """Run compile for QNN in a folder of *folder*."""
    if isinstance(model, onnx.ModelProto):
        folder.mkdir(exist_ok=True)
        onnx.save(model, folder / "model.onnx")
        model = folder / "model.onnx"
    return run_stage(COMPILE, folder / "run", compile_config(options, **fields), {"model": {"m.onnx": model}})


def loaded(model: StageRun | Path) -> onnxruntime.InferenceSession:
    """Return a session on QNN of a compiled model."""
    if isinstance(model, StageRun):
        assert not model.error
        model = model.outputs / "model" / "compiled.onnx"
    target = resolve_target("qnn", "npu")
    return create_session(model, target, complete_options(target, {}), compiled=True)


def small_network(*, batch: int | str = 1, computed_shape: bool = False) -> onnx.ModelProto:
    """Return two convolutions and a classifier, float32.

    *computed_shape*: the graph computes the shape of a reshape.
    """
    random = np.random.default_rng(0)

    def constant(*shape: int) -> np.ndarray:
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 4
        return (random.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)

    flatten = (
        "shape = Shape <end = 1> (pooled) target = Concat <axis = 0> (shape, rest) flat = Reshape (pooled, target)"
    )
    return graph(
        f"""g (float[{batch}, 3, 16, 16] pixels) => (float[{batch}, 10] scores) <int64[1] rest = {{-1}}> {{
        [conv1] c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (pixels, w1, b1) [relu1] r1 = Relu (c1)
        [conv2] c2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r1, w2, b2) [add] sum = Add (c2, r1)
        [pool] pooled = GlobalAveragePool (sum) {flatten if computed_shape else "flat = Flatten (pooled)"}
        [classifier] scores = Gemm (flat, w3, b3) }}""",
        w1=constant(8, 3, 3, 3),
        b1=constant(8),
        w2=constant(8, 8, 3, 3),
        b2=constant(8),
        w3=constant(8, 10),
        b3=constant(10),
    )


def quantized(model: Path, destination: Path, precision: str) -> Path:
    """Save *model* as QDQ for QNN, calibrated on ten random samples."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    random = np.random.default_rng(1)
    samples = iter([{"pixels": random.random((1, 3, 16, 16), dtype=np.float32)} for _ in range(10)])

    class Reader(CalibrationDataReader):
        def get_next(self) -> dict | None:
            return next(samples, None)

    activations = QuantType.QUInt8 if precision == "w8a8" else QuantType.QUInt16
    config = get_qnn_qdq_config(model, Reader(), activation_type=activations, weight_type=QuantType.QUInt8)
    quantize(model, destination, config)
    return destination


@dataclass(frozen=True)
class Models:
    """One small network: as float32, and quantized."""

    float32: Path
    w8a8: Path
    w8a16: Path


def make_models(folder: Path) -> Models:
    float32 = folder / "float.onnx"
    onnx.save(small_network(), float32)
    return Models(float32, *(quantized(float32, folder / f"{name}.onnx", name) for name in ("w8a8", "w8a16")))
