from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from export_architectures import ARCHITECTURES
from export_models import SMALL, Bench, random_model
from onnxruntime.quantization import quantize_dynamic

from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.stages.export import ExportFields, InputTensor, LoaderFields

TEXT_TASKS = {
    "feature-extraction": {"last_hidden_state": [1, 37, 32]},
    "sentence-similarity": {"last_hidden_state": [1, 37, 32]},
    "text-classification": {"logits": [1, 3]},
    "zero-shot-classification": {"logits": [1, 3]},
    "token-classification": {"logits": [1, 37, 3]},
    "fill-mask": {"logits": [1, 37, 100]},
    "question-answering": {"start_logits": [1, 37], "end_logits": [1, 37]},
}
TEXT_INPUTS = {
    "bert": ["input_ids", "attention_mask", "token_type_ids"],
    "roberta": ["input_ids", "attention_mask"],
    "distilbert": ["input_ids", "attention_mask"],
}
# 40 positions; those of RoBERTa start after its padding token 1, so 38 of them are for tokens.
POSITIONS = {"bert": 40, "roberta": 38, "distilbert": 40}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def outputs_of(path: Path) -> dict[str, list[int | str]]:
    session = onnxruntime.InferenceSession(path)
    return {output.name: output.shape for output in session.get_outputs()}


@pytest.mark.parametrize("task", TEXT_TASKS)
@pytest.mark.parametrize("model_type", TEXT_INPUTS)
def test_encoders_of_text(bench: Bench, model_type: str, task: str) -> None:
    shape = InputTensor("input_ids", shape=(1, 37))
    tensors = (shape, *(InputTensor(name) for name in TEXT_INPUTS[model_type][1:]))
    # QuestionAnswering heads always have two labels.
    labels = {} if task in ("question-answering", "fill-mask") else {"num_labels": 3}
    exported = bench.export(random_model(model_type, task, **labels), ExportFields(input_tensors=tensors))
    assert outputs_of(exported.model) == TEXT_TASKS[task]
    assert exported.metrics["exporter"] == "torchscript"
    assert exported.metrics["cosine"] > 0.9999


@pytest.mark.parametrize("model_type", TEXT_INPUTS)
def test_the_usual_inputs_of_text_are_int32_and_as_long_as_the_model_allows(bench: Bench, model_type: str) -> None:
    inputs = model_inputs(bench.export(random_model(model_type, "feature-extraction")).model)
    assert [each.name for each in inputs] == TEXT_INPUTS[model_type]
    assert {(each.dtype, each.shape) for each in inputs} == {("int32", (1, POSITIONS[model_type]))}
    assert inputs[0].value_range == (0, 100)
    assert inputs[1].value_range == (0, 2)


def test_long_text_models_get_128_tokens(bench: Bench) -> None:
    exported = bench.export(random_model("bert", "feature-extraction", max_position_embeddings=512))
    assert {each.shape for each in model_inputs(exported.model)} == {(1, 128)}


def test_next_sentence_prediction(bench: Bench) -> None:
    assert outputs_of(bench.export(random_model("bert", "next-sentence-prediction")).model) == {"logits": [1, 2]}


@pytest.mark.parametrize(
    ("model_type", "size", "features"),
    [("resnet", 224, [1, 16, 28, 28]), ("vit", 32, [1, 17, 32]), ("convnext", 32, [1, 16, 4, 4])],
)
def test_models_of_images(bench: Bench, model_type: str, size: int, features: list[int]) -> None:
    classifier = bench.export(random_model(model_type, "image-classification", num_labels=3))
    (pixels,) = model_inputs(classifier.model)
    assert (pixels.name, pixels.dtype, pixels.shape) == ("pixel_values", "float32", (1, 3, size, size))
    assert outputs_of(classifier.model) == {"logits": [1, 3]}
    assert outputs_of(bench.export(random_model(model_type, "image-feature-extraction")).model) == {
        "last_hidden_state": features
    }


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "task"), [("bert", "text-classification"), ("resnet", "image-classification")])
def test_the_other_exporter_can_be_asked_for(bench: Bench, model_type: str, task: str) -> None:
    exported = bench.export(random_model(model_type, task), ExportFields(dynamo=True))
    assert exported.metrics["exporter"] == "dynamo"
    assert not onnx.load(exported.model).graph.value_info
    # With the exporter's own shape information this fails on a contradiction over a folded weight.
    quantize_dynamic(exported.model, exported.model.with_name("int8.onnx"))


