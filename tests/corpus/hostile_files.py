"""Hostile graphs: everything around the layers. Open dimensions, names, metadata, and ways to store weights."""

from __future__ import annotations

import numpy as np
from netgraphs import FLOAT, INT64, Graph, Registry
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

DIMS, NAMES, STORAGE = (Registry(name) for name in ("dims", "names", "storage"))
CASES = (DIMS, NAMES, STORAGE)


def _net(g: Graph, x: str) -> str:
    return g.dense(g.add("Relu", g.dense(x, 16, 32)), 32, 8)


def _convnet(g: Graph, x: str) -> str:
    return g.conv(g.add("Relu", g.conv(x, 3, 8)), 8, 4)


# Open dimensions. The samples have a batch of 1, and for the CPU additionally one of 3.

DIMS.each(
    {
        "batch-named": lambda g: g.output(_net(g, g.input(shape=("batch", 16), real=(1, 16)))),
        "batch-n": lambda g: g.output(_net(g, g.input(shape=("N", 16), real=(1, 16)))),
        "batch-unnamed": lambda g: g.output(_net(g, g.input(shape=(None, 16), real=(1, 16)))),
        "batch-minus-one": lambda g: g.output(_net(g, g.input(shape=(-1, 16), real=(1, 16)))),
        "batch-zero": lambda g: g.output(_net(g, g.input(shape=(0, 16), real=(1, 16)))),
        "batch-question-mark": lambda g: g.output(_net(g, g.input(shape=("?", 16), real=(1, 16)))),
        "batch-paddle": lambda g: g.output(
            _convnet(g, g.input(shape=("p2o.DynamicDimension.0", 3, 8, 8), real=(1, 3, 8, 8)))
        ),
        "batch-conv": lambda g: g.output(_convnet(g, g.input(shape=("batch", 3, 8, 8), real=(1, 3, 8, 8)))),
    }
)


@DIMS.case("two-inputs-one-batch")
def _(g: Graph) -> None:
    both = [g.input(name, ("batch", 16), real=(1, 16)) for name in ("a", "b")]
    g.output(_net(g, g.add("Add", *both)))


@DIMS.case("two-inputs-two-names")
def _(g: Graph) -> None:
    both = [g.input(name, (f"{name}_batch", 16), real=(1, 16)) for name in ("a", "b")]
    g.output(_net(g, g.add("Add", *both)))


@DIMS.case("height-and-width")
def _(g: Graph) -> None:
    x = g.input(shape=("batch", 3, "height", "width"), real=(1, 3, 8, 8))
    g.export = {"shape_config": {"height": 8, "width": 8}}
    g.output(_convnet(g, x))


@DIMS.case("height-and-width-unsaid")
def _(g: Graph) -> None:
    g.output(_convnet(g, g.input(shape=("batch", 3, "height", "width"), real=(1, 3, 8, 8))))
    g.may_refuse = {"qnn": "nobody said how large height and width are"}


@DIMS.case("all-unnamed")
def _(g: Graph) -> None:
    g.output(_convnet(g, g.input(shape=(None, 3, None, None), real=(1, 3, 8, 8))))
    g.export = {"input_tensors": [{"name": "x", "shape": [1, 3, 8, 8]}]}


@DIMS.case("sequence-length")
def _(g: Graph) -> None:
    ids = g.input("ids", ("batch", "sequence"), INT64, real=(1, 6), high=32)
    g.export = {"shape_config": {"sequence": 6}}
    g.output(_net(g, g.add("Gather", g.weight(32, 16, scale=1.0), ids)))


@DIMS.case("rank-unknown")
def _(g: Graph) -> None:
    g.output(_net(g, g.input(shape=None, real=(4, 16))))
    g.export = {"input_tensors": [{"name": "x", "shape": [4, 16]}]}


@DIMS.case("output-shape-missing")
def _(g: Graph) -> None:
    g.output(_net(g, g.input(shape=("batch", 16), real=(1, 16))))
    g.edits.append(lambda model: model.graph.output[0].type.tensor_type.ClearField("shape"))


@DIMS.case("output-other-name")
def _(g: Graph) -> None:
    g.output(_net(g, g.input(shape=("batch", 16), real=(1, 16))), shape=("rows", 8))


@DIMS.case("flatten-by-shape")
def _(g: Graph) -> None:
    x = _convnet(g, g.input(shape=("batch", 3, 4, 4), real=(1, 3, 4, 4)))
    rows = g.add("Gather", g.add("Shape", x), g.const(0, np.int64))
    size = g.add("Concat", g.add("Unsqueeze", rows, g.ints(0)), g.ints(-1), axis=0)
    g.output(g.dense(g.add("Reshape", x, size), 64, 8))


@DIMS.case("batch-fixed-in-reshape")
def _(g: Graph) -> None:
    x = _convnet(g, g.input(shape=(1, 3, 4, 4)))
    g.output(g.dense(g.add("Reshape", x, g.ints(1, 64)), 64, 8))


