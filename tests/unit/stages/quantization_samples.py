"""Models to quantize, calibration data, and the two stages, each run in its own folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from optimize_samples import constants_of, graph, outputs

from winml_dag.engine.exchange import OnProgress, no_progress
from winml_dag.engine.stage import Workspace
from winml_dag.stages.calibrate import CalibrateConfig, CalibrateFields, KeptBack
from winml_dag.stages.calibrate.observe import run as run_calibrate
from winml_dag.stages.quantize import QuantizeConfig, QuantizeFields, QuantizeTarget
from winml_dag.stages.quantize.modes import run as run_quantize

SEQUENCE, VOCABULARY, WIDTH = 6, 16, 32


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


def image_model(opset: int = 21) -> onnx.ModelProto:
    """Return Conv, Relu, Conv, pooling and a Gemm, as exporters write them."""
    return graph(
        """g (float[1, 3, 8, 8] pixels) => (float[1, 5] logits) {
            [conv1] c1 = Conv <pads = [1, 1, 1, 1]> (pixels, w1, b1)
            [relu1] r1 = Relu (c1)
            [conv2] c2 = Conv (r1, w2, b2)
            [pool] p = GlobalAveragePool (c2)
            [flatten] f = Flatten (p)
            [classify] logits = Gemm <transB = 1> (f, w3, b3)
        }""",
        opset,
        w1=weights(4, 3, 3, 3, seed=1),
        b1=weights(4, seed=2),
        w2=weights(8, 4, 3, 3, seed=3),
        b2=weights(8, seed=4),
        w3=weights(5, 8, seed=5),
        b3=weights(5, seed=6),
    )


def text_model(mask: float = -50.0, batch: int | str = 1, length: int | str = SEQUENCE) -> onnx.ModelProto:
    """Return one attention layer over embedded tokens. Where the attention mask is 0, *mask* is added to the scores."""
    return graph(
        f"""g (int64[{batch}, {length}] input_ids, int64[{batch}, {length}] attention_mask)
            => (float[{batch}, {length}, {WIDTH}] hidden_state) <float one = {{1}}, int64[1] axis = {{1}}> {{
            [embed] x = Gather (table, input_ids)
            [norm] n = LayerNormalization (x, gamma, beta)
            [query] q = MatMul (n, wq)
            [key] k = MatMul (n, wk)
            [turn] kt = Transpose <perm = [0, 2, 1]> (k)
            [scores] s = MatMul (q, kt)
            [cast] kept = Cast <to = 1> (attention_mask)
            [hide] hidden = Sub (one, kept)
            [lower] bias = Mul (hidden, low)
            [widen] wide = Unsqueeze (bias, axis)
            [mask] masked = Add (s, wide)
            [softmax] p = Softmax <axis = -1> (masked)
            [mix] m = MatMul (p, n)
            [project] o = MatMul (m, wo)
            [residual] hidden_state = Add (o, x)
        }}""",
        table=weights(VOCABULARY, WIDTH, seed=7),
        gamma=1 + weights(WIDTH, seed=8),
        beta=weights(WIDTH, seed=9),
        # Small, so that no softmax decides between two tokens by rounding.
        wq=weights(WIDTH, WIDTH, seed=10) / 4,
        wk=weights(WIDTH, WIDTH, seed=11) / 4,
        wo=weights(WIDTH, WIDTH, seed=12),
        low=np.array(mask, np.float32),
    )


def with_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return *model* with constants as nodes, as some exporters write it."""
    constants = [onnx.helper.make_node("Constant", [], [each.name], value=each) for each in model.graph.initializer]
    nodes = [*constants, *model.graph.node]
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def pixels(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"pixels": np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)}