@pytest.mark.slow
def test_decoders_are_exported_by_dynamo_whose_graphs_of_them_are_shorter(bench: Bench) -> None:
    assert bench.export(random_model("gpt2", "feature-extraction")).metrics["exporter"] == "dynamo"


@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_dynamic_axes_are_really_dynamic(bench: Bench, dynamo: bool) -> None:
    tensors = (InputTensor("input_ids", shape=("batch", "sequence")), InputTensor("attention_mask"))
    fields = ExportFields(dynamo=dynamo, input_tensors=tensors)
    exported = bench.export(random_model("bert", "token-classification"), fields)
    session = onnxruntime.InferenceSession(exported.model)
    assert [each.shape for each in session.get_inputs()] == [["batch", "sequence"]] * 2
    assert outputs_of(exported.model) == {"logits": ["batch", "sequence", 2]}
    ids = np.arange(5 * 7, dtype=np.int32).reshape(5, 7)
    (logits,) = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    assert logits.shape == (5, 7, 2)


def test_dynamic_axes_can_be_named_apart_from_the_shapes(bench: Bench) -> None:
    axes = {"pixel_values": {"0": "batch"}, "logits": {"0": "images"}}
    exported = bench.export(random_model("resnet", "image-classification"), ExportFields(dynamic_axes=axes))
    assert model_inputs(exported.model)[0].shape == ("batch", 3, 224, 224)
    assert outputs_of(exported.model) == {"logits": ["images", 2]}


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"pixel_values": {"0": "n"}}, "calls this axis 'batch'"),
        ({"pixel_values": {"4": "n"}}, "not an axis of 'pixel_values'"),
        ({"pixels": {"0": "batch"}}, "names 'pixels'"),
        ({"logits": {"1": "labels"}}, "always has the size 2"),
        ({"pixel_values": {"2": "height"}}, "cannot run on pixel_values"),  # a ViT supports only one size
    ],
)
def test_axes_that_cannot_be_dynamic_are_refused(bench: Bench, axes: dict[str, dict[str, str]], words: str) -> None:
    tensors = (InputTensor("pixel_values", shape=("batch", 3, 32, 32)),)
    fields = ExportFields(input_tensors=tensors, dynamic_axes=axes)
    with pytest.raises(StageError, match=words):
        bench.export(random_model("vit", "image-classification"), fields)


def test_the_recipes_tensors_win(bench: Bench) -> None:
    tensors = (
        InputTensor("input_ids", dtype="int64", shape=(2, 16), value_range=(5, 9)),
        InputTensor("attention_mask"),
    )
    fields = ExportFields(input_tensors=tensors, output_tensors=("embedding", "pooled"))
    exported = bench.export(random_model("bert", "feature-extraction"), fields)
    ids, mask = model_inputs(exported.model)
    assert (ids.dtype, ids.shape, ids.value_range) == ("int64", (2, 16), (5, 9))
    assert (mask.dtype, mask.shape, mask.value_range) == ("int32", (2, 16), (0, 2))
    assert outputs_of(exported.model) == {"embedding": [2, 16, 32], "pooled": [2, 32]}


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (InputTensor("input_idz"), "Did you mean 'input_ids'"),
        (InputTensor("position_ids"), "must give dtype and shape of 'position_ids'"),
        (InputTensor("input_ids", shape=(1, 37, 2)), "cannot run on input_ids"),
    ],
)
def test_inputs_that_the_model_cannot_take_are_refused(bench: Bench, tensor: InputTensor, words: str) -> None:
    with pytest.raises(StageError, match=words):
        bench.export(random_model("bert", "feature-extraction"), ExportFields(input_tensors=(tensor,)))


