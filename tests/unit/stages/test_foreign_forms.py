"""Float models from other tools: in any form, the quantized model computes the same as the float model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from ep_stage_runs import compile_config, requires_qnn, run_stage
from onnx import TensorProto, helper, numpy_helper
from optimize_samples import optimize
from quantization_samples import Result, calibrate, model_of, quantize, run_model, weights

from winml_dag.errors import StageError
from winml_dag.stages.normalize.forms import normalize_forms
from winml_dag.stages.quantize import modes as soundness
from winml_dag.stages.validate import VALIDATE

Nodes = list[onnx.NodeProto]
PRECISIONS = {"w8a8": ("uint8", "uint8"), "w8a16": ("uint8", "uint16"), "w16a16": ("int16", "uint16")}
ROWS, WIDTH, COLUMNS = 4, 16, 12


def feeds_of(model: onnx.ModelProto, count: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Return random inputs as calibrate makes them: between 0 and 1."""
    random = np.random.default_rng(seed)
    return [
        {
            value.name: random.random([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32)
            for value in model.graph.input
        }
        for _ in range(count)
    ]


def loaded(path: Path, *, optimized: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def static(folder: Path, model: onnx.ModelProto, precision: str, rules: str = "onnxruntime", **fields: Any) -> Result:
    weight_type, activation_type = PRECISIONS[precision]
    ranges = calibrate(folder, model, samples=32)
    types = {"weight_type": weight_type, "activation_type": activation_type, "per_channel": True}
    return quantize(folder, model, "static", ranges, rules, **{**types, **fields})


def sqnr(folder: Path, model: onnx.ModelProto, result: Result) -> float:
    """Return the SQNR of the worst output in dB, at the worse of the two graph optimization levels."""
    onnx.save(model, folder / "float.onnx")
    reference = loaded(folder / "float.onnx", optimized=False)
    worst = np.inf
    for optimized in (False, True):
        session = loaded(result.path, optimized=optimized)
        runs = [(reference.run(None, feed), session.run(None, feed)) for feed in feeds_of(model, 8, 1)]
        for index in range(len(reference.get_outputs())):
            expected, found = (np.array([run[which][index] for run in runs], np.float64) for which in (0, 1))
            noise = np.square(expected - found).sum()
            worst = min(worst, 10 * np.log10(np.square(expected).sum() / max(noise, 1e-30)))
    return float(worst)


def validated_on_qnn(folder: Path, model: onnx.ModelProto, result: Result) -> str:
    """Return why validate fails on QNN; empty if it passes."""
    onnx.save(model, folder / "float.onnx")
    target = compile_config()["compile"]
    config = {
        "validate": {"min_cosine": 0.99, "min_sqnr_db": 25.0},
        "target": {name: target[name] for name in ("execution_provider", "device", "provider_options")},
    }
    files = {"model": {"model.onnx": result.path}, "reference": {"float.onnx": folder / "float.onnx"}}
    return run_stage(VALIDATE, folder / "validate", config, files).error


def network(
    nodes: Nodes, shape: list[int], outputs: Mapping[str, list[int]], opset: int = 21, **constants: np.ndarray
) -> onnx.ModelProto:
    return model_of(nodes, {"x": (TensorProto.FLOAT, shape)}, outputs, constants, opset)


def gemm(bias: np.ndarray, **attributes: Any) -> onnx.ModelProto:
    weight = weights(COLUMNS, WIDTH) if attributes.get("transB") else weights(WIDTH, COLUMNS)
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "gemm", **attributes)]
    shape = [WIDTH, ROWS] if attributes.get("transA") else [ROWS, WIDTH]
    return network(nodes, shape, {"y": [ROWS, COLUMNS]}, w=weight, b=bias)


