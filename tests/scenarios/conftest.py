"""A project with a finished build of a small transformer for QNN, the start of every scenario.

The model is real (BERT with two small layers) and so is every stage. It is built once, and each test gets a copy of the
folder, including the cache.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project

from winml_dag.store.locks import Locks

RECIPE: dict[str, Any] = {
    "model": "model",
    "loader": {"task": "text-classification"},
    "ep": "qnn",
    "precision": "w8a8",
    "quant": {"samples": 8},
}


def _save_model(folder: Path) -> None:
    # Imported here: most scenarios need neither.
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(**sizes, vocab_size=200, max_position_embeddings=32))
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(value, std=0.05)
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess) -> Project:
    """A small ONNX model, data for it, and a cache that the tests of a file fill together."""
    project = Project(tmp_path_factory.mktemp("shared"), commands)
    perceptron(project.folder / "model.onnx")
    samples(project.folder / "data.npz")
    return project


@pytest.fixture(scope="session")
def built_project(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess) -> Project:
    """The project after its first build, shared by all processes of a test run. Do not change it; see ``project``."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    project = Project(base / "built", commands)
    with Locks(base).hold("built"):
        done = base / "built.done"
        if not done.exists():
            _build_first(project)
            done.touch()
    return project


def _build_first(project: Project) -> None:
    project.folder.mkdir()
    _save_model(project.folder / "model")
    project.recipe_file.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    first = project.build()
    assert first.code == 0, first.messages
    assert first.ran == ["export", "optimize", "analyze", "calibrate", "quantize", "compile", "validate", "finalize"]


@pytest.fixture
def project(built_project: Project, tmp_path: Path, commands: OneProcess) -> Project:
    """A copy of the built project for one test.

    Recorded builds are identified by the path of the output folder, so the copy is brought up to date once: this runs
    no stage and writes no output.
    """
    folder = tmp_path / "project"
    shutil.copytree(built_project.folder, folder)
    copy = Project(folder, commands)
    again = copy.build()
    assert again.code == 0, again.messages
    assert again.ran == []
    return copy


@pytest.fixture
def empty_project(built_project: Project, tmp_path: Path) -> Project:
    """The same recipe and model before any build."""
    folder = tmp_path / "empty"
    shutil.copytree(built_project.folder / "model", folder / "model")
    shutil.copy(built_project.recipe_file, folder)
    return Project(folder)
