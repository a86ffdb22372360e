"""Hostile graphs: control flow with inner weights, recurrent layers, functions, types other than float tensors."""

from __future__ import annotations

import numpy as np
from netgraphs import BOOL, FLOAT, INT32, INT64, Graph, Registry
from onnx import ModelProto, TensorProto, helper

CONTROL, RECURRENT, TYPES = (Registry(name) for name in ("control", "recurrent", "types"))
CASES = (CONTROL, RECURRENT, TYPES)

_HALF_ALREADY = dict.fromkeys(("cpu", "qnn"), "float16 is not quantized again: that takes the model in float32")
_NO_NUMBERS = dict.fromkeys(("cpu", "qnn"), "only tensors of numbers are run and compared: it builds without validate")
_DOUBLE, _HALF, _STRING = TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.STRING


def _branch(g: Graph, x: str, *, conv: bool = False) -> Graph:
    inner = g.inner()
    inner.output(inner.add("Relu", inner.conv(x, 3, 3) if conv else inner.dense(x, 16, 16)))
    return inner


def _if(g: Graph, condition: str, x: str, *, conv: bool = False) -> str:
    then, other = _branch(g, x, conv=conv), _branch(g, x, conv=conv)
    return str(g.add("If", condition, then_branch=then.proto("then"), else_branch=other.proto("else")))


@CONTROL.case("if-by-input")
def _(g: Graph) -> None:
    x, which = g.input(shape=(4, 16)), g.input("which", (), BOOL)
    g.output(g.dense(_if(g, which, x), 16, 8))


@CONTROL.case("if-by-value")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    which = g.add("Greater", g.add("ReduceSum", x, keepdims=0), g.const(0.0))
    g.output(g.dense(_if(g, which, g.dense(x, 16, 16)), 16, 8))


@CONTROL.case("if-constant")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    g.output(g.dense(_if(g, g.const(True, bool), x), 16, 8))


@CONTROL.case("if-all-of-it")
def _(g: Graph) -> None:
    x, which = g.input(shape=(1, 3, 8, 8)), g.input("which", (1,), BOOL)
    g.output(_if(g, which, x, conv=True))


@CONTROL.case("if-with-outer-weights")
def _(g: Graph) -> None:
    x, which, weight = g.input(shape=(4, 16)), g.input("which", (), BOOL), g.weight(16, 16)
    branches = [g.inner(), g.inner()]
    for inner in branches:
        inner.output(inner.add("MatMul", x, weight))
    g.output(g.add("If", which, then_branch=branches[0].proto(), else_branch=branches[1].proto()))
    g.output(g.add("MatMul", x, weight))


@CONTROL.case("if-branch-is-outer-value")
def _(g: Graph) -> None:
    x, which = g.dense(g.input(shape=(4, 16)), 16, 16), g.input("which", (), BOOL)
    then, other = g.inner(), g.inner()
    then.output(then.add("Identity", x))
    other.output(other.const(np.zeros((4, 16))))
    g.output(g.add("If", which, then_branch=then.proto(), else_branch=other.proto()))


@CONTROL.case("if-in-if")
def _(g: Graph) -> None:
    x, which, again = g.input(shape=(4, 16)), g.input("which", (), BOOL), g.input("again", (), BOOL)
    then = g.inner()
    then.output(_if(then, again, x))
    g.output(g.add("If", which, then_branch=then.proto(), else_branch=_branch(g, x).proto()))


@CONTROL.case("if-two-outputs")
def _(g: Graph) -> None:
    x, which = g.input(shape=(4, 16)), g.input("which", (), BOOL)
    branches = [g.inner(), g.inner()]
    for inner in branches:
        inner.output(inner.dense(x, 16, 4))
        inner.output(inner.add("Relu", inner.dense(x, 16, 8)))
    for output in g.add("If", which, outputs=2, then_branch=branches[0].proto(), else_branch=branches[1].proto()):
        g.output(output)


