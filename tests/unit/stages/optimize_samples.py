"""Models to optimize, runs of the stage as in the engine, and checks that the result computes the same."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper

from winml_dag.engine.stage import Workspace
from winml_dag.stages.optimize import OptimizeConfig, OptimizeTarget
from winml_dag.stages.optimize.apply import run

# The loss of float32 when sums are computed in another order or by another formula.
TOLERANCE = 2e-5


@dataclass(frozen=True)
class Optimized:
    """The results: the metrics, the bytes of the file, the model, and its source."""

    metrics: Any
    content: bytes
    model: onnx.ModelProto
    source: onnx.ModelProto

    @property
    def ops(self) -> Counter[str]:
        return Counter(f"{n.domain}/{n.op_type}" if n.domain else n.op_type for n in self.model.graph.node)

    @property
    def constants(self) -> dict[str, NDArray[Any]]:
        return constants_of(self.model)


def constants_of(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def graph(text: str, opset: int = 21, *, imports: str = "", **constants: NDArray[Any]) -> onnx.ModelProto:
    """Return a model from ONNX's text form of its graph, and *constants* too long for that form."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}{imports}]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in constants.items())
    onnx.checker.check_model(model)
    return model


def attention_block(end: str = "y = Mul(h, s)", opset: int = 21) -> onnx.ModelProto:
    """Return an attention block with a mask and a GELU: something for most capabilities."""
    random = np.random.default_rng(0)
    constants = {name: random.normal(size=shape).astype(np.float32) for name, shape in (("q", (8, 8)), ("k", (8, 8)))}
    text = """agraph (float[2, 6, 8] x, int64[2, 1, 6] mask) => (float[2, 6, 8] y)
    <float lowest = {-3.4028235e38}, float one = {1}, float three = {3}, float cubic = {0.044715},
     float outer = {0.79788456}, float half = {0.5}> {
    qp = MatMul(x, q)   qb = Add(qp, bias)
    kp = MatMul(x, k)   kb = Add(kp, bias)   kt = Transpose<perm = [0, 2, 1]>(kb)
    kept = Cast<to = 1>(mask)   hidden = Sub(one, kept)   low = Mul(hidden, lowest)
    product = MatMul(qb, kt)   scores = Add(product, low)   weights = Softmax<axis = -1>(scores)
    mixed = MatMul(weights, x)
    c = Pow(mixed, three)   m = Mul(cubic, c)   p = Add(mixed, m)   t = Mul(outer, p)   f = Tanh(t)   s = Add(one, f)
    h = Mul(half, mixed)   END
}"""
    return graph(text.replace("END", end), opset, **constants, bias=random.normal(size=8).astype(np.float32))


def optimize(
    folder: Path, model: onnx.ModelProto, *names: str, off: Sequence[str] = (), standard_domain_only: bool = False
) -> Optimized:
    """Run the stage in *folder*, as a separate process would, with the capabilities *names* on and others *off*."""
    shutil.rmtree(folder, ignore_errors=True)
    workspace = Workspace({"model": Path("in")}, {"model": Path("out")})
    for name in ("in", "out"):
        (folder / name).mkdir(parents=True)
    onnx.save(model, folder / "in" / "model.onnx")
    optim = {**dict.fromkeys(names, True), **dict.fromkeys(off, False)}
    with chdir(folder):
        metrics = run(OptimizeConfig(optim, OptimizeTarget(standard_domain_only)), workspace)
    [file] = (folder / "out").iterdir()
    assert file.name == "optimized.onnx"
    return Optimized(metrics, file.read_bytes(), onnx.load(file), model)


def feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return random inputs; unknown dimensions become 3, integers 0 or 1 with the second half of every row 0 (a
    mask). A single one is 3, or true.
    """
    random = np.random.default_rng(seed)
    constants = {initializer.name for initializer in model.graph.initializer}
    result: dict[str, NDArray[Any]] = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        shape = [dim.dim_value if dim.HasField("dim_value") else 3 for dim in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype.kind == "f":
            result[value.name] = random.normal(size=shape).astype(dtype)
        elif dtype.kind == "O" or not shape:
            result[value.name] = np.full(shape, "text" if dtype.kind == "O" else 3, dtype)
        else:
            result[value.name] = np.ones(shape, dtype)
            result[value.name][..., shape[-1] // 2 :] = 0
    return result


def session(model: onnx.ModelProto | Path, *, optimized: bool = True) -> onnxruntime.InferenceSession:
    """Return a session of one thread; if it is not *optimized*, the nodes run as they are in the model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    content = model if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def outputs(
    model: onnx.ModelProto | Path, inputs: Mapping[str, NDArray[Any]], *, optimized: bool = True
) -> list[NDArray[Any]]:
    return list(session(model, optimized=optimized).run(None, dict(inputs)))


def assert_same_results(optimized: Optimized, *, tolerance: float = TOLERANCE) -> None:
    source, result = session(optimized.source), session(optimized.model)
    for seed in range(3):
        inputs = feeds(optimized.source, seed)
        for one, other in zip(source.run(None, inputs), result.run(None, inputs), strict=True):
            np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)
