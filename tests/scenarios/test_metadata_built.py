"""A build preserves a model's metadata, and ``inspect`` shows it."""

from __future__ import annotations

import json
import shutil

import onnx
import pytest
from metadata_samples import describe, said
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """A model with much metadata, data for it, and a cache that the tests of this file fill together."""
    project = Project(tmp_path_factory.mktemp("metadata"), commands)
    path = perceptron(project.folder / "pets.onnx")
    onnx.save(describe(onnx.load(path)), path)
    samples(project.folder / "data.npz")
    return project


@pytest.mark.parametrize(
    ("ep", "precision"),
    [("cpu", "fp32"), ("cpu", "fp16"), ("cpu", "w8a8"), ("cpu", "dynamic"), ("qnn", "w8a8")],
)
def test_final_model_keeps_metadata(shared: Project, ep: str, precision: str) -> None:
    if ep == "qnn":
        pytest.importorskip("onnxruntime_qnn")
    out = f"{ep}-{precision}"
    recipe = {"model": "pets.onnx", "ep": ep, "precision": precision}
    if precision == "w8a8":
        recipe |= {"quant": {"samples": 4, "calibration_data": "data.npz"}}
    (shared.folder / f"{out}.json").write_text(json.dumps(recipe), encoding="utf-8")
    result = shared.build(recipe=f"{out}.json", out=out)
    assert result.code == 0, result.messages
    given, made = (onnx.load(shared.folder / name) for name in ("pets.onnx", f"{out}/model.onnx"))
    assert said(made) == said(given)
    assert ("EPContext" in {node.op_type for node in made.graph.node}) == (ep == "qnn")
    told = shared.run("inspect", f"{out}/model.onnx")
    for line in ("names = {0: 'cat', 1: 'dog'}", "Tells cats from dogs.", "com.acme, version 42", "acme-trainer 7.1"):
        assert line in told.stdout


def test_metadata_change_is_a_different_input(shared: Project) -> None:
    shutil.copy(shared.folder / "pets.onnx", shared.folder / "named.onnx")
    for number in ("1", "2"):
        model = onnx.load(shared.folder / "named.onnx")
        model.metadata_props[0].value = number
        onnx.save(model, shared.folder / "named.onnx")
        (shared.folder / "named.json").write_text('{"model": "named.onnx", "ep": "cpu"}', encoding="utf-8")
        result = shared.build(recipe="named.json", out="named")
        assert result.code == 0, result.messages
        assert said(onnx.load(shared.folder / "named/model.onnx")) == said(model)
