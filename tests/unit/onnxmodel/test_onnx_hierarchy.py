"""Nodes keep the tag of their module through any optimization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from winml_dag.onnxmodel.files import save_model
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.metadata import canonicalise, carry_tags, set_tags, tag_of

Step = tuple[str, Sequence[str], str]  # operator, inputs, output


def model_of(*steps: Step) -> onnx.ModelProto:
    nodes = [helper.make_node(op, list(reads), [makes], name=f"node_{makes}") for op, reads, makes in steps]
    values = [helper.make_tensor_value_info(name, 1, [1]) for name in ("x", steps[-1][2])]
    return helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:]))


def tags_after(before: onnx.ModelProto, tags: Mapping[str, str], *after: Step) -> dict[str, str]:
    set_tags(before, tags)
    made = model_of(*after)
    count = carry_tags(before, made)
    found = {node.output[0]: tag_of(node) for node in made.graph.node}
    assert count == sum(map(bool, found.values()))
    return found


LINEAR = (("MatMul", "xw", "product"), ("Add", ["product", "b"], "sum"), ("Relu", ["sum"], "y"))
TAGS = {"node_product": "/A/Linear", "node_sum": "/A/Linear", "node_y": "/A"}


def test_fused_node_gets_the_tag_of_the_last_replaced_node() -> None:
    assert tags_after(model_of(*LINEAR), TAGS, ("Gemm", "xwb", "sum"), ("Relu", ["sum"], "y")) == {
        "sum": "/A/Linear",
        "y": "/A",
    }


def test_new_nodes_get_the_tag_of_their_reader() -> None:
    around = (("Reshape", ["x"], "flat"), ("Gemm", ["flat", "w", "b"], "long"), ("Reshape", ["long"], "sum"))
    found = tags_after(model_of(*LINEAR), TAGS, *around, ("Relu", ["sum"], "y"))
    assert found == {"flat": "/A/Linear", "long": "/A/Linear", "sum": "/A/Linear", "y": "/A"}


def test_new_node_gets_the_tag_of_its_weights() -> None:
    before = model_of(*LINEAR)
    before.graph.initializer.append(helper.make_tensor("w", 1, [1], [1.0]))
    assert tags_after(before, TAGS, ("Gemm", "xwb", "new"), ("Relu", ["new"], "y")) == {"new": "/A/Linear", "y": "/A"}


def test_new_node_with_two_readers_gets_their_common_parent() -> None:
    before = (("Abs", ["x"], "one"), ("Neg", ["x"], "two"), ("Add", ["one", "two"], "y"))
    tags = {"node_one": "/A/B/One", "node_two": "/A/B/Two", "node_y": "/A"}
    after = (("Cast", ["x"], "z"), ("Abs", ["z"], "one"), ("Neg", ["z"], "two"), before[2])
    assert tags_after(model_of(*before), tags, *after)["z"] == "/A/B"


def test_new_node_without_tagged_reader_has_no_tag() -> None:
    assert tags_after(model_of(*LINEAR), {"node_sum": "/A"}, ("Gemm", "xwb", "sum"), ("Neg", ["sum"], "new")) == {
        "sum": "/A",
        "new": "",
    }


@given(st.dictionaries(st.sampled_from([f"node_{name}" for name in ("product", "sum", "y")]), st.just("/A/B")))
def test_unchanged_model_keeps_its_tags(tags: dict[str, str]) -> None:
    model = model_of(*LINEAR)
    set_tags(model, tags)
    same = onnx.ModelProto()
    same.CopyFrom(model)
    for node in same.graph.node:
        node.ClearField("metadata_props")
    carry_tags(model, same)
    kept = {node.name: tag_of(node) for node in same.graph.node}
    assert {name: kept[name] for name in tags} == tags


def test_canonical_file_keeps_tags_and_drops_other_metadata(tmp_path: Path) -> None:
    model = model_of(*LINEAR)
    set_tags(model, TAGS)
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="somewhere.py")
    canonicalise(model)
    save_model(model, tmp_path / "model.onnx")
    entries = {p.key: p.value for p in onnx.load(tmp_path / "model.onnx").graph.node[0].metadata_props}
    assert entries == {"winml.hierarchy.tag": "/A/Linear", "winml.hierarchy.depth": "2"}
    assert [node.tag for node in read_model(tmp_path / "model.onnx").graph.nodes] == ["/A/Linear", "/A/Linear", "/A"]
