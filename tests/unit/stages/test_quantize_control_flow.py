"""Models with If, Loop and Scan, and unusual positions of constants, in every mode of quantize."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from optimize_samples import constants_of, session
from quantization_samples import Result, calibrate, outlier_model, quantize, rows, weights

from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.protos import graphs_of, sort_nodes
from winml_dag.stages.float_model import write_typed
from winml_dag.stages.quantize.mixed import own_constants

WIDTH = 32
W8A8 = {"weight_type": "uint8", "activation_type": "uint8", "per_channel": True}
X = f"float[2, {WIDTH}]"
MODES: Mapping[str, Mapping[str, Any]] = {
    "fp16": {},
    "dynamic": {},
    "rtn": {"rtn_block_size": 16, "rtn_bits": 8},
    "static": {"weight_type": "uint8", "activation_type": "uint8"},
}
# Minimum signal to noise in dB: far below what these models have, and far above a wrong result.
LEAST = {"fp16": 50, "dynamic": 25, "rtn": 25, "static": 15}

# A branch has its own MatMul, one with the outer graph's weight, and Max and CumSum, which stay in float32 in fp16.
# Both branches use the names "t", "m" and "r"; "h" and "shared" are captured.
BRANCHES = f"""agraph ({X} x, bool c) => ({X} y) {{
    h = MatMul (x, first)
    i = If (c) <
        then_branch = yes () => ({X} t) {{
            m = MatMul (h, inner) r = Max (m, zero) s = CumSum (r, axis) t0 = MatMul (s, shared) t = Max (t0, h) }},
        else_branch = no () => ({X} t) {{ m = Gemm <transB = 1> (h, other, bias) r = Sigmoid (m) t = Mul (r, x) }}>
    y = MatMul (i, shared)
}}"""
LOOP = f"""agraph ({X} x, bool c, int64 n) => ({X} y) {{
    h = MatMul (x, first)
    last, all = Loop (n, c, h) <body = body (int64 i, bool go, {X} x) => (bool on, {X} h2, {X} seen) {{
        on = Identity (go) m = MatMul (x, shared) t = Tanh (m) r = Max (t, zero) h2 = Add (r, h) seen = Identity (h2)
    }}>
    sum = ReduceSum <keepdims = 0> (all, front)
    y = Add (last, sum)
}}"""
SCAN = f"""agraph ({X} x, float[{WIDTH}] s) => ({X} y, float[{WIDTH}] last) {{
    h = MatMul (x, first)
    last, y = Scan (s, h) <num_scan_inputs = 1, body = body (float[{WIDTH}] s, float[{WIDTH}] e) =>
        (float[{WIDTH}] n, float[{WIDTH}] o) {{ m = MatMul (e, shared) a = Add (m, s) n = Tanh (a) o = Max (n, zero) }}>
}}"""
NETS = {"If": BRANCHES, "Loop": LOOP, "Scan": SCAN}


def of(text: str, imports: str = '"": 17') -> onnx.ModelProto:
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> {text}")


def net(text: str, imports: str = '"": 17') -> onnx.ModelProto:
    """Return a model with the weights that *text* names."""
    model = of(text, imports)
    scale = np.float32(2 / np.sqrt(WIDTH))
    constants = {
        **{name: weights(WIDTH, WIDTH, seed=seed) * scale for seed, name in enumerate(("first", "shared"))},
        "zero": np.array(0, np.float32),
        "axis": np.array(1, np.int32),
        "front": np.array([0], np.int64),
    }
    read = {name for graph in graphs_of(model.graph) for node in graph.node for name in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in constants.items() if name in read)
    for graph in graphs_of(model.graph):
        inner = {"inner": weights(WIDTH, WIDTH, seed=5), "other": weights(WIDTH, WIDTH, seed=6), "bias": weights(WIDTH)}
        own = {name for node in graph.node for name in node.input}
        graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in inner.items() if name in own)
    return model


def fed(model: onnx.ModelProto, seed: int, *, condition: bool = True) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    floats = {
        value.name: random.normal(size=[dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in model.graph.input
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    others = {"c": np.array(condition), "n": np.array(3)}
    return floats | {value.name: others[value.name] for value in model.graph.input if value.name in others}


def quantized(folder: Path, model: onnx.ModelProto, mode: str, **fields: Any) -> Result:
    ranges, rules = None, None
    if mode == "static":
        samples = [fed(model, seed, condition=bool(seed % 2)) for seed in range(6)]
        data = {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}
        ranges, rules = calibrate(folder, model, data, samples=6), "onnxruntime"
    return quantize(folder, model, mode, ranges, rules, **{**MODES[mode], **fields})


def assert_close(result: Result, model: onnx.ModelProto, least: float) -> None:
    """The model is valid in onnx, and computes the same as *model*, with and without all of onnxruntime's fusions."""
    onnx.checker.check_model(result.model)
    original = session(model)
    for optimized in (False, True):
        quantized = session(result.path, optimized=optimized)
        halves = {value.name for value in quantized.get_inputs() if value.type == "tensor(float16)"}
        for condition in (True, False):
            feed = fed(model, 9, condition=condition)
            given = {name: array.astype(np.float16) if name in halves else array for name, array in feed.items()}
            for expected, found in zip(original.run(None, feed), quantized.run(None, given), strict=True):
                noise = np.sum((expected.astype(np.float64) - found) ** 2)
                assert noise == 0 or 10 * np.log10(np.sum(expected.astype(np.float64) ** 2) / noise) > least


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NETS)
def test_every_mode_makes_valid_control_flow_model(tmp_path: Path, name: str, mode: str) -> None:
    model = net(NETS[name])
    assert_close(quantized(tmp_path, model, mode), model, LEAST[mode])


