from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from export_models import Exported, exported_once, random_model
from optimize_samples import optimize

from winml_dag.onnxmodel.metadata import tag_of
from winml_dag.stages.export import ExportFields


def classifier(model_type: str = "bert", *, dynamo: bool = False, **fields: Any) -> Exported:
    task = "text-classification" if model_type == "bert" else "image-classification"
    return exported_once(random_model(model_type, task), ExportFields(dynamo=dynamo, **fields))


def branches(module: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield module
    for child in module["children"].values():
        yield from branches(child)


LAYER = "/BertForSequenceClassification/BertModel/BertEncoder/BertLayer.1"


@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nodes_carry_the_module_that_they_come_from(dynamo: bool) -> None:
    exported = classifier(dynamo=dynamo)
    graph = onnx.load(exported.model).graph
    tags: dict[str, str] = exported.hierarchy["nodes"]
    softmaxes = [tags[node.name] for node in graph.node if node.op_type == "Softmax"]
    attention = "{}/BertAttention/BertSelfAttention"
    assert softmaxes == [attention.format(layer) for layer in (LAYER.replace("r.1", "r.0"), LAYER)]
    # Every linear layer multiplies by its own weights, so its tag must be on a MatMul or Gemm.
    linear = [each["traced_tag"] for each in branches(exported.hierarchy["modules"]) if each["class_name"] == "Linear"]
    products = {tags.get(node.name) for node in graph.node if node.op_type in ("MatMul", "Gemm")}
    assert set(linear) <= products


@pytest.mark.parametrize("model_type", ["bert", "resnet"])
def test_statistics_are_those_of_the_file(model_type: str) -> None:
    exported = classifier(model_type)
    names = [node.name for node in onnx.load(exported.model).graph.node]
    nodes, statistics = exported.hierarchy["nodes"], exported.hierarchy["statistics"]
    assert len(set(names)) == len(names) == statistics["onnx_nodes"] == exported.metrics["nodes"]
    assert set(nodes) <= set(names)
    assert statistics["tagged_nodes"] == len(nodes)
    assert statistics["empty_tags"] == len(names) - len(nodes)
    assert statistics["coverage_percentage"] == round(100 * len(nodes) / len(names), 2) > 80


def test_the_model_itself_has_the_tags_and_keeps_them_when_it_is_optimized(tmp_path: Path) -> None:
    exported = classifier()
    model = onnx.load(exported.model)
    tags = {node.name: tag for node in model.graph.node if (tag := tag_of(node))}
    assert tags == exported.hierarchy["nodes"]
    assert exported.hierarchy["export_context"]["embed_hierarchy_attributes"]
    optimized = optimize(tmp_path / "optimized", model, "gelu_fusion", "matmul_add_fusion")
    assert optimized.ops["Gemm"] > 0
    assert optimized.metrics["tagged_nodes"] == len(optimized.model.graph.node)
    products = {tag_of(node) for node in optimized.model.graph.node if node.op_type == "Gemm"}
    linear = {each["traced_tag"] for each in branches(exported.hierarchy["modules"]) if each["class_name"] == "Linear"}
    assert products == linear


def test_a_clean_model_has_no_tags_and_tags_can_be_the_module_only() -> None:
    exported = classifier(clean_onnx=True, hierarchy_tag_format="module_only")
    assert not any(node.metadata_props for node in onnx.load(exported.model).graph.node)
    assert not exported.hierarchy["export_context"]["embed_hierarchy_attributes"]
    tags = exported.hierarchy["nodes"].values()
    assert "BertLayer.1" in tags or "BertSelfAttention" in tags
    assert not any("/" in tag for tag in tags)


def test_a_sequential_container_is_seen_through() -> None:
    tags = classifier("resnet").hierarchy["nodes"]
    assert any(tag.endswith("/Sequential/Linear.1") for tag in tags.values())


def test_the_tree_has_every_module_in_the_order_of_its_call() -> None:
    hierarchy = classifier().hierarchy
    modules = list(branches(hierarchy["modules"]))
    assert hierarchy["modules"]["execution_order"] == 0
    assert len(modules) == hierarchy["model"]["total_modules"]
    called = [module["execution_order"] for module in modules if module["execution_order"] is not None]
    assert sorted(called) == list(range(hierarchy["tracing"]["modules_traced"]))
    assert {each["scope"] for each in modules} >= {"", "bert.encoder.layer.1.attention.self.query", "classifier"}


def test_tags_can_be_left_out() -> None:
    hierarchy = classifier("resnet", enable_hierarchy_tags=False).hierarchy
    assert hierarchy["nodes"] == {}
    assert hierarchy["statistics"]["coverage_percentage"] == 0


def test_the_file_names_no_time_and_no_place() -> None:
    exported = classifier()
    hierarchy, scratch = exported.hierarchy, exported.model.parents[2]
    assert (scratch / "outputs").is_dir()
    assert hierarchy["export_context"]["timestamp"] is None
    assert hierarchy["model"]["name_or_path"] == "bert/BertForSequenceClassification"
    assert str(scratch) not in str(hierarchy)