def convolutions(opset: int = 21) -> onnx.ModelProto:
    """Return convolutions, two of which share a bias; values between them have the names that onnxruntime gives to
    copies.
    """
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["b0"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["b0"], ["b1"], "sigmoid"),
        helper.make_node("Conv", ["b1", "v", "b"], ["y"], "second", pads=[1, 1, 1, 1]),
    ]
    constants = {"w": weights(4, 4, 3, 3), "v": weights(4, 4, 3, 3, seed=1), "b": weights(4)}
    return network(nodes, [1, 4, 8, 8], {"y": [1, 4, 8, 8]}, opset, **constants)


def clamped(op_type: str, *bounds: float) -> onnx.ModelProto:
    """Return a model with a graph output that also feeds *op_type*."""
    names = ["low", "high"][: len(bounds)]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node(op_type, ["m", *names], ["r"], "clamp"),
    ]
    constants = {name: np.array(bound, np.float32) for name, bound in zip(names, bounds, strict=True)}
    shape = [ROWS, COLUMNS]
    return network(nodes, [ROWS, WIDTH], {"m": shape, "r": shape}, w=weights(WIDTH, COLUMNS), **constants)


def clipped(*bounds: float) -> onnx.ModelProto:
    model = clamped("Clip", *bounds)
    del model.graph.output[0]
    return model


def named_as_if_derived() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "x_scale"], ["x_zero_point"], "matmul"),
        helper.make_node("Relu", ["x_zero_point"], ["x_QuantizeLinear_Output"], "x_QuantizeLinear"),
        helper.make_node("MatMul", ["x_QuantizeLinear_Output", "w"], ["y"], "x_DequantizeLinear"),
        helper.make_node("Sigmoid", ["y"], ["y_scale"], "sigmoid"),
    ]
    outputs = {"y": [ROWS, 8], "y_scale": [ROWS, 8]}
    return network(nodes, [ROWS, WIDTH], outputs, x_scale=weights(WIDTH, COLUMNS), w=weights(COLUMNS, 8))


def handed_through() -> onnx.ModelProto:
    """Return a model whose outputs include an input and a weight unchanged."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "matmul")]
    outputs = {"x": [ROWS, WIDTH], "y": [ROWS, COLUMNS], "w": [WIDTH, COLUMNS]}
    return network(nodes, [ROWS, WIDTH], outputs, w=weights(WIDTH, COLUMNS))


def matmul(left: list[int], right: list[int], *, constant: int) -> onnx.ModelProto:
    names = ["x", "w"] if constant else ["w", "x"]
    shapes = [left, right]
    result = np.matmul(np.ones(left), np.ones(right)).shape
    nodes = [helper.make_node("MatMul", names, ["y"], "matmul")]
    return network(nodes, shapes[1 - constant], {"y": list(result)}, w=weights(*shapes[constant]))


def constant_nodes() -> onnx.ModelProto:
    def constant(name: str, values: np.ndarray) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values))

    nodes = [
        constant("w", weights(WIDTH, COLUMNS)),
        constant("v", weights(COLUMNS, COLUMNS)),
        constant("b", weights(COLUMNS)),
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Identity", ["b"], ["same"]),
        helper.make_node("Gemm", ["h", "v", "same"], ["y"]),
    ]
    return network(nodes, [ROWS, WIDTH], {"y": [ROWS, COLUMNS]})


def transposed_twice() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], "first"),
        helper.make_node("Gemm", ["h", "w", "b"], ["y"], "second", transB=1),
    ]
    return network(nodes, [ROWS, WIDTH], {"y": [ROWS, WIDTH]}, w=weights(WIDTH, WIDTH), b=weights(WIDTH))


def weight_and_operand() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("Add", ["m", "w"], ["y"], "add"),
    ]
    return network(nodes, [WIDTH, WIDTH], {"y": [WIDTH, WIDTH]}, w=weights(WIDTH, WIDTH))


def grouped_transpose() -> onnx.ModelProto:
    nodes = [helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], "grow", group=2)]
    return network(nodes, [1, 4, 8, 8], {"y": [1, 6, 10, 10]}, w=weights(4, 3, 3, 3), b=weights(6))


def computed_bias() -> onnx.ModelProto:
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv")]
    model = network(nodes, [1, 4, 8, 8], {"y": [1, 4, 6, 6]}, w=weights(4, 4, 3, 3))
    model.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [4]))
    return model


def large_bias() -> onnx.ModelProto:
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv")]
    constants = {"w": weights(4, 4, 3, 3) * np.float32(1e-6), "b": weights(4, seed=1) * 10}
    return network(nodes, [1, 4, 8, 8], {"y": [1, 4, 6, 6]}, **constants)


def bias_of_nothing() -> onnx.ModelProto:
    """Return a model that adds the bias to a value that is 0 on all samples."""
    nodes = [
        helper.make_node("Mul", ["x", "zero"], ["z"], "mul"),
        helper.make_node("Gemm", ["z", "w", "b"], ["y"], "gemm"),
    ]
    constants = {"zero": np.zeros(1, np.float32), "w": weights(WIDTH, COLUMNS), "b": weights(COLUMNS) * 0.05}
    return network(nodes, [ROWS, WIDTH], {"y": [ROWS, COLUMNS]}, **constants)


def tiny(*factors: float) -> onnx.ModelProto:
    """Return two products with weights scaled by *factors*."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "first"),
        helper.make_node("MatMul", ["m", "v"], ["y"], "second"),
    ]
    w, v = (weights(WIDTH, WIDTH, seed=seed) * np.float32(factor) for seed, factor in enumerate(factors))
    return network(nodes, [ROWS, WIDTH], {"y": [ROWS, WIDTH]}, w=w, v=v)


