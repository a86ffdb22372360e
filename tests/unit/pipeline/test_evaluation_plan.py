"""The inputs of eval: data, reference and settings, the contents of its key, and what it rejects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pipeline_samples import save_model

from winml_dag.errors import InputError, RecipeError, UsageError
from winml_dag.pipeline.assess.builtmodel import find_built_model
from winml_dag.pipeline.assess.eval import EvaluationPlan, eval_section, plan_evaluation
from winml_dag.pipeline.assess.measurement import AssessmentRequest
from winml_dag.recipe.schema import Eval
from winml_dag.store.store import Store

TASK = {"task": "image-classification"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "data.csv").write_text("x,label\n1,0\n")
    return save_model(tmp_path / "model.onnx")


def planned(model: Path, said: dict[str, Any], dataset: dict[str, Any] | None = None, **how: Any) -> EvaluationPlan:
    section = eval_section(None, said, {"path": "data.csv"} if dataset is None else dataset)
    request = AssessmentRequest(section, model.parent, download=False, **how)
    return plan_evaluation(find_built_model(model), request, Store(model.parent / "cache"))


def key(plan: EvaluationPlan) -> Any:
    """Return all key inputs of the evaluation."""
    (node,) = plan.measurement.graph.nodes
    inputs = {slot: plan.measurement.sources[name].digest for slot, name in node.inputs.items()}
    return json.loads(json.dumps([node.config, dict(node.toolchain), inputs]))


def test_relevant_settings_are_in_the_key(model: Path) -> None:
    usual = key(planned(model, TASK))
    assert key(planned(model, TASK)) == usual
    for dataset in ({"samples": 7}, {"seed": 1}, {"shuffle": False}, {"label_mapping": {"0": 1}}):
        assert key(planned(model, TASK, {"path": "data.csv", **dataset})) != usual, dataset
    for said in (
        {"task": "text-classification"},
        {"batch_size": 2},
        {"mode": "compare", "reference_path": "model.onnx"},
    ):
        assert key(planned(model, {**TASK, **said})) != usual, said
    # What a mode does not read is in no key.
    compare = {"mode": "compare", "reference_path": "model.onnx"}
    usual = key(planned(model, compare))
    assert key(planned(model, {**compare, "pooling": "cls"})) == usual
    assert key(planned(model, compare, {"path": "data.csv", "label_mapping": {"cat": 1}})) == usual


def test_data_and_label_file_contents_are_in_the_key(model: Path) -> None:
    usual = key(planned(model, TASK))
    (model.parent / "same.csv").write_bytes((model.parent / "data.csv").read_bytes())
    assert key(planned(model, TASK, {"path": "same.csv"})) == usual
    (model.parent / "data.csv").write_text("x,label\n1,1\n")
    assert key(planned(model, TASK)) != usual

    labels = model.parent / "labels.json"
    labels.write_text(json.dumps({"cat": 0, "dog": 1}))
    in_file = key(planned(model, TASK, {"path": "data.csv", "label_mapping_file": "labels.json"}))
    assert in_file == key(planned(model, TASK, {"path": "data.csv", "label_mapping": {"dog": 1, "cat": 0}}))


def test_folder_with_splits_uses_one_and_others_are_used_whole(model: Path) -> None:
    for name in ("train.csv", "validation.csv"):
        (model.parent / "split").mkdir(exist_ok=True)
        (model.parent / "split" / name).write_text(f"x,label\n{len(name)},0\n")
    for name in ("red", "blue"):
        (model.parent / "images" / name).mkdir(parents=True)
        (model.parent / "images" / name / "0.png").write_bytes(b"no image, but nobody looks yet")

    def files(dataset: dict[str, Any]) -> list[str]:
        plan = planned(model, TASK, dataset)
        return [file.name for file in plan.measurement.sources["calibration data"].files]

    assert files({"path": "split"}) == ["validation.csv"]
    assert files({"path": "split", "split": "train"}) == ["train.csv"]
    assert files({"path": "images"}) == ["blue/0.png", "red/0.png"]
    assert files({"path": "images", "split": "validation"}) == ["blue/0.png", "red/0.png"]


def test_hub_dataset_is_read_from_cache_at_requested_revision(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = model.parent / "hub" / "datasets--org--name"
    for revision, commit in (("main", "a" * 40), ("v2", "b" * 40)):
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / revision).write_text(commit)
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "validation.csv").write_text(f"x,label\n1,{revision}\n")
    monkeypatch.setenv("HF_HUB_CACHE", str(model.parent / "hub"))
    newest = key(planned(model, TASK, {"path": "org/name"}))
    second = key(planned(model, TASK, {"path": "org/name", "revision": "v2"}))
    assert newest[:2] == second[:2]
    assert newest[2]["data"] != second[2]["data"]
    with pytest.raises(InputError, match=r"eval\.dataset\.split: org/name has no files of the split 'test'"):
        planned(model, TASK, {"path": "org/name", "split": "test"})


def test_winml_cli_default_settings_are_accepted(model: Path) -> None:
    written = json.loads(Eval().model_dump_json())
    dataset = {**written.pop("dataset"), "path": "data.csv"}
    assert key(planned(model, {**written, **TASK}, dataset)) == key(planned(model, TASK))


REFUSED: dict[str, Any] = {
    "runtime": "pytorch",
    "model_path": "other.onnx",
    "reference_device": "npu",
    "reference_ep": "qnn",
    "precision": "w8a8",
    "quant": False,
    "optimize": False,
    "analyze": False,
    "max_optim_iterations": 2,
    "shape_config": {"batch": 1},
    "export_overrides": {"opset": 17},
    "output_path": "report.json",
    "skip_build": False,
    "use_cache": False,
    "rebuild": True,
    "trust_remote_code": True,
    "allow_unsupported_nodes": True,
    "input_data": "inputs.npz",
    "dataset.streaming": True,
    "dataset.build_script": "script.py",
}


@pytest.mark.parametrize("field", REFUSED)
def test_inapplicable_field_is_refused_by_name(model: Path, field: str) -> None:
    section, _, name = field.rpartition(".")
    given = {name: REFUSED[field]}
    said, dataset = ({}, given) if section else (given, {})
    with pytest.raises(RecipeError) as caught:
        planned(model, {**TASK, **said}, {"path": "data.csv", **dataset})
    (problem,) = caught.value.problems
    assert problem.startswith(f"eval.{field}: ")


@pytest.mark.parametrize(
    ("said", "dataset", "error", "message"),
    [
        ({"task": "text-generation"}, None, UsageError, "no metrics for text-generation"),
        ({}, None, UsageError, "is unknown"),
        (TASK, {}, UsageError, r"no labelled data.*eval\.dataset\.path in the recipe"),
        (TASK, {"path": "./gone"}, InputError, "eval.dataset.path: .*gone does not exist"),
        (
            TASK,
            {"path": "data.csv", "label_mapping_file": "data.csv"},
            InputError,
            "label_mapping_file: .* cannot be read",
        ),
        ({**TASK, "reference_path": "gone.onnx"}, None, InputError, "gone.onnx"),
        ({"mode": "compare"}, None, UsageError, "nothing to compare"),
        (TASK, {"path": "data.csv", "split": "nope"}, UsageError, "eval.dataset.split: a file has no splits"),
        ({**TASK, "model_id": "./gone"}, None, InputError, "gone"),
        ({"mode": "compare", "reference_path": "model.onnx", "input_data": "a"}, None, RecipeError, "two sets of data"),
    ],
)
def test_missing_setting_is_reported(
    model: Path, said: dict[str, Any], dataset: dict[str, Any] | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        planned(model, said, dataset)


def test_compare_mode_requires_a_reference(model: Path) -> None:
    with pytest.raises(UsageError, match="the reference that --no-reference excludes"):
        planned(model, {"mode": "compare"}, has_reference=False)


def test_run_settings_override_recipe() -> None:
    written = Eval.model_validate({"task": "question-answering", "dataset": {"samples": 5, "label_mapping": {"a": 1}}})
    section = eval_section(written, {"batch_size": 4}, {"label_mapping_file": "labels.json"})
    assert (section.task, section.batch_size, section.dataset.samples) == ("question-answering", 4, 5)
    assert (section.dataset.label_mapping, section.dataset.label_mapping_file) == (None, "labels.json")
    with pytest.raises(RecipeError, match="The eval section is wrong"):
        eval_section(written, {"pooling": "max"}, {})
