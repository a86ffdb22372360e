"""Memory use of calibrate: a model of 1 GiB, by method and number of samples.

    python tests/benchmarks/calibration_memory.py FOLDER

Each line is the stage in a separate process, as in a build. The samples come from one .npz file. The point is that 16
times the samples take no more memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

LAYERS, WIDTH, ROWS, SAMPLES = 16, 4096, 32, 64

_STAGE = """
import json, os, resource, sys, time
from pathlib import Path
from winml_dag.engine.stage import Workspace
from winml_dag.stages.calibrate import CalibrateConfig, CalibrateFields
from winml_dag.stages.calibrate.observe import run
method, samples, work = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
work.mkdir(); os.chdir(work); Path("ranges").mkdir()
inputs = {"model": Path("../model"), "data": Path("../data")}
started = time.perf_counter()
config = CalibrateConfig(CalibrateFields(samples, method, seed=None, distribution=None))
run(config, Workspace(inputs, {"ranges": Path("ranges")}))
seconds = time.perf_counter() - started
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, seconds]))
"""


def make(folder: Path) -> None:
    """Create a chain of matrices of 64 MiB, in one file next to the model, and samples of 512 KiB."""
    (folder / "model").mkdir(parents=True)
    (folder / "data").mkdir()
    generator = np.random.default_rng(0)
    nodes, tensors, size = [], [], WIDTH * WIDTH * 4
    with (folder / "model" / "weights.bin").open("wb") as file:
        for layer in range(LAYERS):
            (generator.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(64)).tofile(file)
            tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "weights.bin"), ("offset", layer * size), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"m{layer}"], f"matmul{layer}"))
            nodes.append(helper.make_node("Tanh", [f"m{layer}"], [f"x{layer + 1}"], f"tanh{layer}"))
    shape = [1, ROWS, WIDTH]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"x{LAYERS}", TensorProto.FLOAT, shape)],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (folder / "model" / "model.onnx").write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(folder / "model" / "model.onnx"))
    np.savez(folder / "data" / "samples.npz", x0=generator.standard_normal((SAMPLES, *shape[1:]), np.float32))


def main(folder: Path) -> None:
    make(folder)
    print(f"{'method':<12}{'samples':>8}{'peak MiB':>10}{'seconds':>9}")
    for method in ("minmax", "percentile"):
        for samples in (4, SAMPLES):
            work = folder / f"{method}-{samples}"
            command = [sys.executable, "-c", _STAGE, method, str(samples), str(work)]
            finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if finished.returncode:
                sys.exit(finished.stderr)
            peak, seconds = json.loads(finished.stdout.splitlines()[-1])
            print(f"{method:<12}{samples:>8}{peak / 2**20:>10.0f}{seconds:>9.1f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