def token_ids(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(2, SEQUENCE + 1, (count, 1))
    return {
        "input_ids": generator.integers(0, VOCABULARY, (count, SEQUENCE)),
        "attention_mask": (np.arange(SEQUENCE) < lengths).astype(np.int64),
    }


def fresh(folder: Path, name: str) -> Path:
    """Return a new folder for one run of a stage, so that earlier results stay."""
    path = folder / f"{name}-{len(list(folder.glob(f'{name}-*')))}"
    path.mkdir(parents=True)
    return path


@dataclass(frozen=True)
class Result:
    """The metrics of a stage and its output folder."""

    metrics: Any
    folder: Path

    @property
    def path(self) -> Path:
        (found,) = [path for path in self.folder.iterdir() if path.suffix in (".onnx", ".json")]
        return found

    @property
    def content(self) -> bytes:
        return self.path.read_bytes()

    @property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.path)

    def op_types(self) -> list[str]:
        return [node.op_type for node in self.model.graph.node]

    @property
    def constants(self) -> dict[str, np.ndarray]:
        return constants_of(self.model)

    def outputs(self, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return outputs(self.path, feed)


def types_around(graph: onnx.GraphProto) -> dict[str, set[int]]:
    """Return the integer types of the activations that each node reads and writes."""
    constants = {tensor.name: tensor.data_type for tensor in graph.initializer}
    read = {
        node.output[0]: constants[node.input[2]]
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] not in constants
    }
    made = {node.input[0]: constants[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear"}
    return {
        node.name: {read[name] for name in node.input if name in read}
        | {made[name] for name in node.output if name in made}
        for node in graph.node
        if "Linear" not in node.op_type
    }


def put(folder: Path, model: onnx.ModelProto) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    return folder


def stored(folder: Path, **arrays: np.ndarray) -> Path:
    """Save stacked samples of the inputs *arrays*."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "samples.npz", **arrays)
    return folder


def calibrate(
    folder: Path,
    model: onnx.ModelProto,
    data: Mapping[str, np.ndarray] | Path | None = None,
    processor: Path | None = None,
    keep_back: int | None = None,
    *,
    progress: OnProgress = no_progress,
    samples: int = 10,
    calibration_method: str = "minmax",
    seed: int | None = None,
    distribution: str = "uniform",
    **fields: Any,
) -> Result:
    """Run calibrate in *folder*; *data* are stacked arrays or a folder."""
    with chdir(fresh(folder, "calibrate")):
        inputs = {"model": put(Path("model"), model)}
        if isinstance(data, Path):
            inputs["data"] = data
        elif data is not None:
            inputs["data"] = stored(Path("data"), **data)
        if processor is not None:
            inputs["processor"] = processor
        Path("ranges").mkdir()
        if data is None:
            random = {"seed": seed or 0, "distribution": distribution}
        else:
            random = {"seed": seed, "distribution": None}
        metrics = run_calibrate(
            CalibrateConfig(CalibrateFields(samples, calibration_method, **random, **fields), KeptBack(keep_back)),
            Workspace(inputs, {"ranges": Path("ranges")}, progress),
        )
        return Result(metrics, Path("ranges").resolve())


_SETTLED: Mapping[str, Mapping[str, Any]] = {
    "static": {"activation_symmetric": False, "equalize": True, "reduce_range": False},
    "dynamic": {"weight_type": "uint8", "per_channel": False, "reduce_range": False},
    "rtn": {"rtn_bits": 4, "rtn_block_size": 128, "rtn_symmetric": True, "rtn_accuracy_level": 0},
    "fp16": {"fp16_keep_io_types": True},
}


def settled_fields(mode: str, rules: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return *fields*, completed by the fields that a build sets."""
    per_channel = {"per_channel": rules == "qnn"} if mode == "static" else {}
    return {**_SETTLED.get(mode, {}), **per_channel, **fields}


def quantize(
    folder: Path,
    model: onnx.ModelProto,
    mode: str,
    ranges: Result | None = None,
    rules: str | None = None,
    *,
    mixes_widths: bool = True,
    **fields: Any,
) -> Result:
    """Run quantize in *folder*; for static, with the *ranges* of :func:`calibrate`."""
    with chdir(fresh(folder, "quantize")):
        inputs = {"model": put(Path("model"), model)}
        if ranges is not None:
            inputs["ranges"] = ranges.folder
        Path("quantized").mkdir()
        metrics = run_quantize(
            QuantizeConfig(
                QuantizeFields(mode, **settled_fields(mode, rules, fields)), QuantizeTarget(rules, mixes_widths)
            ),
            Workspace(inputs, {"model": Path("quantized")}),
        )
        return Result(metrics, Path("quantized").resolve())


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    a, b = left.ravel().astype(np.float64), right.ravel().astype(np.float64)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def outlier_model(opset: int = 21, *, after: bool = True, transposed: bool = False) -> onnx.ModelProto:
    """Return a feed-forward block that makes one channel of its residual 400 times as large as the others.

    With *after*, normalizations come after residuals, as in BERT; otherwise before, as in ViT. *transposed*: of the
    Gemm.
    """
    wide, narrow = 4 * WIDTH, WIDTH
    down, bias = weights(wide, narrow, seed=23) / 30, weights(narrow, seed=24)
    gamma, second_gamma = 1 + weights(narrow, seed=25), np.full(narrow, 20, np.float32)
    up = weights(narrow, wide, seed=21)
    # Large channels have small weights, as in trained models; otherwise the others would not matter.
    gamma[5], up[5] = 60, up[5] / 60  # leaves few of 8 bits' steps for the other normalized channels
    bias[3], second_gamma[3] = 400, 0.1  # and hardly any for those of the sum of residuals
    return graph(
        f"""g (float[1, {SEQUENCE}, {WIDTH}] x) => (float[1, {SEQUENCE}, {WIDTH}] hidden_state)
            <int64[2] rows = {{-1, {WIDTH}}}, int64[3] shape = {{1, {SEQUENCE}, {WIDTH}}}> {{
            [norm] n = LayerNormalization (x, gamma, beta)
            [flatten] flat = Reshape (n, rows)
            [up] h = Gemm <transB = {int(transposed)}> (flat, up, up_bias)
            [relu] r = Relu (h)
            [down] d = MatMul (r, down)
            [bias] e = Add (down_bias, d)
            [unflatten] f = Reshape (e, shape)
            [residual] sum = Add (f, {"n" if after else "x"})
            [second_norm] m = LayerNormalization (sum, second_gamma, beta)
            [project] hidden_state = MatMul (m, out)
        }}""",
        opset,
        gamma=gamma,
        beta=weights(narrow, seed=26),
        second_gamma=second_gamma,
        up=np.ascontiguousarray(up.T) if transposed else up,
        up_bias=weights(wide, seed=22),
        down=down,
        down_bias=bias,
        out=weights(narrow, narrow, seed=27),
    )


def rows(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((count, SEQUENCE, WIDTH)).astype(np.float32)}
