from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from export_architectures import ARCHITECTURES
from export_models import SMALL, Bench, exported_once, names, random_model, signature
from onnxruntime.quantization import quantize_dynamic

from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.stages.export import ExportFields, InputTensor, LoaderFields
from winml_dag.stages.export.loading import load_pytorch_model

TEXT_TASKS = {
    "feature-extraction": ["last_hidden_state"],
    "sentence-similarity": ["last_hidden_state"],
    "text-classification": ["logits"],
    "zero-shot-classification": ["logits"],
    "token-classification": ["logits"],
    "fill-mask": ["logits"],
    "question-answering": ["start_logits", "end_logits"],
}
TEXT_INPUTS = {
    "bert": ["input_ids", "attention_mask", "token_type_ids"],
    "roberta": ["input_ids", "attention_mask"],
    "distilbert": ["input_ids", "attention_mask"],
}
IMAGE_TASKS = {"image-classification": ["logits"], "image-feature-extraction": ["last_hidden_state"]}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def outputs_of(path: Path) -> dict[str, list[int | str]]:
    session = onnxruntime.InferenceSession(path)
    return {output.name: output.shape for output in session.get_outputs()}


@pytest.mark.parametrize(
    ("model_type", "task", "outputs"),
    [
        *((model_type, *task) for model_type in TEXT_INPUTS for task in TEXT_TASKS.items()),
        ("bert", "next-sentence-prediction", ["logits"]),
        *((model_type, *task) for model_type in ("resnet", "vit", "convnext") for task in IMAGE_TASKS.items()),
    ],
)
def test_the_task_determines_the_tensors(model_type: str, task: str, outputs: list[str]) -> None:
    found = signature(random_model(model_type, task))
    assert names(found["input_tensors"]) == TEXT_INPUTS.get(model_type, ["pixel_values"])
    assert names(found["output_tensors"]) == outputs


@pytest.mark.parametrize(
    ("model_type", "task", "length", "outputs"),
    [
        ("bert", "token-classification", 40, {"logits": [1, 40, 3]}),
        # 40 positions, which start after the padding token 1.
        ("roberta", "fill-mask", 38, {"logits": [1, 38, 100]}),
        ("distilbert", "question-answering", 40, {"start_logits": [1, 40], "end_logits": [1, 40]}),
    ],
)
def test_encoders_of_text_take_int32_as_long_as_the_model_allows(
    bench: Bench, model_type: str, task: str, length: int, outputs: dict[str, list[int]]
) -> None:
    labels = {"num_labels": 3} if task == "token-classification" else {}
    exported = bench.export(random_model(model_type, task, **labels))
    inputs = model_inputs(exported.model)
    assert [each.name for each in inputs] == TEXT_INPUTS[model_type]
    assert {(each.dtype, each.shape) for each in inputs} == {("int32", (1, length))}
    assert [each.value_range for each in inputs[:2]] == [(0, 100), (0, 2)]
    assert outputs_of(exported.model) == outputs
    assert exported.metrics["exporter"] == "torchscript"
    assert exported.metrics["cosine"] > 0.9999
    assert [path.name for path in exported.model.parent.iterdir()] == ["export.onnx"]
    assert sorted(path.name for path in exported.model.parents[2].iterdir()) == ["outputs"]


def test_long_text_models_get_128_tokens() -> None:
    tensors = signature(random_model("bert", "feature-extraction", max_position_embeddings=512))["input_tensors"]
    assert [each["shape"] for each in tensors] == [[1, 128]] * 3


@pytest.mark.parametrize(
    ("model_type", "task", "size", "outputs"),
    [
        ("resnet", "image-feature-extraction", 224, {"last_hidden_state": [1, 16, 28, 28]}),
        ("vit", "image-feature-extraction", 32, {"last_hidden_state": [1, 17, 32]}),
        ("convnext", "image-classification", 32, {"logits": [1, 2]}),
    ],
)
def test_models_of_images(
    bench: Bench, model_type: str, task: str, size: int, outputs: dict[str, list[int | str]]
) -> None:
    exported = bench.export(random_model(model_type, task))
    (pixels,) = model_inputs(exported.model)
    assert (pixels.name, pixels.dtype, pixels.shape) == ("pixel_values", "float32", (1, 3, size, size))
    assert outputs_of(exported.model) == outputs


@pytest.mark.slow
def test_the_other_exporter_can_be_asked_for(tmp_path: Path) -> None:
    exported = exported_once(random_model("bert", "text-classification"), ExportFields(dynamo=True))
    assert exported.metrics["exporter"] == "dynamo"
    assert not onnx.load(exported.model).graph.value_info
    # With the exporter's own shape information this fails on a contradiction over a folded weight.
    quantize_dynamic(exported.model, tmp_path / "int8.onnx")