@DIMS.case("attention-dynamic")
def _(g: Graph) -> None:
    x = g.input(shape=("batch", "tokens", 16), real=(1, 6, 16))
    g.export = {"shape_config": {"tokens": 6}}
    q, k, v = (g.dense(x, 16, 16) for _ in range(3))
    scores = g.add("Div", g.add("MatMul", q, g.add("Transpose", k, perm=[0, 2, 1])), g.const(4.0))
    g.output(g.dense(g.add("MatMul", g.add("Softmax", scores, axis=-1), v), 16, 8))


# Names.


def _rename(model: ModelProto, name: object) -> None:
    """Rename every value but the graph's own to *name* of its number, and nodes likewise."""
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    names: dict[str, str] = {}

    def named(old: str) -> str:
        if not old or old in kept:
            return old
        return names.setdefault(old, name(len(names)))  # type: ignore[operator]

    for tensor in model.graph.initializer:
        tensor.name = named(tensor.name)
    for number, node in enumerate(model.graph.node):
        node.input[:] = [named(value) for value in node.input]
        node.output[:] = [named(value) for value in node.output]
        node.name = name(number)  # type: ignore[operator]


def _renamed(name: object) -> object:
    def make(g: Graph) -> None:
        g.output(_convnet(g, g.input(shape=(1, 3, 8, 8))))
        g.edits.append(lambda model: _rename(model, name))

    return make


_NAMES = {
    "unicode": lambda number: f"слой-{number}-层-é",
    "spaces": lambda number: f"my layer {number} (copy)",
    "slashes": lambda number: f"/model.0/conv_{number}/Conv",
    "colons": lambda number: f"StatefulPartitionedCall/layer_{number}:0",
    "digits": str,
    "quotes": lambda number: f'it\'s "{number}" <b>&',
    "backslash-and-dots": lambda number: f"..\\{number}\\..",
    "pattern": lambda number: f"layer[{number}]*?",
    "very-long": lambda number: f"{'block.' * 60}{number}",
    "like-quantized": lambda number: f"x{number}_QuantizeLinear_Output",
    "like-scales": lambda number: (
        ["x_scale", "x_zero_point", "w_quantized", "x_DequantizeLinear_Output", "w_scale"][number % 5]
        + "_" * (number // 5)
    ),
    "prefixes": lambda number: "c" + "1" * number,
}
NAMES.each({name: _renamed(how) for name, how in _NAMES.items()})  # type: ignore[misc]


def _nodes_named(g: Graph, name: str) -> None:
    g.output(_convnet(g, g.input(shape=(1, 3, 8, 8))))
    g.edits.append(lambda model: [setattr(node, "name", name) for node in model.graph.node])


NAMES.case("nodes-unnamed")(lambda g: _nodes_named(g, ""))
NAMES.case("nodes-all-alike")(lambda g: _nodes_named(g, "node"))


@NAMES.case("inputs-and-outputs")
def _(g: Graph) -> None:
    x = g.input("serving default/входы:0 [1]", (4, 16))
    g.output(g.add("Identity", _net(g, x), outputs=["выход/probabilities:0 (soft max)"]))


@NAMES.case("input-like-file")
def _(g: Graph) -> None:
    g.output(g.add("Identity", _net(g, g.input("file", (4, 16))), outputs=["../out"]))


@NAMES.case("node-named-like-value")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    g.output(g.add("MatMul", x, g.weight(16, 8, name="w"), outputs=["y"], named="y"))
    g.edits.append(lambda model: setattr(model.graph, "name", "y"))


# Metadata of a file, and storage of its weights.


@STORAGE.case("metadata")
def _(g: Graph) -> None:
    g.output(_net(g, g.input(shape=(4, 16))))

    def describe(model: ModelProto) -> None:
        model.producer_name, model.producer_version = "someone", "2.1"
        model.domain, model.model_version, model.doc_string = "com.example.nets", 7, "Says what it sees."
        model.graph.doc_string = "A graph."
        helper.set_model_props(model, {"names": "{0: 'cat', 1: 'dog'}", "stride": "32", "leer": "", "ключ": "значение"})

    g.edits.append(describe)


@STORAGE.case("metadata-conv-batch")
def _(g: Graph) -> None:
    g.output(_convnet(g, g.input(shape=("batch", 3, 8, 8), real=(1, 3, 8, 8))))
    g.edits.append(lambda model: helper.set_model_props(model, {"names": "{0: 'cat'}", "task": "detect"}))


@STORAGE.case("value-info-stale")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=("batch", 16), real=(1, 16)), 16, 16)
    g.output(g.dense(g.add("Relu", x), 16, 8))
    info = [helper.make_tensor_value_info(x, FLOAT, (8, 16)), helper.make_tensor_value_info("gone", FLOAT, (1,))]
    g.edits.append(lambda model: model.graph.value_info.extend(info))


@STORAGE.case("value-info-unnamed")
def _(g: Graph) -> None:
    g.output(_net(g, g.input(shape=(4, 16))))
    g.edits.append(lambda model: model.graph.value_info.append(ValueInfoProto(name="relu_5")))


