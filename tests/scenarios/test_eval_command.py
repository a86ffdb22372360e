"""``winml-dag eval``: a model file, an output folder and a recipe, on labelled data and compared with the float
model.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from oneprocess import OneProcess
from onnx import numpy_helper
from onnx_samples import perceptron
from scenario import Project, needs_qnn

from winml_dag.stages.evaluate.cases import chosen_numbers

pytestmark = pytest.mark.slow

WIDTH, CLASSES = 64, 16


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """A classifier, a damaged copy, labelled rows, and a cache that the tests of this file fill together."""
    project = Project(tmp_path_factory.mktemp("eval"), commands)
    folder = project.folder
    _spoilt(perceptron(folder / "good.onnx"), folder / "poor.onnx")
    rows = np.random.default_rng(5).normal(size=(24, WIDTH)).astype(np.float32)
    labels = scores(folder / "good.onnx", rows).argmax(1)
    labels[:4] = (labels[:4] + 1) % CLASSES
    lines = [json.dumps({"x": row.tolist(), "label": int(label)}) for row, label in zip(rows, labels, strict=True)]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    np.save(folder / "rows.npy", rows)
    np.save(folder / "labels.npy", labels)
    return project


def _spoilt(good: Path, poor: Path) -> None:
    model = onnx.load(good)
    constant = next(tensor for tensor in model.graph.initializer if tensor.name == "w2")
    noise = np.random.default_rng(6).normal(size=(WIDTH, CLASSES)) / 8
    values = (numpy_helper.to_array(constant) + noise).astype(np.float32)
    constant.CopyFrom(numpy_helper.from_array(values, "w2"))
    onnx.save(model, poor)


def scores(model: Path, rows: np.ndarray) -> np.ndarray:
    """Return the scores of a model with a batch of four."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": rows[at : at + 4]})[0] for at in range(0, len(rows), 4)])


LABELLED = ("poor.onnx", "--reference", "good.onnx", "-t", "image-classification", "--dataset", "rows.jsonl")


def test_both_models_are_evaluated_on_same_samples_and_cached(shared: Project) -> None:
    first = shared.told("eval", *LABELLED, "-o", "told")
    again = shared.told("eval", *LABELLED, "-o", "told")
    assert (first["measured"], again["measured"]) == ("live", "cached")
    assert first["metrics"] == again["metrics"]
    assert first["samples"] == 24

    rows, labels = (np.load(shared.folder / f"{name}.npy") for name in ("rows", "labels"))
    accuracy = first["metrics"]["accuracy"]
    for which, name in (("candidate", "poor.onnx"), ("reference", "good.onnx")):
        right = (scores(shared.folder / name, rows).argmax(1) == labels).mean()
        assert accuracy[which]["value"] == pytest.approx(right, abs=1e-5)
    assert accuracy["reference"]["value"] == pytest.approx(20 / 24, abs=1e-5)
    assert json.loads((shared.folder / "told" / "evaluation.json").read_text())["metrics"] == first["metrics"]


def test_eval_table_has_verdict_and_violated_bound_exits_1(shared: Project) -> None:
    said = shared.says("eval", *LABELLED, "--min", "accuracy=0.99", code=1)
    lines = said.splitlines()
    accuracy = next(line for line in lines if line.startswith("  accuracy"))
    assert accuracy.count("[") == 3
    assert "significant (p = " in accuracy
    assert lines.index(accuracy) < next(at for at, line in enumerate(lines) if line.startswith("  top5_accuracy"))
    assert "accuracy is 0." in said
    assert "and the bound is 0.99." in said

    value = shared.told("eval", *LABELLED, "--min", "accuracy=0.99", "--min", "top5_accuracy=0.1", code=1)
    kept = {name: bound["kept"] for name, bound in value["bounds"].items()}
    assert kept == {"accuracy": False, "top5_accuracy": True}
    assert value["success"] is False


def test_outputs_are_compared_without_labels(shared: Project) -> None:
    (shared.folder / "inputs").mkdir(exist_ok=True)
    np.savez(shared.folder / "inputs" / "data.npz", x=np.load(shared.folder / "rows.npy").reshape(6, 4, WIDTH))
    compare = ("poor.onnx", "--mode", "compare", "--reference", "good.onnx", "--input-data", "inputs/data.npz")
    value = shared.told("eval", *compare, "--samples", "5")
    chosen = chosen_numbers(6, 5, value["seed"])
    rows = np.load(shared.folder / "rows.npy").reshape(6, 4, WIDTH)[chosen].reshape(-1, WIDTH)
    good, poor = (scores(shared.folder / name, rows) for name in ("good.onnx", "poor.onnx"))
    output = value["outputs"]["logits"]
    assert output["cosine"] == pytest.approx(
        (good * poor).sum() / np.linalg.norm(good) / np.linalg.norm(poor), abs=1e-5
    )
    assert output["top1"] == {"agreed": int((good.argmax(1) == poor.argmax(1)).sum()), "of": 20}
    assert output["max_abs_error"] == pytest.approx(np.abs(good - poor).max(), rel=0.05)
    assert (value["samples"], value["of"], value["data"]) == (5, 6, "npz")