@pytest.mark.parametrize(
    ("model_type", "task", "exporter", "scores"),
    [
        ("bert", "token-classification", "torchscript", 2),
        # TorchScript's graphs of decoders are twice as long.
        pytest.param("gpt2", "text-generation", "dynamo", 100, marks=pytest.mark.slow),
    ],
)
def test_dynamic_axes_are_really_dynamic(bench: Bench, model_type: str, task: str, exporter: str, scores: int) -> None:
    tensors = (InputTensor("input_ids", shape=("batch", "sequence")), InputTensor("attention_mask"))
    sizes = {"n_layer": 1} if model_type == "gpt2" else {}
    exported = bench.export(random_model(model_type, task, **sizes), ExportFields(input_tensors=tensors))
    assert exported.metrics["exporter"] == exporter
    session = onnxruntime.InferenceSession(exported.model)
    assert [each.shape for each in session.get_inputs()] == [["batch", "sequence"]] * 2
    assert outputs_of(exported.model) == {"logits": ["batch", "sequence", scores]}
    ids = np.arange(5 * 7, dtype=np.int32).reshape(5, 7)
    (logits,) = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    assert logits.shape == (5, 7, scores)


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


def test_the_recipes_tensors_and_opset_win(bench: Bench) -> None:
    tensors = (
        InputTensor("input_ids", dtype="int64", shape=(2, 16), value_range=(5, 9)),
        InputTensor("attention_mask"),
    )
    fields = ExportFields(input_tensors=tensors, output_tensors=("embedding", "pooled"), opset_version=17)
    exported = bench.export(random_model("bert", "feature-extraction"), fields)
    ids, mask = model_inputs(exported.model)
    assert (ids.dtype, ids.shape, ids.value_range) == ("int64", (2, 16), (5, 9))
    assert (mask.dtype, mask.shape, mask.value_range) == ("int32", (2, 16), (0, 2))
    assert outputs_of(exported.model) == {"embedding": [2, 16, 32], "pooled": [2, 32]}
    assert [each.version for each in onnx.load(exported.model).opset_import if each.domain == ""] == [17]


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
        (random_model("bert", "fill-mask"), ExportFields(output_tensors=("a", "b")), "the model has 1"),
        (LoaderFields("fill-mask", "bert"), ExportFields(), "neither a model folder nor"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    bench: Bench, loader: LoaderFields, fields: ExportFields, words: str
) -> None:
    with pytest.raises(StageError, match=words):
        bench.export(loader, fields)


def test_another_seed_is_another_model() -> None:
    first, again, other = (
        load_pytorch_model(random_model("resnet", "image-classification", seed), None).model.state_dict()
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not torch.equal(first["classifier.1.weight"], other["classifier.1.weight"])


CALLER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from export_models import Bench, random_model
from winml_dag.stages.export import ExportFields
bench = Bench(Path(sys.argv[1]))
for dynamo in (False, True):
    bench.export(random_model("bert", "text-classification"), ExportFields(dynamo=dynamo))
"""


@pytest.mark.slow
def test_bytes_depend_on_neither_folder_nor_process_nor_earlier_work(tmp_path: Path) -> None:
    # Dynamo records the caller's path and line in every node.
    caller = tmp_path / "somewhere else" / "deep" / "caller.py"
    caller.parent.mkdir(parents=True)
    caller.write_text(CALLER.format(tests=str(Path(__file__).parent)), encoding="utf-8")
    environment = {**os.environ, "PYTHONHASHSEED": "2"}
    subprocess.run([sys.executable, caller, caller.parent], check=True, env=environment, capture_output=True)
    for number, dynamo in enumerate((False, True)):
        here = exported_once(random_model("bert", "text-classification"), ExportFields(dynamo=dynamo))
        there = caller.parent / f"scratch-{number}" / "outputs"
        written = sorted(path for path in there.rglob("*") if path.is_file())
        assert len(written) == 2
        for path in written:
            assert path.read_bytes() == (here.model.parents[1] / path.relative_to(there)).read_bytes()
            assert str(tmp_path).encode() not in path.read_bytes()


def test_all_promised_architectures_are_exported_here() -> None:
    from winml_dag.stages.export import architectures

    tested = {each.name for each in architectures.ARCHITECTURES.values() if each.tested}
    assert tested == {*SMALL, *(each.model_type for each in ARCHITECTURES)}