def without_elements() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("Slice", ["m", "none", "none"], ["e"], "nothing"),
        helper.make_node("Relu", ["e"], ["r"], "relu"),
        helper.make_node("Concat", ["m", "r"], ["y"], "concat", axis=0),
    ]
    constants = {"w": weights(WIDTH, COLUMNS), "none": np.array([0])}
    return network(nodes, [ROWS, WIDTH], {"y": [ROWS, COLUMNS]}, **constants)


def read_in_a_branch(read: str) -> onnx.ModelProto:
    """Return a model whose subgraph reads *read*: what otherwise only a Relu reads ("m"), or its output ("r")."""
    shape = [ROWS, COLUMNS]
    branches = {
        name: helper.make_graph(
            [helper.make_node(op_type, [read], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
        )
        for name, op_type in (("then", "Neg"), ("else", "Abs"))
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("Relu", ["m"], ["r"], "relu"),
        helper.make_node("ReduceMax", ["x"], ["top"], "top", keepdims=0),
        helper.make_node("Less", ["top", "limit"], ["condition"], "less"),
        helper.make_node("If", ["condition"], ["q"], "if", then_branch=branches["then"], else_branch=branches["else"]),
    ]
    constants = {"w": weights(WIDTH, COLUMNS), "limit": np.array(0.5, np.float32)}
    return network(nodes, [ROWS, WIDTH], {"r": shape, "q": shape} if read == "m" else {"q": shape}, **constants)


BIASES = {
    "row": weights(1, COLUMNS, seed=1),
    "number": np.array(0.7, np.float32),
    "one": np.array([0.7], np.float32),
    "column": weights(ROWS, 1, seed=1),
    "matrix": weights(ROWS, COLUMNS, seed=1),
    "vector": weights(COLUMNS, seed=1),
}
FORMS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    **{f"bias that is a {name}": lambda bias=bias: gemm(bias) for name, bias in BIASES.items() if name != "vector"},
    **{
        f"scaled bias that is a {name}": lambda bias=bias: gemm(bias, alpha=0.5, beta=2.0, transA=1, transB=1)
        for name, bias in BIASES.items()
    },
    "bias that does not count": lambda: gemm(weights(COLUMNS), beta=0.0),
    "shared bias": convolutions,
    "weight transposed by one of two": transposed_twice,
    "weight that is an operand too": weight_and_operand,
    "output that feeds Relu": lambda: clamped("Relu"),
    "output that feeds Clip": lambda: clamped("Clip", 0.0, 0.3),
    "branch that reads what Relu does": lambda: read_in_a_branch("m"),
    "branch that reads what Relu makes": lambda: read_in_a_branch("r"),
    "Clip above zero": lambda: clipped(0.3, 0.9),
    "Clip below zero": lambda: clipped(-0.9, -0.3),
    "names as of derived values": named_as_if_derived,
    "outputs that no node makes": handed_through,
    "matrix on the left": lambda: matmul([COLUMNS, WIDTH], [WIDTH, ROWS], constant=0),
    "stack of matrices": lambda: matmul([2, ROWS, WIDTH], [2, WIDTH, COLUMNS], constant=1),
    "transposed convolution in groups": grouped_transpose,
    "computed bias": computed_bias,
    "bias beyond int32": large_bias,
    "bias of what is always zero": bias_of_nothing,
    "tiny values between": lambda: tiny(1e-6, 1e6),
    "tiny weights": lambda: tiny(1e6, 1e-6),
    "no elements": without_elements,
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("form", FORMS)
def test_any_form_gives_what_the_float_model_does(tmp_path: Path, form: str, precision: str) -> None:
    model = FORMS[form]()
    assert sqnr(tmp_path, model, static(tmp_path, model, precision)) > 25


@pytest.mark.parametrize(
    "form",
    [
        *("bias that is a row", "shared bias", "names as of derived values", "Clip above zero", "bias beyond int32"),
        *("tiny weights", "tiny values between"),
    ],
)
def test_any_form_does_by_the_rules_for_qnn(tmp_path: Path, form: str) -> None:
    model = FORMS[form]()
    assert sqnr(tmp_path, model, static(tmp_path, model, "w8a8", "qnn")) > 25


@pytest.mark.parametrize("mode", ["dynamic", "fp16"])
@pytest.mark.parametrize("form", ["bias that is a matrix", "names as of derived values", "outputs that no node makes"])
def test_any_form_does_without_ranges(tmp_path: Path, form: str, mode: str) -> None:
    model = FORMS[form]()
    assert sqnr(tmp_path, model, quantize(tmp_path, model, mode)) > 25


@pytest.mark.parametrize("bias", ["row", "matrix"])
def test_what_optimize_fuses_is_quantized(tmp_path: Path, bias: str) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("Add", ["m", "b"], ["y"], "add"),
    ]
    shape = {"y": [ROWS, COLUMNS]}
    model = network(nodes, [ROWS, WIDTH], shape, w=weights(WIDTH, COLUMNS), b=BIASES[bias])
    optimized = optimize(tmp_path / "optimize", model)
    assert optimized.ops["Gemm"] == 1
    assert sqnr(tmp_path, model, static(tmp_path, optimized.model, "w8a16")) > 25


def test_a_vector_is_made_of_what_is_equal_to_one(tmp_path: Path) -> None:
    """No additional nodes where the bias can stay in the Gemm."""
    assert "Add" not in static(tmp_path, gemm(BIASES["row"]), "w8a8").op_types()
    assert "Add" in static(tmp_path, gemm(BIASES["column"]), "w8a8").op_types()


def test_constants_that_are_nodes_are_weights_and_biases(tmp_path: Path) -> None:
    """onnxruntime treats the output of a node as an activation, with its type and one scale."""
    model = constant_nodes()
    result = static(tmp_path, model, "w8a16")
    assert result.metrics["weights_by_type"] == {"uint8": 2}
    assert sqnr(tmp_path, model, result) > 25


def test_the_normal_form_stays_as_it_is(tmp_path: Path) -> None:
    for make in (*FORMS.values(), constant_nodes):
        model = onnx.shape_inference.infer_shapes(make())
        normalize_forms(model, tmp_path / "model.onnx", to_integers=True)
        onnx.checker.check_model(model)
        model = onnx.shape_inference.infer_shapes(model)
        before = model.SerializeToString(deterministic=True)
        assert not normalize_forms(model, tmp_path / "model.onnx", to_integers=True)
        assert model.SerializeToString(deterministic=True) == before


def averaged(opset: int, *, by: str, keepdims: int, squared: bool, count: float = 512) -> onnx.ModelProto:
    """Return rows divided by their root mean square; the sum exceeds float16 before the division."""
    axes_are_input = opset >= (18 if squared else 13)
    sum_type = "ReduceSumSquare" if squared else "ReduceSum"
    reduce = helper.make_node(sum_type, ["large" if squared else "squares"], ["sum"], "sum", keepdims=keepdims)
    if axes_are_input:
        reduce.input.append("axes")
    else:
        reduce.attribute.append(helper.make_attribute("axes", [-1]))
    factor = 1 / count if by == "Mul" else count
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["large"], "enlarge"),
        helper.make_node("Mul", ["large", "large"], ["squares"], "square"),
        reduce,
        helper.make_node(by, ["sum", "factor"], ["mean"], "divide"),
        helper.make_node("Sqrt", ["mean"], ["y"], "root"),
    ]
    constants = {"k": np.array(100, np.float32), "factor": np.array(factor, np.float32)}
    if axes_are_input:
        constants["axes"] = np.array([-1])
    return network(nodes, [ROWS, 512], {"y": [ROWS, 1][: 1 + keepdims]}, opset, **constants)


