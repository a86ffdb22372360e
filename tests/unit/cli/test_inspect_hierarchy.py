"""``winml-dag inspect --hierarchy`` shows the modules that nodes come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

from winml_dag.onnxmodel.metadata import set_tags

LAYERS = 3


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A list of layers with two nodes each, and a head without a known module."""
    nodes, tags, last = [], {}, "x"
    for layer in range(LAYERS):
        for op, module in (("Relu", "Linear"), ("Abs", "Act")):
            name = f"{op}_{layer}"
            nodes.append(helper.make_node(op, [last], [name], name=name))
            tags[name] = f"/Net/Layer.{layer}/{module}"
            last = name
    nodes.append(helper.make_node("Neg", [last], ["y"], name="head"))
    values = [helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
    made = helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:]))
    set_tags(made, tags)
    onnx.save(made, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture
def shown(says) -> Callable[[Path], list[str]]:
    return lambda path: says("inspect", path, "--hierarchy").splitlines()


def test_identical_layers_are_collapsed(model: Path, shown) -> None:
    assert shown(model) == [
        f"{model}: 6 of 7 nodes say which module they come from",
        "Net                            6",
        "  Layer.0 to 2, 3 alike, each  2",
        "    Linear                     1  Relu 1",
        "    Act                        1  Abs 1",
    ]


def test_differing_layer_prevents_collapsing(model: Path, shown) -> None:
    changed = onnx.load(model)
    changed.graph.node[2].op_type = "Exp"
    onnx.save(changed, model)
    assert [line.split()[0] for line in shown(model.parent) if "Layer" in line] == ["Layer.0", "Layer.1", "Layer.2"]


def test_json_lists_every_module(model: Path, tells) -> None:
    value = tells("inspect", model, "--hierarchy")
    assert (value["nodes"], value["tagged_nodes"]) == (7, 6)
    assert [layer["name"] for layer in value["modules"][0]["children"]] == ["Layer.0", "Layer.1", "Layer.2"]


def test_compiled_model_shows_hierarchy_of_its_source(model: Path, shown) -> None:
    model.rename(model.with_name("optimized.onnx"))
    context = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", ep_cache_context=b"1", embed_mode=1)
    values = [helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
    onnx.save(helper.make_model(helper.make_graph([context], "g", values[:1], values[1:])), model)
    assert shown(model.parent)[0].startswith(str(model.with_name("optimized.onnx")))


def test_ambiguous_model_folder_is_refused(model: Path, shown, says) -> None:
    folder = model.parent
    model.rename(folder / "encoder_model.onnx")
    assert shown(folder)[0].startswith(str(folder / "encoder_model.onnx"))
    (folder / "decoder_model.onnx").write_bytes((folder / "encoder_model.onnx").read_bytes())
    assert "several models: decoder_model" in says("inspect", folder, "-H", code=3)


def test_file_without_hierarchy_is_refused(model: Path, tmp_path: Path, says) -> None:
    bare = onnx.load(model)
    set_tags(bare, {})
    onnx.save(bare, model)
    (tmp_path / "other.json").write_text("{}")
    assert "does not say which modules of a PyTorch model" in says("inspect", model, "-H", code=3)
    assert "is not an export_htp_metadata.json: it has no nodes" in says(
        "inspect", tmp_path / "other.json", "-H", code=3
    )
    assert "does not exist" in says("inspect", tmp_path / "none.onnx", "-H", code=3)