@CONTROL.case("if-shapes-differ")
def _(g: Graph) -> None:
    x, which = g.input(shape=(4, 16)), g.input("which", (), BOOL)
    then, other = g.inner(), g.inner()
    then.output(then.dense(x, 16, 4))
    other.output(other.dense(x, 16, 8))
    g.output(g.add("If", which, then_branch=then.proto(), else_branch=other.proto()))


def _loop(g: Graph, trips: str, start: str, *, scans: bool = False, within: bool = False) -> object:
    body = g.inner()
    number = body.fresh("number")
    going, state = body.fresh("going"), body.fresh("state")
    body.inputs = [
        helper.make_tensor_value_info(number, INT64, ()),
        helper.make_tensor_value_info(going, BOOL, ()),
        helper.make_tensor_value_info(state, FLOAT, (4, 16)),
    ]
    now = body.add("Tanh", body.dense(state, 16, 16))
    if within:
        now = _if(body, body.add("Equal", number, body.const(1, np.int64)), now)
    body.output(body.add("Identity", going), BOOL, ())
    body.output(now, shape=(4, 16))
    if scans:
        body.output(body.add("ReduceMean", now, axes=[1], keepdims=0), shape=(4,))
    return g.add("Loop", trips, "", start, outputs=2 if scans else 1, body=body.proto("body"))


@CONTROL.case("loop")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    g.output(g.dense(str(_loop(g, g.const(3, np.int64), x)), 16, 8))


@CONTROL.case("loop-scan-outputs")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    last, all_of_them = _loop(g, g.const(3, np.int64), x, scans=True)  # type: ignore[misc]
    g.output(last)
    g.output(all_of_them)


@CONTROL.case("loop-by-input")
def _(g: Graph) -> None:
    x, trips = g.input(shape=(4, 16)), g.input("trips", (), INT64, low=1, high=4)
    g.output(g.dense(str(_loop(g, trips, x)), 16, 8))


@CONTROL.case("loop-no-trips")
def _(g: Graph) -> None:
    g.output(str(_loop(g, g.const(0, np.int64), g.dense(g.input(shape=(4, 16)), 16, 16))))


@CONTROL.case("loop-with-if")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    g.output(g.dense(str(_loop(g, g.const(3, np.int64), x, within=True)), 16, 8))


@CONTROL.case("loop-with-if-opset-11", 11)
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    g.output(g.dense(str(_loop(g, g.const(3, np.int64), x, within=True)), 16, 8))


@CONTROL.case("scan")
def _(g: Graph) -> None:
    x = g.input(shape=(5, 4, 16))
    body = g.inner()
    state, item = body.fresh("state"), body.fresh("item")
    body.inputs = [helper.make_tensor_value_info(name, FLOAT, (4, 16)) for name in (state, item)]
    now = body.add("Tanh", body.add("Add", body.dense(state, 16, 16), body.dense(item, 16, 16)))
    body.output(now, shape=(4, 16))
    body.output(body.add("Identity", now), shape=(4, 16))
    start = g.const(np.zeros((4, 16)))
    last, items = g.add("Scan", start, x, outputs=2, body=body.proto("body"), num_scan_inputs=1)
    g.output(g.dense(last, 16, 8))
    g.output(items)


def _function(g: Graph, *, nested: bool = False) -> None:
    x = g.input(shape=(4, 16))
    hidden = g.add("Layer", x, g.weight(16, 16), g.weight(16, scale=0.1), domain="local.layers")
    g.output(g.dense(hidden, 16, 8))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local.layers", 1)]
    inner = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Add", ["y", "b"], ["z"])]
    act = helper.make_function(
        "local.layers", "Act", ["z"], ["a"], [helper.make_node("Relu", ["z"], ["a"])], opsets, []
    )
    domain, op = ("local.layers", "Act") if nested else ("", "Tanh")
    last = helper.make_node(op, ["z"], ["a"], domain=domain)
    layer = helper.make_function("local.layers", "Layer", ["x", "w", "b"], ["a"], [*inner, last], opsets, [])
    g.edits.append(lambda model: model.functions.extend([act, layer] if nested else [layer]))
    g.edits.append(lambda model: setattr(model, "ir_version", 8))