@pytest.mark.parametrize(
    ("opset", "by", "keepdims", "squared"),
    [(12, "Mul", 1, False), (17, "Div", 0, False), (17, "Mul", 1, True), (21, "Div", 1, True), (21, "Mul", 0, False)],
)
def test_a_sum_that_is_divided_does_not_overflow_float16(
    tmp_path: Path, opset: int, by: str, keepdims: int, squared: bool
) -> None:
    model = averaged(opset, by=by, keepdims=keepdims, squared=squared)
    result = quantize(tmp_path, model, "fp16")
    assert "ReduceMean" in result.op_types()
    assert sqnr(tmp_path, model, result) > 50


def test_a_sum_divided_by_something_else_is_left(tmp_path: Path) -> None:
    model = onnx.shape_inference.infer_shapes(averaged(17, by="Mul", keepdims=1, squared=False, count=511))
    assert not normalize_forms(model, tmp_path / "model.onnx", to_integers=True)


@requires_qnn
@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
@pytest.mark.parametrize("largest", [0.1, 2.0])
def test_qnn_scales_reciprocals_right(tmp_path: Path, largest: float, precision: str) -> None:
    """QNN's own Reciprocal scales everything down by *largest* where that is below 1."""
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["h"], "shrink"),
        helper.make_node("Add", ["h", "o"], ["p"], "lift"),
        helper.make_node("Reciprocal", ["p"], ["y"], "reciprocal"),
    ]
    constants = {"k": np.array(largest / 2, np.float32), "o": np.array(largest / 2, np.float32)}
    model = network(nodes, [1, 32], {"y": [1, 32]}, **constants)
    assert validated_on_qnn(tmp_path, model, static(tmp_path, model, precision, "qnn")) == ""


