"""Messages for exceptions of onnxruntime, onnx, numpy and Python: real failures, each produced here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from winml_dag.explanation import explanation

RAW = re.compile(
    r"ONNXRuntimeError|onnxruntime_src|::|\.(?:cc|h|cpp):\d|\b\w+(?:Error|Exception|Fault)\b|<class|Errno"
    r"|Load model from|Non-zero status|Status Message|Exception during|was false|\n|Traceback|\.\.\.$"
)

Feeds = Mapping[str, Any]


def value(name: str, shape: Sequence[int | str] | None, kind: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op_type: str, inputs: str, outputs: str, name: str = "it", **attributes: Any) -> NodeProto:
    named = [("" if each == "-" else each) for each in inputs.split()]
    return helper.make_node(op_type, named, outputs.split(), name=name, **attributes)


WEIGHT = numpy_helper.from_array(np.ones((4, 3), np.float32), "W")
X, Y = value("x", [1, 4]), value("y", [1, 4])
ANY = value("y", None)
INTEGER = TensorProto.INT64


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto] = (X,),
    outputs: Sequence[ValueInfoProto] = (Y,),
    constants: Sequence[TensorProto] = (),
    *,
    opset: int = 17,
    ir_version: int = 8,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def constant(name: str, *numbers: int) -> TensorProto:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def external(location: str) -> onnx.ModelProto:
    made = model([node("MatMul", "x W", "y")], constants=[WEIGHT], outputs=[ANY])
    weight = made.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    return made


def branching() -> onnx.ModelProto:
    reading = helper.make_graph([node("Gather", "W i", "a", "inner")], "then", [], [value("a", None)])
    other = helper.make_graph([node("Identity", "W", "b")], "else", [], [value("b", None)])
    return model(
        [node("If", "c", "y", then_branch=reading, else_branch=other)],
        [value("c", [], TensorProto.BOOL), value("i", ["n"], INTEGER)],
        [ANY],
        [WEIGHT],
    )


def half_a_weight() -> onnx.ModelProto:
    made = model([node("MatMul", "x W", "y")], constants=[WEIGHT], outputs=[ANY])
    made.graph.initializer[0].raw_data = b"1234"
    return made


INVALID = {
    "duplicate definition": (model([node("Relu", "x", "y", "a"), node("Relu", "x", "y", "b")]), "name (y)"),
    "duplicate node": (model([node("Relu", "x", "t"), node("Relu", "t", "y")]), "same node name (it)"),
    "wrong types": (model([node("Add", "x i", "y")], [X, value("i", [1, 4], INTEGER)]), "tensor(int64) in node (it)"),
    "missing initializer": (model([node("MatMul", "x W", "y")]), "Node input 'W' is not"),
    "missing output": (model([node("Relu", "x", "t")]), "Graph output (y) does not exist"),
    "unknown opset": (model([node("Relu", "x", "y")], opset=99), "Opset 99 is under development"),
    "unknown IR": (model([node("Relu", "x", "y")], ir_version=99), "model IR version: 99, max supported"),
    "unknown operator": (model([node("Foo", "x", "y")]), "Foo node 'it': No Op registered for Foo"),
    "unknown custom operator": (
        model([node("Foo", "x", "y", domain="my.ops")], domains=["my.ops"]),
        "my.ops:Foo(-1) is not a registered function/op",
    ),
    "unknown domain": (model([node("Foo", "x", "y", domain="my.ops")]), "No opset import for domain 'my.ops'"),
    "unknown attribute": (model([node("Relu", "x", "y", foo=3)]), "Relu node 'it': Unrecognized attribute: foo"),
    "node without a name": (model([node("Relu", "x", "y", "", foo=3)]), "Relu node without a name: Unrecognized"),
    "shapes": (model([node("MatMul", "x W", "y")], [value("x", [1, 5])], constants=[WEIGHT]), "MatMul node 'it': Inc"),
    "axis": (model([node("Softmax", "x", "y", axis=7)]), "Softmax node 'it': 'axis' must be in [-2 , 1]"),
    "cycle": (model([node("Add", "x t", "y", "a"), node("Relu", "y", "t", "b")]), "the graph is not acyclic"),
    "type of Cast": (model([node("Cast", "x", "y", to=77)]), "Cast node 'it': Attribute to does not specify"),
    "mode of Pad": (
        model([node("Pad", "x p", "y", mode="odd")], [X, value("p", ["k"], INTEGER)], [ANY]),
        "Invalid 'mode' attribute value",
    ),
    "mode of Resize": (
        model([node("Resize", "x - s", "y", mode="odd")], [X, value("s", ["k"])], [ANY]),
        "mode attribute is odd. It can only be nearest(default) or linear or cubic",
    ),
    "external data": (external("nowhere.bin"), "initializer: W. External data path does not exist"),
    "short external data": (external("short.bin"), "Deserialize tensor W failed. External initializer: W offset: 0"),
    "half a weight": (half_a_weight(), "Deserialize tensor W failed. source and destination"),
}


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


@pytest.mark.parametrize("name", INVALID)
def test_what_onnxruntime_says_of_a_model_that_it_cannot_load(name: str, tmp_path: Path) -> None:
    made, informative = INVALID[name]
    assert informative in told(lambda: session(made, tmp_path))


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


def index(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


N, NM = ["n"], ["n", "m"]
RUNS: Mapping[str, tuple[onnx.ModelProto, Feeds, str]] = {
    "Gather": (
        model([node("Gather", "W i", "y")], [value("i", N, INTEGER)], [ANY], [WEIGHT]),
        {"i": index(9)},
        "Gather node 'it': indices element out of data bounds, idx=9 must be within the inclusive range [-4,3]",
    ),
    "Gather inside of If": (
        branching(),
        {"c": np.array(True), "i": index(77)},
        "If node 'it': Gather node 'inner': indices element out of data bounds, idx=77",
    ),
    "Reshape": (
        model([node("Reshape", "x s", "y")], [value("x", N)], [ANY], [constant("s", 2, 3)]),
        {"x": ones(5)},
        "Reshape node 'it': The input tensor cannot be reshaped to the requested shape. Input shape:{5}",
    ),
    "Add": (
        model([node("Add", "x z", "y")], [value("x", N), value("z", ["k"])], [ANY]),
        {"x": ones(5), "z": ones(3)},
        "Add node 'it': Attempting to broadcast an axis by a dimension other than 1. 3 by 5",
    ),
    "MatMul": (
        model([node("MatMul", "x W", "y")], [value("x", NM)], [ANY], [WEIGHT]),
        {"x": ones(1, 7)},
        "MatMul node 'it': MatMul dimension mismatch",
    ),
    "Concat": (
        model([node("Concat", "x z", "y", axis=0)], [value("x", NM), value("z", ["a", "b"])], [ANY]),
        {"x": ones(1, 3), "z": ones(1, 4)},
        "Concat node 'it': Non concat axis dimensions must match: Axis 1 has mismatched dimensions of 4 and 3",
    ),
    "TopK": (
        model([node("TopK", "x k", "y i")], [value("x", N), value("k", [1], INTEGER)], [ANY]),
        {"x": ones(3), "k": index(9)},
        "TopK node 'it': k argument [9] should not be greater",
    ),
    "ConstantOfShape": (
        model([node("ConstantOfShape", "x", "y")], [value("x", N, INTEGER)], [ANY]),
        {"x": index(-3)},
        "ConstantOfShape node 'it': Tensor shape.Size() must be >= 0",
    ),
    "DequantizeLinear": (
        model(
            [node("DequantizeLinear", "q s z", "y", axis=0)],
            [value("q", NM, TensorProto.UINT8), value("s", ["k"]), value("z", ["k"], TensorProto.UINT8)],
            [ANY],
        ),
        {"q": np.ones((2, 3), np.uint8), "s": ones(5), "z": np.ones(5, np.uint8)},
        "DequantizeLinear node 'it': For per axis quantization, scale must be 1D tensor with size 2",
    ),
    "memory": (
        model([node("Expand", "x d", "y")], [value("x", N), value("d", ["r"], INTEGER)], [ANY]),
        {"x": ones(1), "d": index(2**40)},
        "Expand node 'it': Failed to allocate memory for requested buffer",
    ),
    "shape of an input": (model([node("Relu", "x", "y")]), {"x": ones(2, 4)}, "input: x for the following indices"),
    "rank of an input": (model([node("Relu", "x", "y")]), {"x": ones(4)}, "Invalid rank for input: x Got: 1 Exp"),
    "type of an input": (model([node("Relu", "x", "y")]), {"x": index(1)}, "Unexpected input data type. Actual"),
    "no array": (model([node("Relu", "x", "y")]), {"x": np.float32(1)}, "Unable to handle object of type float32"),
    "no input": (model([node("Relu", "x", "y")]), {}, "Required inputs (['x']) are missing"),
    "None": (model([node("Relu", "x", "y")]), {"x": None}, "Relu node 'it': Missing Input: x"),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_onnxruntime_says_of_a_model_that_does_not_run(name: str, tmp_path: Path) -> None:
    made, feeds, informative = RUNS[name]
    loaded = session(made, tmp_path)
    assert informative in told(lambda: loaded.run(None, dict(feeds)))


def check(name: str) -> None:
    onnx.checker.check_model(INVALID[name][0], full_check=True)


OTHERS: Mapping[str, tuple[Callable[[], object], str]] = {
    "checker": (lambda: check("missing initializer"), "input 'W' of node: name: it OpType: MatMul is not output of"),
    "checker's context": (lambda: check("unknown attribute"), "Relu node 'it': Unrecognized attribute: foo"),
    "shape inference": (lambda: check("shapes"), "MatMul node 'it': Incompatible dimensions for matrix multipl"),
    "version converter": (
        lambda: onnx.version_converter.convert_version(branching(), 3),
        "No Adapter",
    ),
    "protobuf": (lambda: onnx.load_model_from_string(b"no model"), "Error parsing message with type 'onnx.ModelProto'"),
    "provider's library": (
        lambda: ort.register_execution_provider_library("Foo", "/nowhere.so"),
        "Failed to load library /nowhere.so",
    ),
    "numpy": (lambda: ones(3) + ones(4), "operands could not be broadcast together with shapes (3,) (4,)"),
    "file": (lambda: Path("/nowhere/it").read_text(), "No such file or directory"),
    "key": (lambda: {}["W"], "'W' is missing"),
    "nothing said": (lambda: (_ for _ in ()).throw(ValueError), "no reason was given"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_other_libraries_say(name: str) -> None:
    call, informative = OTHERS[name]
    assert informative in told(call)


def test_what_pytorch_says() -> None:
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
def test_a_text_loses_sources_and_codes(text: str, said: str) -> None:
    assert explanation(RuntimeError(text)) == said


def test_a_long_text_ends_with_a_sentence_or_a_word() -> None:
    sentences = explanation(RuntimeError("It is so. " * 100))
    assert sentences.removesuffix("It is so").endswith("It is so. ")
    assert 200 < len(sentences) <= 400
    words = explanation(RuntimeError("word " * 200))
    assert words.endswith("word ...")
    assert 200 < len(words) <= 404
