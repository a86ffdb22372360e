"""One module of a model: found, called with the inputs that the model passes, and exported separately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from export_models import SMALL, Bench, made, random_model
from late import Late

from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.pipeline.frozen_recipe import module_recipes
from winml_dag.stages.export import CaptureConfig, ExportFields, InputTensor, LoaderFields

torch = Late("torch")
transformers = Late("transformers")
loading = Late("winml_dag.stages.export.loading")
capturing = Late("winml_dag.stages.export.module")

HIDDEN = ExportFields(input_tensors=(InputTensor("hidden_states", shape=(1, 5, 32)),))
SHAPELESS = ExportFields(input_tensors=(InputTensor("hidden_states"),))
BERT = random_model("bert", "text-classification")
LLAMA = made(
    "text-generation",
    "llama",
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 2),
    hidden_size=32,
    intermediate_size=64,
    vocab_size=50,
    max_position_embeddings=8,
)
SWIN_SIZES = {"image_size": 32, "embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
SWIN = made("image-classification", "swin", **SWIN_SIZES)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def captured(loader: LoaderFields, module_class: str) -> Any:
    return capturing.run_capture(CaptureConfig(loader, ExportFields(), module_class), Workspace({}, {}))


def fields_of(module: Mapping[str, Any]) -> ExportFields:
    """Return the export fields of a recipe with *module*."""
    tensors = tuple(
        InputTensor(each["name"], each["dtype"], tuple(each["shape"]), tuple(each["value_range"]))
        for each in module["input_tensors"]
    )
    return ExportFields(input_tensors=tensors, module_arguments=module["arguments"] or None)


def of(loader: LoaderFields, path: str, model_class: str | None = None) -> LoaderFields:
    return replace(loader, module_path=path, model_class=model_class)


@pytest.mark.parametrize(
    ("loader", "module_class", "inputs", "arguments"),
    [
        (BERT, "BertLayer", ["hidden_states"], {}),
        # A tuple of two tensors, a mask that only hides, and positions that the layer receives and ignores.
        (
            LLAMA,
            "LlamaDecoderLayer",
            ["hidden_states", "attention_mask", "position_embeddings.0", "position_embeddings.1"],
            {},
        ),
        (SWIN, "SwinLayer", ["hidden_states"], {"input_dimensions": [8, 8]}),
    ],
    ids=["bert", "llama", "swin"],
)
def test_module_is_exported_with_its_captured_inputs(
    bench: Bench, loader: LoaderFields, module_class: str, inputs: list[str], arguments: Mapping[str, Any]
) -> None:
    told = captured(loader, module_class)
    assert len(told["modules"]) == 2
    assert told["left_out"] == {}
    module = told["modules"][0]
    assert [tensor["name"] for tensor in module["input_tensors"]] == inputs
    assert module["arguments"] == arguments
    exported = bench.export(of(loader, module["path"], module_class), fields_of(module))
    assert exported.metrics["cosine"] > 0.9999
    model = onnx.load(exported.model)
    assert [value.name for value in model.graph.input] == inputs
    assert [value.name for value in model.graph.output] == module["outputs"]
    assert exported.hierarchy["model"]["class_name"] == module_class


def test_modules_of_saved_model_give_the_same_results(bench: Bench, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(transformers.BertConfig(**SMALL["bert"])).eval()
    model.save_pretrained(tmp_path / "model")
    given = torch.randn(1, 5, 32)
    loader = LoaderFields("text-classification", "bert", module_path="bert.encoder.layer.1")
    exported = bench.export(loader, HIDDEN, tmp_path / "model")
    (answer,) = onnxruntime.InferenceSession(exported.model).run(None, {"hidden_states": given.numpy()})
    with torch.no_grad():
        other, expected = (layer(given) for layer in model.bert.encoder.layer)
    np.testing.assert_allclose(answer, expected.numpy(), atol=1e-5)
    assert not np.allclose(answer, other.numpy(), atol=1e-2)


@pytest.mark.parametrize(
    ("task", "path"), [("feature-extraction", "bert.encoder.layer.1"), ("text-classification", "encoder.layer.1")]
)
def test_module_path_is_found_across_classes_of_an_architecture(task: str, path: str) -> None:
    model = loading.load_pytorch_model(random_model("bert", task), None).model
    assert type(model.get_submodule(capturing.module_path(model, path))).__name__ == "BertLayer"


def test_unnamed_inputs_are_passed_by_position(bench: Bench) -> None:
    fields = ExportFields(input_tensors=(InputTensor("input_0", "float32", (1, 5, 32)),))
    exported = bench.export(of(BERT, "bert.encoder.layer.0.attention.self"), fields)
    assert [each.name for each in model_inputs(exported.model)] == ["input_0"]


@pytest.mark.parametrize(
    ("path", "fields", "sentence"),
    [
        ("bert.encoder.layers.0", HIDDEN, r"no module 'bert.encoder.layers.0'.* bert.encoder.layer.0"),
        ("bert.encoder", HIDDEN, r"is a BertEncoder, but loader.model_class says 'BertLayer'"),
        ("bert.encoder.layer.0", ExportFields(), r"inputs of BertLayer are not known.*config --module"),
        ("bert.encoder.layer.0", SHAPELESS, r"must give the shape of 'hidden_states'"),
    ],
)
def test_unexportable_module_is_refused(bench: Bench, path: str, fields: ExportFields, sentence: str) -> None:
    with pytest.raises(StageError, match=sentence):
        bench.export(of(BERT, path, "BertLayer"), fields)


@pytest.mark.parametrize(
    ("tensor", "arguments"), [("input_dimension", None), ("hidden_states", {"input_dimension": [8, 8]})]
)
def test_unknown_module_argument_is_refused(bench: Bench, tensor: str, arguments: Any) -> None:
    fields = ExportFields(input_tensors=(InputTensor(tensor, shape=(1, 64, 12)),), module_arguments=arguments)
    with pytest.raises(StageError, match=r"does not take; did you mean 'input_dimensions'"):
        bench.export(of(SWIN, "swin.encoder.layers.0.blocks.0"), fields)


def test_unknown_module_class_suggests_nearest() -> None:
    with pytest.raises(StageError, match=r"no module of the class 'BertLayr'.*BertLayer"):
        captured(BERT, "BertLayr")


def test_module_recipes_inherit_model_settings_with_own_tensors() -> None:
    settings = {
        "model": "m",
        "ep": "cpu",
        "loader": {"task": "text-classification"},
        "export": {"opset_version": 17, "dynamic_axes": {"input_ids": {"0": "batch"}}, "batch_size": 2},
        "quant": {"mode": "static", "samples": 4, "task": "text-classification", "calibration_data": "data.npz"},
        "eval": {"samples": 3},
    }
    (first, second), left_out = module_recipes(settings, BERT, ExportFields(), None, "BertLayer")
    assert left_out == {}
    loader = {"task": "text-classification", "model_type": "bert", "model_class": "BertLayer"}
    assert first["loader"] == {**loader, "module_path": "bert.encoder.layer.0"}
    assert second["loader"] == {**loader, "module_path": "bert.encoder.layer.1"}
    assert set(first["export"]) == {"opset_version", "input_tensors", "output_tensors"}  # type: ignore[arg-type]
    assert first["quant"] == {"mode": "static", "samples": 4}
    assert (first["model"], first["ep"], "eval" in first) == ("m", "cpu", False)