def test_deleted_reference_is_restored_from_cache(shared: Project, tmp_path: Path) -> None:
    own = shared.folder / "own.onnx"
    own.write_bytes((shared.folder / "good.onnx").read_bytes())
    shared.says("build", "--onnx", "own.onnx", "--ep", "cpu", "-p", "fp16", "-o", "made")
    first = shared.told("eval", "made", "--mode", "compare")
    for path in (own, shared.folder / "made" / "optimized.onnx"):
        path.unlink()

    cached = shared.told("eval", "made", "--mode", "compare")
    live = shared.told("eval", "made", "--mode", "compare", "--rebuild")
    assert (cached["measured"], live["measured"]) == ("cached", "live")
    assert first["outputs"] == cached["outputs"] == live["outputs"]
    assert Path(live["reference"]) == Path("made/optimized.onnx")

    nowhere = shared.refused("eval", "made", "--mode", "compare", "--cache-dir", str(tmp_path))
    assert "no float model of a build is beside it or in the cache" in nowhere


def test_eval_builds_recipe_and_applies_its_section(shared: Project) -> None:
    recipe = {
        "model": "good.onnx",
        "ep": "cpu",
        "precision": "fp32",
        "output_dir": "out",
        "eval": {
            "task": "image-classification",
            "dataset": {"path": "rows.jsonl", "samples": 12, "columns_mapping": {"label": "label"}},
        },
    }
    shared.save("recipe.yaml", recipe)
    value = shared.told("eval", "-c", "recipe.yaml")
    assert (value["precision"], value["samples"], value["of"]) == ("fp32", 12, 24)
    assert value["metrics"]["accuracy"]["reference"] is not None
    again = shared.told("eval", "-m", "out", *LABELLED[3:], "--samples", "12", "--column", "label=label")
    assert (again["measured"], again["metrics"]) == ("cached", value["metrics"])
    assert shared.told("eval", "-c", "recipe.yaml", "--samples", "4")["samples"] == 4


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("good.onnx", "--dataset", "rows.jsonl"), 2, "The task of good.onnx is unknown."),
        ((*LABELLED[:5], "--dataset", "gone.jsonl"), 3, "gone.jsonl does not exist"),
        ((*LABELLED, "--label-mapping", "cat"), 2, "'cat' is neither a JSON file nor LABEL=CLASS"),
        ((*LABELLED, "--min", "accurracy=1"), 2, "there is no metric 'accurracy'"),
        ((*LABELLED, "--no-reference"), 2, "--reference and --no-reference exclude each other."),
        (("good.onnx", *LABELLED[3:], "--batch-size", "3"), 1, "takes 4 at once, and a batch of 3"),
    ],
)
def test_invalid_eval_arguments_are_refused(
    shared: Project, arguments: tuple[str, ...], code: int, message: str
) -> None:
    assert message in shared.refused("eval", *arguments, code=code)


def test_unsupported_eval_fields_are_refused_individually(shared: Project) -> None:
    section = {"runtime": "pytorch", "skip_build": False, "input_data": "x.npz", "dataset": {"streaming": True}}
    recipe = {"model": "good.onnx", "ep": "cpu", "output_dir": "out", "eval": section}
    shared.save("more.yaml", recipe)
    said = shared.says("eval", "-c", "more.yaml", code=2)
    for field in ("eval.runtime", "eval.skip_build", "eval.input_data", "eval.dataset.streaming"):
        assert f"  {field}: " in said


def test_schema_lists_columns_and_metrics(shared: Project) -> None:
    told = shared.says("eval", "--schema", "-t", "feature-similarity")
    assert told.splitlines()[0] == "feature-similarity: spearman, pearson"
    assert "sentence1 (or text1" in told
    assert set(shared.told("eval", "--schema")["tasks"]) >= {"text-classification", "question-answering"}


@needs_qnn
def test_compiled_model_is_evaluated_on_its_provider(shared: Project) -> None:
    """For the task of its build, and compared with the float model on the CPU that its build kept."""
    recipe = {"model": "good.onnx", "ep": "qnn", "precision": "w8a8", "loader": {"task": "image-classification"}}
    shared.built({**recipe, "validate": {"enabled": False}}, "compiled")
    value = shared.told("eval", "compiled", "--dataset", "rows.jsonl")
    assert (value["execution_provider"], value["task"]) == ("QNNExecutionProvider", "image-classification")
    assert value["assigned_nodes"]["QNNExecutionProvider"] == {"EPContext": 1}
    accuracy = value["metrics"]["accuracy"]
    assert accuracy["reference"]["value"] == pytest.approx(20 / 24, abs=1e-5)
    assert 0 <= accuracy["candidate"]["value"] <= 1