@requires_qnn
@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
def test_qnn_takes_slopes_for_each_channel(tmp_path: Path, precision: str) -> None:
    """In 16 bits it supports them only after a Conv."""
    nodes = [
        helper.make_node("Sub", ["x", "half"], ["h"], "shift"),
        helper.make_node("PRelu", ["h", "slopes"], ["y"], "prelu"),
    ]
    constants = {"half": np.array(0.5, np.float32), "slopes": weights(4, 1, 1)}
    model = network(nodes, [1, 4, 8, 8], {"y": [1, 4, 8, 8]}, **constants)
    assert validated_on_qnn(tmp_path, model, static(tmp_path, model, precision, "qnn")) == ""


def test_reciprocals_that_are_excluded_stay(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"], "sigmoid"),
        helper.make_node("Reciprocal", ["s"], ["y"], "reciprocal"),
    ]
    model = network(nodes, [1, 32], {"y": [1, 32]})
    assert "Div" in static(tmp_path, model, "w8a8", "qnn").op_types()
    assert "Div" not in static(tmp_path, model, "w8a8", "qnn", nodes_to_exclude=("reciprocal",)).op_types()


def integers_only() -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["i", "a"], ["j"], "add")]
    model = model_of(nodes, {"i": (TensorProto.INT64, [4])}, {"j": [4]}, {"a": np.arange(4)})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    return model


