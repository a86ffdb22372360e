"""Tiny models for execution providers, and stages run as in the engine: each in a fresh process and folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from winml_dag.ep.availability import installed, resolve_target
from winml_dag.ep.provider import complete_options
from winml_dag.ep.registry import QNN

requires_qnn = pytest.mark.skipif(not installed(QNN), reason="onnxruntime-qnn is not installed")

_DRIVER = """
import json, sys
from pathlib import Path
from winml_dag.engine.stage import read_config
from winml_dag.engine.stage import Workspace
from winml_dag.engine.worker import load
from winml_dag.errors import WinmlDagError

task = json.loads(Path("task.json").read_text())
folders = {kind: {slot: Path(kind, slot) for slot in task[kind]} for kind in ("inputs", "outputs")}
result = {"metrics": {}, "error": "", "advice": ""}
for _ in range(task["times"]):
    try:
        result["metrics"] = dict(load(task["work"])(read_config(load(task["config_class"]), task["config"]),
                                                    Workspace(**folders)))
    except WinmlDagError as error:
        result |= {"error": error.message, "advice": error.advice}
Path("result.json").write_text(json.dumps(result))
"""


@dataclass(frozen=True)
class Outcome:
    metrics: dict
    error: str
    advice: str
    outputs: Path
    log: str

    def files(self) -> dict[str, bytes]:
        """Return the outputs of the stage, by name within its only output slot."""
        (slot,) = self.outputs.iterdir()
        return {path.relative_to(slot).as_posix(): path.read_bytes() for path in slot.rglob("*") if path.is_file()}


def run_stage(
    stage,
    folder: Path,
    config: Mapping,
    inputs: Mapping[str, Mapping[str, Path]],
    *,
    hash_seed: int = 0,
    times: int = 1,
) -> Outcome:
    """Run a stage. *inputs*: files by slot and name within the slot."""
    for slot, files in inputs.items():
        for name, source in files.items():
            target = folder / "inputs" / slot / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    for slot in stage.outputs:
        (folder / "outputs" / slot).mkdir(parents=True)
    task = {"work": stage.work, "config_class": stage.config, "config": config, "times": times}
    (folder / "task.json").write_text(json.dumps({**task, "inputs": list(inputs), "outputs": list(stage.outputs)}))
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=False,
    )
    log = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(log)
    return Outcome(**json.loads((folder / "result.json").read_text()), outputs=folder / "outputs", log=log)


def compile_config(options: Mapping[str, str] | None = None, **fields: object) -> dict:
    complete = complete_options(resolve_target("qnn", "npu"), {}) if options is None else dict(options)
    return {
        "compile": {
            "execution_provider": "QNNExecutionProvider",
            "device": "npu",
            "provider_options": complete,
            **fields,
        }
    }


def small_network(*, batch: int | str = 1, computed_shape: bool = False) -> onnx.ModelProto:
    """Return two convolutions and a classifier, float32.

    *computed_shape*: the graph computes the shape of a reshape.
    """
    random = np.random.default_rng(0)

    def constant(name: str, *shape: int) -> TensorProto:
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 4
        return numpy_helper.from_array((random.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["pixels", "w1", "b1"], ["c1"], "conv1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["sum"], "add"),
        helper.make_node("GlobalAveragePool", ["sum"], ["pooled"], "pool"),
    ]
    constants = [constant("w1", 8, 3, 3, 3), constant("b1", 8), constant("w2", 8, 8, 3, 3), constant("b2", 8)]
    constants += [constant("w3", 8, 10), constant("b3", 10)]
    if computed_shape:
        constants += [numpy_helper.from_array(np.array([-1]), "rest")]
        nodes += [
            helper.make_node("Shape", ["pooled"], ["shape"], "shape", end=1),
            helper.make_node("Concat", ["shape", "rest"], ["target"], "concat", axis=0),
            helper.make_node("Reshape", ["pooled", "target"], ["flat"], "reshape"),
        ]
    else:
        nodes += [helper.make_node("Flatten", ["pooled"], ["flat"], "flatten")]
    nodes += [helper.make_node("Gemm", ["flat", "w3", "b3"], ["scores"], "classifier")]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [batch, 3, 16, 16])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 10])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def quantized(model: Path, destination: Path, precision: str) -> Path:
    """Save *model* as QDQ for QNN, calibrated on ten random samples."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            random = np.random.default_rng(1)
            self._samples = iter([{"pixels": random.random((1, 3, 16, 16), dtype=np.float32)} for _ in range(10)])

        def get_next(self) -> dict | None:
            return next(self._samples, None)

    activations = QuantType.QUInt8 if precision == "w8a8" else QuantType.QUInt16
    quantize(
        model,
        destination,
        get_qnn_qdq_config(model, Reader(), activation_type=activations, weight_type=QuantType.QUInt8),
    )
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
    return Models(
        float32,
        quantized(float32, folder / "w8a8.onnx", "w8a8"),
        quantized(float32, folder / "w8a16.onnx", "w8a16"),
    )
