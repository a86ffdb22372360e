"""What a single-stage command needs of a recipe: only what its own stages read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pipeline_samples import save_model

from winml_dag.ep.availability import installed
from winml_dag.ep.registry import QNN
from winml_dag.errors import InputError
from winml_dag.pipeline.buildgraph import Build
from winml_dag.pipeline.onestage import build_of_one
from winml_dag.pipeline.request import Overrides, Request

RECIPE = {
    "loader": {"task": "text-classification", "model_type": "bert", "random_weights": {}},
    "ep": "qnn",
    "compile": {"provider_options": {"op_affinity": "gone.json"}},
    "validate": {"input_data": "gone.npz"},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "model.onnx")


def asked(command: str) -> Build:
    Path("recipe.json").write_text(json.dumps(RECIPE), encoding="utf-8")
    model = None if command == "export" else Path("model.onnx")
    ending = "json" if command == "calibrate" else "onnx"
    overrides = Overrides(onnx=model)
    request = Request(Path("recipe.json"), overrides, command=command, output_file=Path(f"result.{ending}"))
    return build_of_one(request, download=False)


@pytest.mark.parametrize("command", ["export", "calibrate"])
def test_data_to_validate_on_need_not_be_there_for_what_is_not_validated(command: str) -> None:
    assert asked(command).sources.keys().isdisjoint(("input_data", "option_files"))


@pytest.mark.skipif(not installed(QNN), reason="needs onnxruntime-qnn")
@pytest.mark.parametrize(("command", "missing"), [("optimize", "gone.npz"), ("compile", "gone.npz|gone.json")])
def test_what_a_stage_of_the_command_reads_has_to_be_there(command: str, missing: str) -> None:
    with pytest.raises(InputError, match=missing):
        asked(command)