def test_a_model_without_floats_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="computes nothing in float32") as caught:
        calibrate(tmp_path, integers_only())
    assert "fp32" in caught.value.advice
    for mode in ("dynamic", "fp16", "rtn"):
        with pytest.raises(StageError, match="computes nothing in float32"):
            quantize(tmp_path, integers_only(), mode)


def test_numbers_are_inputs_and_outputs(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("ReduceMean", ["m"], ["y"], "mean", keepdims=0),
    ]
    model = network(nodes, [ROWS, WIDTH], {"y": []}, w=weights(WIDTH, COLUMNS))
    for precision in PRECISIONS:
        for method in ("minmax", "entropy", "percentile"):
            weight_type, activation_type = PRECISIONS[precision]
            ranges = calibrate(tmp_path, model, samples=16, calibration_method=method)
            types = {"weight_type": weight_type, "activation_type": activation_type}
            quantize(tmp_path, model, "static", ranges, "onnxruntime", **types)


def test_a_value_of_unknown_rank_is_not_taken_for_a_number(tmp_path: Path) -> None:
    """onnxruntime knows the output types of its own operators, but not always the shapes."""
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", scale=[0.5] * WIDTH, offset=[0.1] * WIDTH),
        helper.make_node("MatMul", ["s", "w"], ["y"], "matmul"),
    ]
    model = network(nodes, [ROWS, WIDTH], {"y": [ROWS, COLUMNS]}, w=weights(WIDTH, COLUMNS))
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    assert sqnr(tmp_path, model, static(tmp_path, model, "w8a8")) > 30


def test_a_constant_without_numbers_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("Where", ["c", "m", "n"], ["y"], "where"),
    ]
    constants = {"w": weights(WIDTH, COLUMNS), "c": np.ones((1, 1), bool), "n": np.full((1, COLUMNS), np.nan, "f")}
    model = network(nodes, [ROWS, WIDTH], {"y": [ROWS, COLUMNS]}, **constants)
    with pytest.raises(StageError, match=r"'n' has values that are not a number"):
        static(tmp_path, model, "w8a8")


def test_a_model_may_put_out_a_sequence(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("SplitToSequence", ["m"], ["y"], "split", axis=0),
    ]
    model = network(nodes, [ROWS, WIDTH], {"y": [1]}, w=weights(WIDTH, COLUMNS))
    of_float = helper.make_tensor_type_proto(TensorProto.FLOAT, [1, COLUMNS])
    model.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(of_float))
    assert static(tmp_path, model, "w8a8").metrics["nodes_quantized"]


def lstm(*, twice: bool = False) -> onnx.ModelProto:
    nodes = [helper.make_node("LSTM", ["x", "w", "r", "b"], ["h"], "lstm", hidden_size=6)]
    if twice:
        nodes += [
            helper.make_node("Squeeze", ["h", "axes"], ["s"], "squeeze"),
            helper.make_node("LSTM", ["s", "w", "r", "b"], ["g"], "second", hidden_size=6),
        ]
    constants = {"w": weights(1, 24, 6), "r": weights(1, 24, 6, seed=1), "b": weights(1, 48, seed=2)}
    if twice:
        constants["axes"] = np.array([1])
    return network(nodes, [5, 2, 6], {"g" if twice else "h": [5, 1, 2, 6]}, **constants)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("twice", [False, True])
def test_lstm_has_weights_of_eight_bits(tmp_path: Path, twice: bool, per_channel: bool) -> None:
    """Their only type is int8; onnxruntime transposes weights in place, even if another LSTM reads them."""
    model = lstm(twice=twice)
    result = quantize(tmp_path, model, "dynamic", per_channel=per_channel)
    assert result.op_types().count("DynamicQuantizeLSTM") == 1 + twice
    assert result.metrics["weights_by_type"] == {"int8": 2 * (1 + twice)}
    assert sqnr(tmp_path, model, result) > 25