@pytest.mark.parametrize(
    "fields",
    [
        {"fp16_keep_io_types": False},
        {"op_types_to_quantize": ("MatMul", "Gemm")},
        {"fp16_op_block_list": ("If", "Loop", "Scan")},
        {"op_types_to_exclude": ("MatMul",)},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", NETS)
def test_fp16_with_float32_parts_is_valid(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    model = net(NETS[name])
    result = quantized(tmp_path, model, "fp16", **fields)
    assert_close(result, model, LEAST["fp16"])


def test_inner_graph_weights_are_quantized(tmp_path: Path) -> None:
    model = net(BRANCHES)
    for mode, dtype, operator in (("dynamic", "uint8", "MatMulInteger"), ("rtn", "uint8", "MatMulNBits")):
        result = quantized(tmp_path, model, mode)
        # Three MatMul and a Gemm of four matrices: two are in branches, and one is read inside and outside.
        assert result.metrics["nodes_quantized"] == 5
        inner = [node.op_type for graph in list(graphs_of(result.model.graph))[1:] for node in graph.node]
        assert inner.count(operator) == 3
        kept = inspect_model(result.path).tensor_bytes
        assert kept[dtype] >= 4 * WIDTH * WIDTH
        assert kept["float32"] < WIDTH * WIDTH * 4


def test_branch_convolutions_with_outer_weights_are_quantized(tmp_path: Path) -> None:
    """PyTorch puts all weights into the outermost graph. One that both branches read stays in float."""
    model = of("""g (float[1, 4, 8, 8] x, bool c) => (float[1, 4, 8, 8] y) {
        y = If (c) <
            then_branch = yes () => (float[1, 4, 8, 8] t) { t = Conv (x, own, bias) },
            else_branch = no () => (float[1, 4, 8, 8] t) { m = Conv (x, both, bias) t = Conv (m, both, bias) }>
    }""")
    for name, values in {"own": weights(4, 4, 1, 1), "both": weights(4, 4, 1, 1, seed=1), "bias": weights(4)}.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    result = quantized(tmp_path, model, "dynamic")
    assert (result.metrics["nodes_quantized"], result.metrics["nodes_skipped_by_type"]) == (1, {"Conv": 2})
    assert_close(result, model, LEAST["dynamic"])


def test_nodes_unreached_by_static_are_counted_with_reason(tmp_path: Path) -> None:
    metrics = quantized(tmp_path, net(BRANCHES), "static").metrics
    assert metrics["nodes_quantized"] == 2
    assert metrics["nodes_skipped"] == 8
    assert {why for reasons in metrics["nodes_skipped_reasons"].values() for why in reasons} == {
        "inside of If, which static quantization does not reach"
    }
    assert metrics["nodes_skipped_by_type"]["MatMul"] == 2


def test_static_refuses_model_with_all_nodes_in_branches(tmp_path: Path) -> None:
    model = net(
        f"""agraph ({X} x, bool c) => ({X} y) {{ y = If (c) <
        then_branch = yes () => ({X} t) {{ t = MatMul (x, inner) }},
        else_branch = no () => ({X} e) {{ e = MatMul (x, other) }}> }}"""
    )
    with pytest.raises(StageError, match=r"2 are inside of If, Loop or Scan") as caught:
        quantized(tmp_path, model, "static")
    assert "dynamic" in caught.value.advice
    assert quantized(tmp_path, model, "dynamic").metrics["nodes_quantized"] == 2


def test_branch_node_can_be_excluded_by_name(tmp_path: Path) -> None:
    model = net(BRANCHES)
    branch = next(graph for graph in graphs_of(model.graph) if graph.name == "yes")
    branch.node[0].name = "kept"
    for mode in ("dynamic", "rtn", "fp16"):
        all_of_it = quantized(tmp_path, model, mode).metrics["nodes_quantized"]
        result = quantized(tmp_path, model, mode, nodes_to_exclude=("kept",))
        assert result.metrics["nodes_quantized"] == all_of_it - 1
        assert result.metrics["nodes_skipped_reasons"]["MatMul"] == {"excluded by quant.nodes_to_exclude": 1}
        assert_close(result, model, LEAST[mode])


FUNCTION = f"""agraph ({X} x) => ({X} y) {{ t = my.Block (x, first) y = my.Block (t, shared) }}
    <domain: "my", opset_import: ["": 17]> Block (a, w) => (b) {{ m = MatMul (a, w) b = Relu (m) }}"""


@pytest.mark.parametrize("mode", MODES)
def test_weights_read_by_functions_are_quantized(tmp_path: Path, mode: str) -> None:
    model = net(FUNCTION, '"": 17, "my": 1')
    result = quantized(tmp_path, model, mode)
    assert result.metrics["nodes_quantized"] >= 2
    assert_close(result, model, LEAST[mode])


ODD = {
    "a weight as output": f"agraph ({X} x) => ({X} y, float[{WIDTH}, {WIDTH}] first) {{ y = MatMul (x, first) }}",
    "an input as output": f"agraph ({X} x) => ({X} y, {X} x) {{ y = MatMul (x, first) }}",
    "a branch that gives a constant": f"""agraph ({X} x, bool c) => ({X} y) {{ h = MatMul (x, first) y = If (c) <
        then_branch = yes () => ({X} k) <{X} k = {{{", ".join(["0.5"] * 2 * WIDTH)}}}> {{ }},
        else_branch = no () => ({X} e) {{ e = Add (h, x) }}> }}""",
}


def sparse() -> onnx.ModelProto:
    model = net(f"agraph ({X} x) => ({X} y) {{ y = MatMul (x, sparse) }}")
    values = numpy_helper.from_array(weights(WIDTH, seed=1), "sparse")
    indices = numpy_helper.from_array(np.arange(WIDTH) * (WIDTH + 1), "places")
    model.graph.sparse_initializer.add(values=values, indices=indices, dims=[WIDTH, WIDTH])
    return model


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", [*map(net, ODD.values()), sparse()], ids=[*ODD, "a sparse weight"])
def test_unusual_constants_and_inputs_are_quantized(tmp_path: Path, model: onnx.ModelProto, mode: str) -> None:
    assert_close(quantized(tmp_path, model, mode), model, LEAST[mode])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "text",
    ["(float[2] x) => (float[2] x) { }", "(int64[4] n) => (int64[4] j) { j = Neg (n) }"],
    ids=["nodes", "floats"],
)
def test_model_without_nodes_or_floats_is_refused(tmp_path: Path, text: str, mode: str) -> None:
    with pytest.raises(StageError) as caught:
        quantized(tmp_path, of(f"g {text}"), mode)
    assert caught.value.message.startswith("The model computes nothing in float32")
    assert "fp32" in caught.value.advice


def test_node_sorting_respects_inner_graph_reads() -> None:
    model = net(BRANCHES)
    nodes = list(model.graph.node)
    shuffled = onnx.ModelProto.FromString(model.SerializeToString())
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes[::-1])
    sort_nodes(shuffled.graph)
    assert shuffled == model


BRANCH = """[look] seen = If (c) <then_branch = yes () => (float[] t) {{ t = {} }},
    else_branch = no () => (float[] e) {{ e = Identity (x) }}>"""


@pytest.mark.parametrize("read", ["Identity (n)", "MatMul (x, up)"])
def test_equalization_keeps_values_read_by_branches(tmp_path: Path, read: str) -> None:
    """What is equalized, and a matrix of what is."""
    model = outlier_model(17, after=False)
    look = of(f"look (bool c) => (float[] seen) {{ {BRANCH.format(read)} }}").graph
    for field in ("node", "input", "output"):
        getattr(model.graph, field).extend(getattr(look, field))
    data = {**rows(8), "c": np.ones(8, bool)}
    result = quantize(tmp_path, model, "static", calibrate(tmp_path, model, data, samples=8), "onnxruntime", **W8A8)
    feed = {**rows(1, seed=9), "c": np.array(True)}
    expected, found = (session(each).run(["seen"], feed)[0] for each in (model, result.path))
    # Relative to the channel: one channel is far larger than the others.
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_branch_bound_shared_with_mask_is_unchanged(tmp_path: Path) -> None:
    lowest = float(np.finfo(np.float32).min)
    branch = BRANCH.format("Clip (x, low)")
    model = of(f"g (float[1, 4] x, bool c) => (float[1, 4] y, float[1, 4] seen) {{ y = Add (x, low) {branch} }}")
    model.graph.initializer.append(numpy_helper.from_array(np.array(lowest, np.float32), "low"))
    onnx.save(model, tmp_path / "model.onnx")
    assert write_typed(tmp_path / "model.onnx", tmp_path / "float.onnx", finite=True) == 1
    made = onnx.load(tmp_path / "float.onnx")
    constants = constants_of(made)
    assert constants["low"] == np.float32(lowest)
    assert constants[made.graph.node[0].input[1]] == -50


def test_constant_read_by_branch_is_not_owned_by_a_node() -> None:
    branch = BRANCH.format("Add (x, k)")
    model = of(f"g (float[4] x, bool c) => (float[4] y, float[4] seen) <float k = {{2}}> {{ y = Mul (x, k) {branch} }}")
    model.graph.node[0].name = "scale"
    own_constants(model.graph, lambda node, position: (node.name, position))
    assert model.graph.node[0].input[1] != "k"
