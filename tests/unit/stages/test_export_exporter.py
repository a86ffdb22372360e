"""Exporters change neither the model nor, by keeping weights from TorchScript's exporter, the result."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from export_models import Bench, exported_once, random_model

from winml_dag.stages.export import ExportFields, exporter
from winml_dag.stages.export.exporter import DYNAMO, TORCHSCRIPT, ExportOptions, export_onnx, exporter_for
from winml_dag.stages.export.loading import load_pytorch_model


@pytest.mark.parametrize("name", [TORCHSCRIPT, pytest.param(DYNAMO, marks=pytest.mark.slow)])
def test_the_model_is_the_same_after_its_export(tmp_path: Path, name: str) -> None:
    model = load_pytorch_model(random_model("resnet", "image-classification"), None).model
    pixels = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        before = model(pixels).logits
    options = ExportOptions(name, 21, True, ("pixel_values",), {"logits": "logits"}, {})
    export_onnx(model, (pixels,), options, tmp_path / "model.onnx")
    # In train mode batch normalization would use, and change, other statistics.
    assert not any(module.training for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model(pixels).logits, before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("bert", TORCHSCRIPT), ("roberta", TORCHSCRIPT), ("vit", TORCHSCRIPT), ("gpt2", DYNAMO), ("qwen3", DYNAMO)],
)
def test_the_exporter_follows_from_the_architecture(model_type: str, name: str) -> None:
    assert exporter_for(model_type) == name


@pytest.mark.parametrize(("model_type", "task"), [("bert", "text-classification"), ("resnet", "image-classification")])
def test_weights_put_aside_change_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, task: str
) -> None:
    """By default, none of these small models has weights that are put aside."""
    loader, fields = random_model(model_type, task), ExportFields(dynamo=False)
    expected = exported_once(loader, fields).model.read_bytes()
    monkeypatch.setattr(exporter, "LEAST_BYTES", 64)
    assert Bench(tmp_path).export(loader, fields).model.read_bytes() == expected


def test_large_weights_never_reach_the_exporter(tmp_path: Path) -> None:
    model = torch.nn.Linear(256, 256)
    with exporter.weights_aside() as aside:
        torch.onnx.export(model, (torch.ones(1, 256),), str(tmp_path / "model.onnx"), dynamo=False)
    assert (tmp_path / "model.onnx").stat().st_size < 4096
    [(name, tensor)] = aside.items()
    assert tensor.data_ptr() == model.weight.data_ptr()
    exporter.attach_weights(tmp_path / "model.onnx", aside)
    [found] = [each for each in onnx.load(tmp_path / "model.onnx").graph.initializer if each.name == name]
    assert torch.equal(torch.from_numpy(onnx.numpy_helper.to_array(found).copy()), model.weight)


def test_a_torch_without_that_pass_exports_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "_LAST_PASS", "no_such_pass")
    with exporter.weights_aside() as aside:
        torch.onnx.export(torch.nn.Linear(256, 256), (torch.ones(1, 256),), str(tmp_path / "m.onnx"), dynamo=False)
    assert not aside
    assert (tmp_path / "m.onnx").stat().st_size > 256 * 256 * 4