def test_what_dynamic_has_no_form_for_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("GRU", ["x", "w", "r"], ["h"], "gru", hidden_size=6)]
    model = network(nodes, [5, 2, 6], {"h": [5, 1, 2, 6]}, w=weights(1, 18, 6), r=weights(1, 18, 6, seed=1))
    with pytest.raises(StageError, match="computes with GRU") as caught:
        quantize(tmp_path, model, "dynamic")
    assert "LSTM" in caught.value.message


@pytest.mark.parametrize("opset", [10, 11, 12])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_old_opsets_have_a_scale_for_each_channel(tmp_path: Path, precision: str, opset: int) -> None:
    model = convolutions(opset)
    result = static(tmp_path, model, precision)
    assert {node.domain for node in result.model.graph.node if "Linear" in node.op_type} == {"com.microsoft"}
    assert sqnr(tmp_path, model, result) > 25


def test_opsets_without_integers_are_refused_in_a_sentence(tmp_path: Path) -> None:
    model = convolutions(9)
    with pytest.raises(StageError, match="opset 9") as caught:
        static(tmp_path, model, "w8a8")
    assert "17" in caught.value.advice
    assert sqnr(tmp_path, model, quantize(tmp_path, model, "dynamic")) > 25


@pytest.mark.parametrize("op_type", ["Relu", "MaxPool", "Transpose"])
def test_excluding_what_lies_between_quantized_nodes_is_told(tmp_path: Path, op_type: str) -> None:
    attributes = {"MaxPool": {"kernel_shape": [1, 1]}, "Transpose": {"perm": [0, 1, 3, 2]}}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["m"], "first"),
        helper.make_node(op_type, ["m"], ["r"], "between", **attributes.get(op_type, {})),
        helper.make_node("Conv", ["r", "w"], ["y"], "second"),
    ]
    model = network(nodes, [1, 1, 8, 8], {"y": [1, 1, 8, 8]}, w=weights(1, 1, 1, 1))
    metrics = static(tmp_path, model, "w8a8", op_types_to_exclude=(op_type,)).metrics
    ((reason, count),) = metrics["nodes_skipped_reasons"][op_type].items()
    assert "op_types_to_exclude" in reason
    assert "between Q and DQ" in reason
    assert count == 1


def test_what_graph_optimizations_change_is_an_error(tmp_path: Path) -> None:
    """Two models simulate two forms of one: the second is what a wrong fusion would make of the first."""
    model = gemm(weights(COLUMNS))
    onnx.save(model, tmp_path / "float.onnx")
    (feed,) = feeds_of(model, 1, 0)
    right = run_model(tmp_path / "float.onnx", feed)
    reference = soundness._Float(tmp_path / "float.onnx", feed)
    soundness._compare(right, [right[0] * 1.05], reference, "the model", ["y"])
    with pytest.raises(StageError, match="change output 'y' of the model by 30%"):
        soundness._compare(right, [right[0] * 1.3], reference, "the model", ["y"])


@pytest.mark.parametrize("shape", [(COLUMNS, 1), (1, COLUMNS)])
def test_a_model_that_runs_in_one_form_only_is_an_error(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A scale per column of a bias that is a row: QGemm ignores it, DequantizeLinear fails."""
    model = gemm(weights(COLUMNS))
    onnx.save(model, tmp_path / "float.onnx")
    result = static(tmp_path, model, "w8a8")
    soundness.check_sound(result.path, tmp_path / "float.onnx", "the quantized model", optimized=True)
    broken = result.model
    for tensor in broken.graph.initializer:
        if tensor.data_type == TensorProto.INT32 and len(tensor.dims) == 1:
            tensor.dims[:] = shape
    onnx.save(broken, tmp_path / "broken.onnx")
    with pytest.raises(StageError, match=r"does not run it|cannot load"):
        soundness.check_sound(tmp_path / "broken.onnx", tmp_path / "float.onnx", "the quantized model", optimized=True)
