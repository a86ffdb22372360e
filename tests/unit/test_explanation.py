"""An error is reported in sentences, even if its text comes from onnxruntime, onnx, numpy or Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper

from winml_dag.errors import InputError, RecipeError, StageError, UsageError
from winml_dag.explanation import explanation

RAW = re.compile(
    r"ONNXRuntimeError|onnxruntime_src|::|\.(?:cc|h|cpp):\d|\b\w+(?:Error|Exception|Fault)\b|<class|Errno"
    r"|Load model from|Non-zero status|Status Message|Exception during|was false|\n|Traceback|\.\.\.$"
)
W = np.ones((4, 3), np.float32)


def model(
    body: str, inputs: str = "float[1, 4] x", y: str = "float[]", *, opset: int = 17, ir: int = 8, **constants: Any
) -> onnx.ModelProto:
    opsets = f'"": {opset}' + ', "my.ops": 1' * ("my.ops" in body)
    made = onnx.parser.parse_model(f"<ir_version: {ir}, opset_import: [{opsets}]> g ({inputs}) => ({y} y) {{ {body} }}")
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return made


def external(location: str) -> onnx.ModelProto:
    made = model("[it] y = MatMul(x, W)", W=W)
    weight = made.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    return made


def half_a_weight() -> onnx.ModelProto:
    made = model("[it] y = MatMul(x, W)", W=W)
    made.graph.initializer[0].raw_data = b"1234"
    return made


def without_import() -> onnx.ModelProto:
    made = model("[it] y = my.ops.Foo(x)")
    del made.opset_import[1]
    return made


BRANCHING = model(
    """[it] y = If(c) <then_branch = t () => (float[] a) { [inner] a = Gather(W, i) },
    else_branch = e () => (float[] b) { b = Identity(W) }>""",
    "bool c, int64[n] i",
    W=W,
)
RELU = model("[it] y = Relu(x)")
NO_WEIGHT = model("[it] y = MatMul(x, W)", y="float[1, 4]")
NO_ATTRIBUTE = model("[it] y = Relu <foo = 3> (x)", y="float[1, 4]")
SHAPES = model("[it] y = MatMul(x, W)", "float[1, 5] x", y="float[1, 4]", W=W)

INVALID = [
    (model("[a] y = Relu(x) [b] y = Relu(x)"), "name (y)"),
    (model("[it] t = Relu(x) [it] y = Relu(t)"), "same node name (it)"),
    (model("[it] y = Add(x, i)", "float[1, 4] x, int64[1, 4] i"), "tensor(int64) in node (it)"),
    (NO_WEIGHT, "Node input 'W' is not"),
    (model("[it] t = Relu(x)"), "Graph output (y) does not exist"),
    (model("[it] y = Relu(x)", opset=99), "Opset 99 is under development"),
    (model("[it] y = Relu(x)", ir=99), "model IR version: 99, max supported"),
    (model("[it] y = Foo(x)"), "Foo node 'it': No Op registered for Foo"),
    (model("[it] y = my.ops.Foo(x)"), "my.ops:Foo(-1) is not a registered function/op"),
    (without_import(), "No opset import for domain 'my.ops'"),
    (NO_ATTRIBUTE, "Relu node 'it': Unrecognized attribute: foo"),
    (model("y = Relu <foo = 3> (x)"), "Relu node without a name: Unrecognized"),
    (SHAPES, "MatMul node 'it': Inc"),
    (model("[it] y = Softmax <axis = 7> (x)"), "Softmax node 'it': 'axis' must be in [-2 , 1]"),
    (model("[a] y = Add(x, t) [b] t = Relu(y)"), "the graph is not acyclic"),
    (model("[it] y = Cast <to = 77> (x)"), "Cast node 'it': Attribute to does not specify"),
    (model('[it] y = Pad <mode = "odd"> (x, p)', "float[1, 4] x, int64[k] p"), "Invalid 'mode' attribute value"),
    (
        model('[it] y = Resize <mode = "odd"> (x, , s)', "float[1, 4] x, float[k] s"),
        "mode attribute is odd. It can only be nearest(default) or linear or cubic",
    ),
    (external("nowhere.bin"), "initializer: W. External data path does not exist"),
    (external("short.bin"), "Deserialize tensor W failed. External initializer: W offset: 0"),
    (half_a_weight(), "Deserialize tensor W failed. source and destination"),
]


def session(made: onnx.ModelProto, folder: Path) -> ort.InferenceSession:
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    (folder / "short.bin").write_bytes(b"12")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def told(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as failure:  # noqa: PT011 - whatever a library raises
        call()
    text = explanation(failure.value)
    assert RAW.search(text) is None, text
    assert text
    assert not text.endswith((".", " "))
    return text


@pytest.mark.parametrize(("made", "informative"), INVALID, ids=[informative for _, informative in INVALID])
def test_onnxruntime_load_error_becomes_one_sentence(made: onnx.ModelProto, informative: str, tmp_path: Path) -> None:
    assert informative in told(lambda: session(made, tmp_path))


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


def index(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


RUNS: list[tuple[onnx.ModelProto, Mapping[str, Any], str]] = [
    (
        model("[it] y = Gather(W, i)", "int64[n] i", W=W),
        {"i": index(9)},
        "Gather node 'it': indices element out of data bounds, idx=9 must be within the inclusive range [-4,3]",
    ),
    (
        BRANCHING,
        {"c": np.array(True), "i": index(77)},
        "If node 'it': Gather node 'inner': indices element out of data bounds, idx=77",
    ),
    (
        model("[it] y = Reshape(x, s)", "float[n] x", s=index(2, 3)),
        {"x": ones(5)},
        "Reshape node 'it': The input tensor cannot be reshaped to the requested shape. Input shape:{5}",
    ),
    (
        model("[it] y = Add(x, z)", "float[n] x, float[k] z"),
        {"x": ones(5), "z": ones(3)},
        "Add node 'it': Attempting to broadcast an axis by a dimension other than 1. 3 by 5",
    ),
    (
        model("[it] y = MatMul(x, W)", "float[n, m] x", W=W),
        {"x": ones(1, 7)},
        "MatMul node 'it': MatMul dimension mismatch",
    ),
    (
        model("[it] y = Concat <axis = 0> (x, z)", "float[n, m] x, float[a, b] z"),
        {"x": ones(1, 3), "z": ones(1, 4)},
        "Concat node 'it': Non concat axis dimensions must match: Axis 1 has mismatched dimensions of 4 and 3",
    ),
    (
        model("[it] y, i = TopK(x, k)", "float[n] x, int64[1] k"),
        {"x": ones(3), "k": index(9)},
        "TopK node 'it': k argument [9] should not be greater",
    ),
    (
        model("[it] y = ConstantOfShape(x)", "int64[n] x"),
        {"x": index(-3)},
        "ConstantOfShape node 'it': Tensor shape.Size() must be >= 0",
    ),
    (
        model("[it] y = DequantizeLinear <axis = 0> (q, s, z)", "uint8[n, m] q, float[k] s, uint8[k] z"),
        {"q": np.ones((2, 3), np.uint8), "s": ones(5), "z": np.ones(5, np.uint8)},
        "DequantizeLinear node 'it': For per axis quantization, scale must be 1D tensor with size 2",
    ),
    (
        model("[it] y = Expand(x, d)", "float[n] x, int64[r] d"),
        {"x": ones(1), "d": index(2**40)},
        "Expand node 'it': Failed to allocate memory for requested buffer",
    ),
    (RELU, {"x": ones(2, 4)}, "input: x for the following indices"),
    (RELU, {"x": ones(4)}, "Invalid rank for input: x Got: 1 Exp"),
    (RELU, {"x": index(1)}, "Unexpected input data type. Actual"),
    (RELU, {"x": np.float32(1)}, "Unable to handle object of type float32"),
    (RELU, {}, "Required inputs (['x']) are missing"),
    (RELU, {"x": None}, "Relu node 'it': Missing Input: x"),
]


@pytest.mark.parametrize(("made", "feeds", "informative"), RUNS, ids=[informative for *_, informative in RUNS])
def test_onnxruntime_run_error_becomes_one_sentence(
    made: onnx.ModelProto, feeds: Mapping[str, Any], informative: str, tmp_path: Path
) -> None:
    loaded = session(made, tmp_path)
    assert informative in told(lambda: loaded.run(None, dict(feeds)))


def check(made: onnx.ModelProto) -> None:
    onnx.checker.check_model(made, full_check=True)


OTHERS: list[tuple[Callable[[], object], str]] = [
    (lambda: check(NO_WEIGHT), "input 'W' of node: name: it OpType: MatMul is not output of"),
    (lambda: check(NO_ATTRIBUTE), "Relu node 'it': Unrecognized attribute: foo"),
    (lambda: check(SHAPES), "MatMul node 'it': Incompatible dimensions for matrix multipl"),
    (lambda: onnx.version_converter.convert_version(BRANCHING, 3), "No Adapter"),
    (lambda: onnx.load_model_from_string(b"no model"), "Error parsing message with type 'onnx.ModelProto'"),
    (lambda: ort.register_execution_provider_library("Foo", "/nowhere.so"), "Failed to load library /nowhere.so"),
    (lambda: ones(3) + ones(4), "operands could not be broadcast together with shapes (3,) (4,)"),
    (lambda: Path("/nowhere/it").read_text(), "No such file or directory"),
    (lambda: {}["W"], "'W' is missing"),
    (lambda: (_ for _ in ()).throw(ValueError), "no reason was given"),
]


@pytest.mark.parametrize(("call", "informative"), OTHERS, ids=[informative for _, informative in OTHERS])
def test_library_error_becomes_one_sentence(call: Callable[[], object], informative: str) -> None:
    assert informative in told(call)


def test_pytorch_error_becomes_one_sentence() -> None:
    torch = pytest.importorskip("torch")
    said = told(lambda: torch.ones(1, 3) @ torch.ones(4, 5))
    assert said == "mat1 and mat2 shapes cannot be multiplied (1x3 and 4x5)"


# Messages of providers and builds for other systems, which do not run everywhere.
WINDOWS = (
    r"Non-zero status code returned while running Reshape node. Name:'a/b' Status Message: "
    r"D:\a\_work\1\s\onnxruntime\core\providers\cpu\tensor\reshape_helper.h:45 onnxruntime::ReshapeHelper::Reshape "
    r"size == (requested) was false. The input tensor (5) cannot be reshaped."
)
LAMBDA = (
    "/onnxruntime_src/onnxruntime/core/x.cc:12 onnxruntime::Run(S&)::<lambda(int)> const [with T = A<b, c>; U = d]"
    " a == (b) was false. "
)
PLUGIN = (
    "/src/plugin_ep/ep_plugin_provider_interfaces.cc:71 virtual std::unique_ptr<X> Factory::Create(const Options&, "
    "const OrtLogger&) Error creating execution provider: [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : no such device"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WINDOWS, "Reshape node 'a/b': The input tensor (5) cannot be reshaped"),
        (LAMBDA, "a == (b) does not hold"),
        (PLUGIN, "Error creating execution provider: no such device"),
        ("[ONNXRuntimeError] : 11 : EP_FAIL : Unhandled exception type: 1", "Unhandled exception type: 1"),
        ("RuntimeError: \x1b[1;31mit broke\x1b[m", "it broke"),
        ("Load model from a/b.onnx:1 failed", "Load model from a/b.onnx:1 failed"),
    ],
)
def test_source_locations_and_codes_are_removed_from_error(text: str, said: str) -> None:
    assert explanation(RuntimeError(text)) == said


def test_long_error_is_cut_at_sentence_or_word() -> None:
    sentences = explanation(RuntimeError("It is so. " * 100))
    assert sentences.removesuffix("It is so").endswith("It is so. ")
    assert 200 < len(sentences) <= 400
    words = explanation(RuntimeError("word " * 200))
    assert words.endswith("word ...")
    assert 200 < len(words) <= 404


@pytest.mark.parametrize(
    ("message", "advice", "told"),
    [
        ("It cannot be read: no zip file", "Save it again.", "It cannot be read: no zip file. Save it again."),
        ("It has no 'x'", "Write it.", "It has no 'x'. Write it."),
        ("It is too large.", "Take another.", "It is too large. Take another."),
        ("It has 2 problems:", "Mend them.", "It has 2 problems: Mend them."),
        ("no zip file", "", "no zip file"),
        ("", "Look at the log.", " Look at the log."),
    ],
)
def test_advice_is_a_separate_sentence(message: str, advice: str, told: str) -> None:
    assert str(StageError(message, advice=advice)) == told


@pytest.mark.parametrize("mistake", [UsageError("two models"), RecipeError("wrong:", problems=("samples",))])
def test_usage_errors_are_value_errors(mistake: UsageError) -> None:
    assert isinstance(mistake, ValueError)
    assert not isinstance(InputError("no such file"), ValueError)
