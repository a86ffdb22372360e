from __future__ import annotations

from pathlib import Path

import pytest
import torch
from export_models import random_model

from winml_dag.stages.export.exporter import DYNAMO, TORCHSCRIPT, ExportOptions, export_onnx, exporter_for
from winml_dag.stages.export.loading import load_pytorch_model


@pytest.mark.parametrize("exporter", [TORCHSCRIPT, pytest.param(DYNAMO, marks=pytest.mark.slow)])
def test_the_model_is_the_same_after_its_export(tmp_path: Path, exporter: str) -> None:
    model = load_pytorch_model(random_model("resnet", "image-classification"), None).model
    pixels = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        before = model(pixels).logits
    options = ExportOptions(exporter, 21, True, ("pixel_values",), {"logits": "logits"}, {})
    export_onnx(model, (pixels,), options, tmp_path / "model.onnx")
    # In train mode batch normalization would use, and change, other statistics.
    assert not any(module.training for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model(pixels).logits, before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("model_type", "exporter"),
    [("bert", TORCHSCRIPT), ("roberta", TORCHSCRIPT), ("vit", TORCHSCRIPT), ("gpt2", DYNAMO), ("qwen3", DYNAMO)],
)
def test_the_exporter_follows_from_the_architecture(model_type: str, exporter: str) -> None:
    assert exporter_for(model_type) == exporter
