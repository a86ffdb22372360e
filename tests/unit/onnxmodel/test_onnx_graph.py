from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.errors import InputError
from winml_dag.onnxmodel.graph import Graph, Node, Value
from winml_dag.onnxmodel.graphfile import read_model


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "model.onnx"


# A model's IR version and opset; its graph follows.
START = b"\x08\x0a\x42\x02\x10\x15\x3a"


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _varint(value: int) -> bytes:
    groups = []
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _assert_same_nodes(found: tuple[Node, ...], expected: object) -> None:
    assert [(n.op_type, n.domain, n.name, n.inputs, n.outputs) for n in found] == [
        (n.op_type, n.domain, n.name, tuple(n.input), tuple(n.output)) for n in expected
    ]
    for node, proto in zip(found, expected, strict=True):
        assert [a.name for a in node.attributes] == [a.name for a in proto.attribute]
        for attribute, other in zip(node.attributes, proto.attribute, strict=True):
            if other.type == onnx.AttributeProto.INT:
                assert attribute.integer == other.i
            elif other.type == onnx.AttributeProto.STRING:
                assert attribute.content == other.s
            elif other.type == onnx.AttributeProto.TENSOR:
                assert [(t.name, t.dims) for t in attribute.tensors] == [(other.t.name, tuple(other.t.dims))]
            elif other.type == onnx.AttributeProto.GRAPH:
                _assert_same_graph(attribute.graphs[0], other.g)


def _assert_same_graph(found: Graph, expected: onnx.GraphProto) -> None:
    _assert_same_nodes(found.nodes, expected.node)
    dense = found.initializers[: len(expected.initializer)]
    assert [(t.name, t.data_type, t.dims) for t in dense] == [
        (t.name, t.data_type, tuple(t.dims)) for t in expected.initializer
    ]
    for values, protos in ((found.inputs, expected.input), (found.outputs, expected.output)):
        assert list(values) == [_value(proto) for proto in protos]


def _value(proto: onnx.ValueInfoProto) -> Value:
    tensor = proto.type.tensor_type
    if not tensor.HasField("shape"):
        return Value(proto.name, tensor.elem_type, None)
    dims = tensor.shape.dim
    sizes = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in dims)
    return Value(proto.name, tensor.elem_type, sizes)


def test_parsed_models_match_protobuf(onnx_test_models: list[Path]) -> None:
    for path in onnx_test_models:
        expected = onnx.load(path, load_external_data=False)
        found = read_model(path)
        assert found.ir_version == expected.ir_version
        assert found.opsets == {opset.domain: opset.version for opset in expected.opset_import}
        _assert_same_graph(found.graph, expected.graph)


def test_subgraphs_functions_sparse_weights_and_metadata_are_parsed(branching: onnx.ModelProto, scratch: Path) -> None:
    found = read_model(_write(scratch, branching.SerializeToString()))
    _assert_same_graph(found.graph, branching.graph)
    _assert_same_nodes(found.functions[0].nodes, branching.functions[0].node)
    assert (found.functions[0].domain, found.functions[0].name) == ("own", "Twice")
    assert [tensor.name for tensor in found.graph.initializers] == ["sparse", "sparse_at"]
    assert found.metadata == {"host": "my-laptop", "winml.note": "kept"}
    assert found.producer == "hand 1"


@pytest.mark.skipif(sys.platform == "win32", reason="a file with a hole needs a special call on Windows")
def test_tensor_data_is_not_read(scratch: Path) -> None:
    """64 GiB of weights, as a sparse file: reading them would take minutes, or more memory than available."""
    payload = 2**36
    head = onnx.TensorProto(name="huge", data_type=1, dims=[2**34]).SerializeToString() + b"\x4a" + _varint(payload)
    initializer = b"\x2a" + _varint(len(head) + payload) + head
    name = b"\x12" + _varint(5) + b"graph"
    start = START + _varint(len(initializer) + payload + len(name)) + initializer
    try:
        with scratch.open("wb") as file:
            file.write(start)
            file.truncate(len(start) + payload)
            file.seek(0, 2)
            file.write(name)
    except OSError:
        pytest.skip("the file system has no files of this size")
    graph = read_model(scratch).graph
    scratch.unlink()
    assert graph.name == "graph"
    assert [tensor.stored_bytes for tensor in graph.initializers] == [payload]


def test_truncated_model_is_refused_or_valid_for_protobuf(branching: onnx.ModelProto, scratch: Path) -> None:
    content = branching.SerializeToString()
    accepted = 0
    for length in range(0, len(content), 5):
        try:
            found = read_model(_write(scratch, content[:length]))
        except InputError:
            continue
        accepted += 1
        _assert_same_graph(found.graph, onnx.ModelProto.FromString(content[:length]).graph)
    # Only the ends of complete fields after the graph: metadata, functions, operator sets.
    assert accepted < 10


@settings(max_examples=80)
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=8))
def test_flipped_bytes_give_a_model_or_an_input_error(scratch: Path, flips: list[tuple[float, int]]) -> None:
    content = bytearray(_everything())
    for where, bits in flips:
        content[int(where * len(content))] ^= bits
    _read_or_input_error(_write(scratch, bytes(content)))


@settings(max_examples=40)
@given(content=st.binary(max_size=300))
def test_random_bytes_give_a_model_or_an_input_error(scratch: Path, content: bytes) -> None:
    _read_or_input_error(_write(scratch, content))
    _read_or_input_error(_write(scratch, START + _sized(content)))


def _read_or_input_error(path: Path) -> None:
    try:
        read_model(path)
    except InputError as error:
        assert path.name in str(error)  # noqa: PT017  (both ways are right)


def _everything() -> bytes:
    """Return a model with every message type that the reader handles."""
    value = onnx.helper.make_tensor_value_info("x", 1, [1, "n", None])
    tensor = onnx.helper.make_tensor("w", 1, [3], [1.0, 2.0, 3.0])
    external = onnx.TensorProto(name="e", data_type=1, dims=[2], data_location=1)
    external.external_data.add(key="location", value="model.data")
    inner = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["z"])], "inner", [], [value])
    node = onnx.helper.make_node("If", ["c"], ["y"], then_branch=inner, text="abc", number=-1, many=[1, 2], t=tensor)
    graph = onnx.helper.make_graph([node], "g", [value], [value], [tensor, external])
    model = onnx.helper.make_model(graph, producer_name="p")
    model.metadata_props.add(key="k", value="v")
    return model.SerializeToString()


def test_packed_and_unpacked_dimensions_are_parsed(scratch: Path) -> None:
    packed, unpacked = b"\x0a\x02\x03\x04", b"\x08\x03\x08\x04"
    for dims in (packed, unpacked):
        content = START + _sized(b"\x2a" + _sized(dims + b"\x10\x01"))
        assert read_model(_write(scratch, content)).graph.initializers[0].dims == (3, 4)


def test_invalid_model_is_refused(scratch: Path, tmp_path: Path) -> None:
    graph = b""
    for _ in range(2000):  # nested without end
        graph = b"\x0a" + _sized(b"\x2a" + _sized(b"\x32" + _sized(graph)))
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12345\n"
    for content in (START + _sized(graph), pointer):
        with pytest.raises(InputError, match="not an ONNX model"):
            read_model(_write(scratch, content))
    with pytest.raises(InputError, match="does not exist"):
        read_model(tmp_path / "none.onnx")
    with pytest.raises(InputError, match=tmp_path.name):
        read_model(tmp_path)