CONTROL.case("local-function")(_function)
CONTROL.case("local-functions-nested")(lambda g: _function(g, nested=True))


# Recurrent layers.

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _recurrent(
    g: Graph, op: str, *, ways: int = 1, bias: bool = True, head: bool = True, start: bool = False, **more: object
) -> None:
    x, size = g.input(shape=(5, 1, 8)), 8
    rows = _GATES[op] * size
    inputs = [x, g.weight(ways, rows, 8, scale=0.3), g.weight(ways, rows, size, scale=0.3)]
    if bias or start:
        inputs.append(g.weight(ways, 2 * rows, scale=0.1) if bias else "")
    if start:
        inputs += ["", g.const(np.zeros((ways, 1, size)))]
        inputs += [g.const(np.zeros((ways, 1, size)))] if op == "LSTM" else []
    direction = "bidirectional" if ways == 2 else "forward"
    states = ["last", *(["cell"] if op == "LSTM" else [])]
    g.add(op, *inputs, outputs=["all", *states], hidden_size=size, direction=direction, **more)
    g.output(g.dense(g.add("Squeeze", "last", g.ints(0)), size, 4) if head and ways == 1 else "all")


RECURRENT.each(
    {
        "lstm": lambda g: _recurrent(g, "LSTM"),
        "lstm-alone": lambda g: _recurrent(g, "LSTM", head=False),
        "lstm-no-bias": lambda g: _recurrent(g, "LSTM", bias=False),
        "lstm-bidirectional": lambda g: _recurrent(g, "LSTM", ways=2),
        "lstm-initial-state": lambda g: _recurrent(g, "LSTM", start=True),
        "gru": lambda g: _recurrent(g, "GRU"),
        "gru-linear-before-reset": lambda g: _recurrent(g, "GRU", linear_before_reset=1),
        "gru-alone": lambda g: _recurrent(g, "GRU", head=False),
        "rnn": lambda g: _recurrent(g, "RNN"),
        "rnn-bidirectional": lambda g: _recurrent(g, "RNN", ways=2),
    }
)
RECURRENT.case("lstm-opset-9", 9)(lambda g: _recurrent(g, "LSTM", head=False))


@RECURRENT.case("lstm-between-convolutions")
def _(g: Graph) -> None:
    x = g.add("Relu", g.conv(g.input(shape=(1, 1, 8, 8)), 1, 4))
    x = g.add("Transpose", g.add("Reshape", x, g.ints(1, 32, 8)), perm=[2, 0, 1])
    g.add("LSTM", x, g.weight(1, 32, 32, scale=0.2), g.weight(1, 32, 8, scale=0.2), outputs=["all"], hidden_size=8)
    g.output(g.dense(g.add("Squeeze", "all", g.ints(1)), 8, 4))


@RECURRENT.case("lstm-state-in-and-out")
def _(g: Graph) -> None:
    x, h, c = g.input(shape=(3, 1, 8)), g.input("h", (1, 1, 8)), g.input("c", (1, 1, 8))
    weights = [g.weight(1, 32, 8, scale=0.3), g.weight(1, 32, 8, scale=0.3), g.weight(1, 64, scale=0.1)]
    g.add("LSTM", x, *weights, "", h, c, outputs=["y", "hn", "cn"], hidden_size=8)
    for name in ("y", "hn", "cn"):
        g.output(name)


# Types and ranks.


@TYPES.case("scalar-input")
def _(g: Graph) -> None:
    x, factor = g.input(shape=(4, 16)), g.input("factor", ())
    g.output(g.dense(g.add("Mul", x, factor), 16, 8))


@TYPES.case("scalars-only")
def _(g: Graph) -> None:
    g.output(g.add("Add", g.input("a", ()), g.input("b", ())))


