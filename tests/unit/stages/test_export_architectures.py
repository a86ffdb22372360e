"""Every architecture in the recipes exports, with the inputs and outputs named there, and computes the same as PyTorch.

The stage itself compares the two on three inputs, and fails when they differ.
"""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
from export_architectures import ARCHITECTURES, Architecture, picture
from export_models import Bench, random_model

from winml_dag.stages.export import ExportFields, InputTensor, RandomWeights


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
def test_every_architecture_of_recipes_exports(bench: Bench, architecture: Architecture) -> None:
    exported = bench.export(architecture.loader, architecture.fields)
    model = onnx.load(exported.model)
    found = [
        (
            each.name,
            onnx.helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type).name,
            tuple(dimension.dim_value for dimension in each.type.tensor_type.shape.dim),
        )
        for each in model.graph.input
    ]
    assert found == [(each.name, each.dtype, each.shape) for each in architecture.inputs]
    assert tuple(each.name for each in model.graph.output) == architecture.outputs
    assert exported.metrics["opset_version"] == 17
    assert exported.metrics["cosine"] > 0.9999


def test_a_model_of_one_size_stretches_its_position_table_once(bench: Bench) -> None:
    """DINOv2's table is for another image size; resizing it in every call takes a bicubic Resize."""
    dinov2 = next(each for each in ARCHITECTURES if each.model_type == "dinov2")
    weights = RandomWeights(0, {**dinov2.config, "image_size": 70})
    loader = replace(dinov2.loader, model_type="dinov2_with_registers", random_weights=weights)
    exported = bench.export(loader, replace(dinov2.fields, input_tensors=picture(56, 56)))
    operators = {node.op_type for node in onnx.load(exported.model).graph.node}
    assert "Resize" not in operators


def test_a_decoder_exports_without_a_mask_by_either_exporter(bench: Bench) -> None:
    decoder = random_model("gpt2", "text-generation")
    exported = bench.export(decoder, ExportFields(dynamo=False, input_tensors=(InputTensor("input_ids"),)))
    assert exported.metrics["exporter"] == "torchscript"