@STORAGE.case("external-data")
def _(g: Graph) -> None:
    g.output(_convnet(g, g.input(shape=(1, 3, 8, 8))))
    g.external = True


@STORAGE.case("external-data-batch")
def _(g: Graph) -> None:
    g.output(_net(g, g.input(shape=("batch", 16), real=(1, 16))))
    g.external = True


@STORAGE.case("floats-not-raw")
def _(g: Graph) -> None:
    g.output(_net(g, g.input(shape=(4, 16))))

    def unpack(model: ModelProto) -> None:
        for tensor in model.graph.initializer:
            values = numpy_helper.to_array(tensor)
            tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, values.shape, values.ravel()))

    g.edits.append(unpack)


@STORAGE.case("sparse-initializer", 13)
def _(g: Graph) -> None:
    values = g.random.standard_normal(20).astype(np.float32)
    places = np.sort(g.random.choice(16 * 8, 20, replace=False)).astype(np.int64)
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(values, "w"), numpy_helper.from_array(places, "w_indices"), [16, 8]
    )
    g.output(g.add("MatMul", g.input(shape=(4, 16)), "w"))
    g.edits.append(lambda model: model.graph.sparse_initializer.append(sparse))


@STORAGE.case("constant-nodes")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))

    def constant(*shape: int) -> str:
        values = (g.random.standard_normal(shape) * 0.25).astype(np.float32)
        return str(g.add("Constant", value=numpy_helper.from_array(values, "value")))

    x = g.add("Relu", g.add("Add", g.add("MatMul", x, constant(16, 16)), constant(16)))
    g.output(g.add("Gemm", x, constant(8, 16), constant(1, 8), transB=1))


@STORAGE.case("constant-forms")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 8)
    x = g.add("Mul", x, g.add("Constant", value_float=0.5))
    x = g.add("Add", x, g.add("Constant", value_floats=[0.1] * 8))
    x = g.add("Reshape", x, g.add("Constant", value_ints=[8, 4]))
    x = g.add("Gather", x, g.add("Constant", value_int=1), axis=0)
    g.output(g.add("Add", x, g.add("Cast", g.add("Constant", value_int=2), to=FLOAT)))


@STORAGE.case("constant-sparse", 13)
def _(g: Graph) -> None:
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.ones(4, np.float32), "s"),
        numpy_helper.from_array(np.array([0, 17, 34, 51], np.int64), "s_indices"),
        [16, 8],
    )
    g.output(g.add("MatMul", g.input(shape=(4, 16)), g.add("Constant", sparse_value=sparse)))


@STORAGE.case("conv-by-constant-nodes", 11)
def _(g: Graph) -> None:
    x = g.input(shape=(1, 3, 8, 8))
    for outer, inner in ((8, 3), (4, 8)):
        weights = (g.random.standard_normal((outer, inner, 3, 3)) * 0.2).astype(np.float32)
        bias = np.zeros(outer, np.float32)
        made = [g.add("Constant", value=numpy_helper.from_array(array)) for array in (weights, bias)]
        x = g.add("Relu", g.add("Conv", x, *made, pads=[1, 1, 1, 1]))
    g.output(x)


@STORAGE.case("unused-domains")
def _(g: Graph) -> None:
    g.output(_net(g, g.input(shape=(4, 16))))
    g.domains = {"com.microsoft": 1, "ai.onnx.ml": 3, "never.heard.of": 1}


@STORAGE.case("default-domain-by-name")
def _(g: Graph) -> None:
    x = g.dense(g.input(shape=(4, 16)), 16, 16)
    g.output(g.dense(g.add("Relu", x, domain="ai.onnx"), 16, 8))
    g.domains = {}


@STORAGE.case("graph-unnamed")
def _(g: Graph) -> None:
    g.output(_net(g, g.input(shape=(4, 16))))
    g.edits.append(lambda model: setattr(model.graph, "name", ""))


@STORAGE.case("doc-strings-on-nodes")
def _(g: Graph) -> None:
    g.output(_net(g, g.input(shape=(4, 16))))
    g.edits.append(lambda model: [setattr(node, "doc_string", "File net.py, line 3") for node in model.graph.node])


@STORAGE.case("weights-float16-cast")
def _(g: Graph) -> None:
    x = g.input(shape=(4, 16))
    for inner, outer in ((16, 32), (32, 8)):
        half = g.const(g.random.standard_normal((inner, outer)) * 0.2, np.float16)
        x = g.add("MatMul", x, g.add("Cast", half, to=FLOAT))
    g.output(x)


@STORAGE.case("weights-bfloat16-cast", 13)
def _(g: Graph) -> None:
    values = g.random.standard_normal(16 * 8).astype(np.float32)
    g.initializers.append(helper.make_tensor("b16", TensorProto.BFLOAT16, [16, 8], values))
    g.output(g.add("MatMul", g.input(shape=(4, 16)), g.add("Cast", "b16", to=FLOAT)))