@TYPES.case("scalar-output")
def _(g: Graph) -> None:
    g.output(g.add("ReduceMean", g.dense(g.input(shape=(4, 16)), 16, 8), keepdims=0))


@TYPES.case("zero-size-input")
def _(g: Graph) -> None:
    x, past = g.input(shape=(1, 4, 16)), g.input("past", (1, 0, 16), real=(1, 0, 16))
    g.output(g.dense(g.add("Concat", past, x, axis=1), 16, 8))


@TYPES.case("zero-size-initializer")
def _(g: Graph) -> None:
    x = g.add("Concat", g.const(np.zeros((0, 16))), g.input(shape=(4, 16)), axis=0)
    g.output(g.dense(x, 16, 8))


@TYPES.case("zero-size-output")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    g.output(x)
    g.output(g.add("Slice", x, g.ints(0), g.ints(0), g.ints(0)))


@TYPES.case("no-inputs")
def _(g: Graph) -> None:
    g.output(g.dense(g.const(g.random.standard_normal((4, 16))), 16, 8))
    g.may_refuse = dict.fromkeys(("cpu", "qnn"), "it is a constant, and computes nothing")


@TYPES.case("no-inputs-constant-node")
def _(g: Graph) -> None:
    g.output(g.add("Constant", value_floats=[1.0, 2.0, 3.0]))
    g.may_refuse = dict.fromkeys(("cpu", "qnn"), "it is a constant, and computes nothing")


@TYPES.case("int64-only")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16), kind=INT64)
    g.output(g.add("Add", g.add("Mul", x, g.const(3, np.int64)), x), INT64)


@TYPES.case("int32-only")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16), kind=INT32)
    g.output(g.add("ReduceSum", x, g.ints(1), keepdims=0), INT32)


@TYPES.case("bool-only")
def _(g: Graph) -> None:
    x, y = g.input("a", (4,), BOOL), g.input("b", (4,), BOOL)
    g.output(g.add("Or", g.add("Not", x), y), BOOL)


@TYPES.case("uint8-image")
def _(g: Graph) -> None:
    x = g.input("image", (1, 8, 8, 3), TensorProto.UINT8, high=256)
    x = g.add("Transpose", g.add("Div", g.add("Cast", x, to=FLOAT), g.const(255.0)), perm=[0, 3, 1, 2])
    g.output(g.conv(x, 3, 4))


@TYPES.case("int8-in-and-out")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16), kind=TensorProto.INT8, low=-100, high=100)
    g.output(g.add("Cast", g.dense(g.add("Cast", x, to=FLOAT), 16, 8), to=TensorProto.INT32), INT32)


@TYPES.case("float16-model")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16), kind=_HALF)
    x = g.add("MatMul", x, g.const(g.random.standard_normal((16, 8)) * 0.25, np.float16))
    g.output(g.add("Add", x, g.const(g.random.standard_normal(8), np.float16)), _HALF)
    g.may_refuse = _HALF_ALREADY


@TYPES.case("float16-in-the-midst")
def _(g: Graph) -> None:
    x = g.add("Cast", g.dense(g.input(shape=(4, 16)), 16, 16), to=_HALF)
    x = g.add("Cast", g.add("Mul", x, g.const(0.5, np.float16)), to=FLOAT)
    g.output(g.dense(x, 16, 8))
    g.may_refuse = _HALF_ALREADY


@TYPES.case("double-model")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16), kind=_DOUBLE)
    g.output(g.add("MatMul", x, g.const(g.random.standard_normal((16, 8)), np.float64)), _DOUBLE)


@TYPES.case("double-in-the-midst")
def _(g: Graph) -> None:
    x = g.add("Cast", g.dense(g.input(shape=(4, 16)), 16, 16), to=_DOUBLE)
    x = g.add("Cast", g.add("Mul", x, g.const(0.5, np.float64)), to=FLOAT)
    g.output(g.dense(x, 16, 8))


