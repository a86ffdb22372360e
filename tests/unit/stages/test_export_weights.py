"""Keeping the weights from the TorchScript exporter does not change the exported model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import pytest
import torch
from export_models import Bench, random_model

from winml_dag.stages.export import ExportFields, exporter

MODELS = [("bert", "text-classification"), ("resnet", "image-classification")]


@pytest.mark.parametrize(("model_type", "task"), MODELS)
def test_weights_put_aside_change_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, task: str
) -> None:
    exported = []
    for least in (64, 2**40):
        monkeypatch.setattr(exporter, "LEAST_BYTES", least)
        made = Bench(tmp_path / str(least)).export(random_model(model_type, task), ExportFields(dynamo=False))
        exported.append(hashlib.sha256(made.model.read_bytes()).hexdigest())
    assert len(set(exported)) == 1


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