@pytest.mark.parametrize(
    ("loader", "fields", "words"),
    [
        (LoaderFields("text-to-image", "gpt2"), ExportFields(), "Use one of: feature-extraction"),
        (random_model("resnet", "fill-mask"), ExportFields(), "no model for the architecture 'resnet'"),
        (random_model("bert", "fill-mask"), ExportFields(opset_version=99), "opset"),
        (random_model("bert", "fill-mask"), ExportFields(export_params=False), "export_params"),
        (random_model("bert", "fill-mask"), ExportFields(hierarchy_tag_format="short"), "hierarchy_tag_format"),
        (random_model("bert", "fill-mask"), ExportFields(output_tensors=("a", "b")), "the model has 1"),
        (LoaderFields("fill-mask", "bert"), ExportFields(), "neither a model folder nor"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    bench: Bench, loader: LoaderFields, fields: ExportFields, words: str
) -> None:
    with pytest.raises(StageError, match=words):
        bench.export(loader, fields)


def test_an_older_opset_is_what_the_file_has(bench: Bench) -> None:
    exported = bench.export(random_model("bert", "fill-mask"), ExportFields(opset_version=17))
    assert [each.version for each in onnx.load(exported.model).opset_import if each.domain == ""] == [17]


def test_another_seed_is_another_model(bench: Bench) -> None:
    first, again, other = (bench.export(random_model("resnet", "image-classification", seed)) for seed in (1, 1, 2))
    assert first.model.read_bytes() == again.model.read_bytes()
    assert first.model.read_bytes() != other.model.read_bytes()


def test_nothing_but_the_model_is_left(bench: Bench) -> None:
    exported = bench.export(random_model("resnet", "image-classification"))
    assert [path.name for path in exported.model.parent.iterdir()] == ["export.onnx"]
    assert sorted(path.name for path in exported.model.parents[2].iterdir()) == ["outputs"]


CALLER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from export_models import Bench, random_model
from winml_dag.stages.export import ExportFields
bench = Bench(Path(sys.argv[1]))
for model_type, task, dynamo in {cases!r}:
    bench.export(random_model(model_type, task), ExportFields(dynamo=dynamo))
"""
CASES = [
    ("bert", "text-classification", False),
    ("bert", "text-classification", True),
]


@pytest.mark.slow
def test_bytes_depend_on_neither_folder_nor_process(tmp_path: Path) -> None:
    script = CALLER.format(tests=str(Path(__file__).parent), cases=CASES)
    written = []
    for number, folder in enumerate(["here", "somewhere else/deep"]):
        # Dynamo records the caller's path and line in every node: both differ each time.
        caller = tmp_path / folder / "caller.py"
        caller.parent.mkdir(parents=True)
        caller.write_text("\n" * number + script, encoding="utf-8")
        environment = {**os.environ, "PYTHONHASHSEED": str(number + 1)}
        subprocess.run([sys.executable, caller, caller.parent], check=True, env=environment, capture_output=True)
        files = sorted(path for path in caller.parent.rglob("outputs/**/*") if path.is_file())
        written.append({path.relative_to(caller.parent).as_posix(): path.read_bytes() for path in files})
    assert len(written[0]) == 2 * len(CASES)
    assert written[0] == written[1]
    assert not any(str(tmp_path).encode() in content for content in written[0].values())


def test_all_promised_architectures_are_exported_here() -> None:
    from winml_dag.stages.export import architectures

    tested = {each.name for each in architectures.ARCHITECTURES.values() if each.tested}
    assert tested == {*SMALL, *(each.model_type for each in ARCHITECTURES)}