@TYPES.case("token-ids")
def _(g: Graph) -> None:
    ids, mask = g.input("input_ids", (1, 6), INT64, high=32), g.input("attention_mask", (1, 6), INT64, low=1, high=2)
    x = g.add("Gather", g.weight(32, 16, scale=1.0), ids)
    x = g.add("Mul", x, g.add("Unsqueeze", g.add("Cast", mask, to=FLOAT), g.ints(2)))
    g.output(g.dense(x, 16, 8))


@TYPES.case("reshape-by-input")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    size = g.input("size", (2,), INT64, sample=lambda *_: np.array([8, 4], np.int64))
    g.output(g.add("Reshape", x, size), shape=(None, None))


@TYPES.case("one-hot-by-input")
def _(g: Graph) -> None:
    ids = g.input("ids", (6,), INT64, high=10)
    x = g.add("OneHot", ids, g.ints(10), g.const([0.0, 1.0]))
    g.output(g.dense(x, 10, 8))


def _words(random: np.random.Generator, _batch: int) -> object:
    return random.choice(np.array(["monday", "tuesday", "sunday"]), 4)


@TYPES.case("strings", 13)
def _(g: Graph) -> None:
    words = g.input("words", (4,), _STRING, sample=_words)
    ids = g.add(
        "LabelEncoder",
        words,
        domain="ai.onnx.ml",
        keys_strings=["monday", "tuesday", "sunday"],
        values_floats=[0.5, 1.0, 2.0],
    )
    g.domains["ai.onnx.ml"] = 2
    g.output(g.dense(g.add("Reshape", ids, g.ints(4, 1)), 1, 8))
    g.may_refuse = _NO_NUMBERS


@TYPES.case("strings-out", 13)
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 3)
    g.output(x)
    best = g.add("ArgMax", x, axis=1, keepdims=0)
    label = g.add(
        "LabelEncoder", best, domain="ai.onnx.ml", keys_int64s=[0, 1, 2], values_strings=["cat", "dog", "owl"]
    )
    g.domains["ai.onnx.ml"] = 2
    g.output(label, _STRING)
    g.may_refuse = _NO_NUMBERS


@TYPES.case("sequence-inside")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    parts = g.add("SplitToSequence", x, axis=0)
    g.output(g.add("ConcatFromSequence", parts, axis=1), shape=(1, 32))


def _sequence(model: ModelProto, at: str) -> None:
    values = model.graph.input if at == "in" else model.graph.output
    tensor = helper.make_tensor_type_proto(FLOAT, (4, 16) if at == "in" else None)
    values[0].CopyFrom(helper.make_value_info(values[0].name, helper.make_sequence_type_proto(tensor)))


@TYPES.case("sequence-output")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    g.output(g.add("SplitToSequence", x, axis=0))
    g.edits.append(lambda model: _sequence(model, "out"))
    g.may_refuse = _NO_NUMBERS


@TYPES.case("sequence-input")
def _(g: Graph) -> None:
    items = g.input("items", (4, 16), sample=lambda random, _: [_normal(random, 4, 16), _normal(random, 4, 16)])
    g.output(g.dense(g.add("ConcatFromSequence", items, axis=0), 16, 8), shape=(None, 8))
    g.edits.append(lambda model: _sequence(model, "in"))
    g.may_refuse = _NO_NUMBERS


def _normal(random: np.random.Generator, *shape: int) -> object:
    return random.standard_normal(shape).astype(np.float32)


@TYPES.case("rank-0-to-6")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 2, 1, 2, 2, 4))
    x = g.add("Add", g.add("Relu", x), g.const(0.25))
    g.output(g.dense(g.add("Reshape", x, g.ints(4, 8)), 8, 4))


@TYPES.case("complex-free-dft")
def _(g: Graph) -> None:
    x = g.input(shape=(1, 16, 1))
    g.output(g.add("DFT", x, g.const(16, np.int64), axis=1))
