"""The export of models: tensors, shapes, refusals, the module of each node, and that bytes depend on nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from export_models import (
    ARCHITECTURES,
    SMALL,
    Architecture,
    Bench,
    Exported,
    exported_once,
    made,
    names,
    picture,
    random_model,
    signature,
)
from late import Late
from onnxruntime.quantization import quantize_dynamic
from optimize_samples import optimize

from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.onnxmodel.metadata import tag_of
from winml_dag.stages.export import ExportFields, InputTensor, LoaderFields, architectures

torch = Late("torch")
exporter = Late("winml_dag.stages.export.exporter")

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
def test_task_determines_input_and_output_tensors(model_type: str, task: str, outputs: list[str]) -> None:
    found = signature(random_model(model_type, task))
    assert names(found["input_tensors"]) == TEXT_INPUTS.get(model_type, ["pixel_values"])
    assert names(found["output_tensors"]) == outputs


def test_long_text_models_default_to_128_tokens() -> None:
    tensors = signature(random_model("bert", "feature-extraction", max_position_embeddings=512))["input_tensors"]
    assert [each["shape"] for each in tensors] == [[1, 128]] * 3


@pytest.mark.parametrize(
    ("model_type", "task", "length", "outputs"),
    [
        ("bert", "token-classification", 40, {"logits": [1, 40, 3]}),
        # 40 positions, which start after the padding token 1.
        ("roberta", "fill-mask", 38, {"logits": [1, 38, 100]}),
        ("distilbert", "question-answering", 40, {"start_logits": [1, 40], "end_logits": [1, 40]}),
    ],
)
def test_text_encoders_take_int32_of_maximum_length(
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


@pytest.mark.parametrize(
    ("model_type", "task", "size", "outputs"),
    [
        ("resnet", "image-feature-extraction", 224, {"last_hidden_state": [1, 16, 28, 28]}),
        ("vit", "image-feature-extraction", 32, {"last_hidden_state": [1, 17, 32]}),
        ("convnext", "image-classification", 32, {"logits": [1, 2]}),
    ],
)
def test_image_models_export_with_pixel_values(
    bench: Bench, model_type: str, task: str, size: int, outputs: dict[str, list[int | str]]
) -> None:
    exported = bench.export(random_model(model_type, task))
    (pixels,) = model_inputs(exported.model)
    assert (pixels.name, pixels.dtype, pixels.shape) == ("pixel_values", "float32", (1, 3, size, size))
    assert outputs_of(exported.model) == outputs


# TorchScript's graphs of decoders are twice as long.
DECODER = random_model("gpt2", "text-generation", n_layer=1)
DYNAMIC = ExportFields(
    input_tensors=(InputTensor("input_ids", shape=("batch", "sequence")), InputTensor("attention_mask"))
)


@pytest.mark.parametrize(
    ("loader", "used", "scores"),
    [
        (random_model("bert", "token-classification"), "torchscript", 2),
        pytest.param(DECODER, "dynamo", 100, marks=pytest.mark.slow),
    ],
)
def test_dynamic_axes_accept_other_sizes(tmp_path: Path, loader: LoaderFields, used: str, scores: int) -> None:
    exported = exported_once(loader, DYNAMIC)
    assert exported.metrics["exporter"] == used
    session = onnxruntime.InferenceSession(exported.model)
    assert [each.shape for each in session.get_inputs()] == [["batch", "sequence"]] * 2
    assert outputs_of(exported.model) == {"logits": ["batch", "sequence", scores]}
    ids = np.arange(5 * 7, dtype=np.int32).reshape(5, 7)
    (logits,) = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    assert logits.shape == (5, 7, scores)
    assert not onnx.load(exported.model).graph.value_info
    # With dynamo's own shape information this fails on a contradiction over a folded weight.
    quantize_dynamic(exported.model, tmp_path / "int8.onnx")


def test_dynamic_axes_can_be_set_without_shapes(bench: Bench) -> None:
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
def test_invalid_dynamic_axes_are_refused(bench: Bench, axes: dict[str, dict[str, str]], words: str) -> None:
    tensors = (InputTensor("pixel_values", shape=("batch", 3, 32, 32)),)
    fields = ExportFields(input_tensors=tensors, dynamic_axes=axes)
    with pytest.raises(StageError, match=words):
        bench.export(random_model("vit", "image-classification"), fields)


def test_recipe_tensors_and_opset_override_defaults(bench: Bench) -> None:
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


FEATURES, MASKED = random_model("bert", "feature-extraction"), random_model("bert", "fill-mask")


@pytest.mark.parametrize(
    ("loader", "fields", "words"),
    [
        (FEATURES, ExportFields(input_tensors=(InputTensor("input_idz"),)), "did you mean 'input_ids'"),
        (FEATURES, ExportFields(input_tensors=(InputTensor("position_ids"),)), "dtype and shape of 'position_ids'"),
        (FEATURES, ExportFields(input_tensors=(InputTensor("input_ids", shape=(1, 2, 3)),)), "cannot run on input_ids"),
        (random_model("resnet", "fill-mask"), ExportFields(), "no model for the architecture 'resnet'"),
        (MASKED, ExportFields(opset_version=99, dynamo=False), "opset"),
        (MASKED, ExportFields(export_params=False), "export_params"),
        (MASKED, ExportFields(output_tensors=("a", "b")), "the model has 1"),
        (LoaderFields("fill-mask", "bert"), ExportFields(), "neither a model folder nor"),
    ],
)
def test_unexportable_request_is_refused(bench: Bench, loader: LoaderFields, fields: ExportFields, words: str) -> None:
    with pytest.raises(StageError, match=words):
        bench.export(loader, fields)


CALLER = """
import sys
from pathlib import Path
sys.path[:0] = {folders!r}
from export_models import Bench, random_model
from winml_dag.stages.export import ExportFields
Bench(Path(sys.argv[1])).export(random_model("resnet", "image-classification"), ExportFields(dynamo=True))
"""


@pytest.mark.slow
def test_bytes_do_not_depend_on_folder_process_or_earlier_work(tmp_path: Path) -> None:
    """Dynamo records the caller's path and line in every node; a scenario builds with TorchScript's exporter twice."""
    caller = tmp_path / "somewhere else" / "deep" / "caller.py"
    caller.parent.mkdir(parents=True)
    caller.write_text(CALLER.format(folders=[*map(str, Path(__file__).parents[:3:2])]), encoding="utf-8")
    environment = {**os.environ, "PYTHONHASHSEED": "2"}
    subprocess.run([sys.executable, caller, caller.parent], check=True, env=environment, capture_output=True)
    here = exported_once(random_model("resnet", "image-classification"), ExportFields(dynamo=True)).model.parents[1]
    there = caller.parent / "scratch-0" / "outputs"
    written = sorted(path for path in there.rglob("*") if path.is_file())
    assert len(written) == 2
    for path in written:
        assert path.read_bytes() == (here / path.relative_to(there)).read_bytes()
        assert str(tmp_path).encode() not in path.read_bytes()


@pytest.mark.parametrize("name", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
def test_export_does_not_change_the_model(tmp_path: Path, name: str) -> None:
    """In train mode, batch normalization would use, and change, other statistics."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    pixels = torch.rand(2, 3, 8, 8)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        before = model(pixels)
    options = exporter.ExportOptions(name, 21, True, ("input",), {"logits": "output_0"}, {})
    exporter.export_onnx(model, (pixels,), options, tmp_path / "model.onnx")
    assert not any(module.training for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model(pixels), before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.slow
def test_other_exporter_is_fallback_unless_one_was_chosen(tmp_path: Path) -> None:
    class Cosh(torch.nn.Module):
        """The TorchScript exporter does not know this function."""

        def forward(self, pixels: Any) -> Any:
            return torch.cosh(pixels)

    pixels = torch.rand(2, 3)
    options = exporter.ExportOptions("torchscript", 21, True, ("pixels",), {"logits": "output_0"}, {})
    with pytest.raises(StageError, match="torchscript exporter cannot export") as failure:
        exporter.export_onnx(Cosh(), (pixels,), options, tmp_path / "model.onnx")
    assert "Set export.dynamo to true" in failure.value.advice
    taken = exporter.export_onnx(Cosh(), (pixels,), options, tmp_path / "model.onnx", any_exporter=True)
    assert taken == replace(options, exporter="dynamo")
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model)
    with pytest.raises(StageError, match="wrote opset 21 instead of 99"):  # it takes an opset that it does not know
        exporter.check_export(model, replace(taken, opset_version=99))


@pytest.mark.parametrize(("model_type", "task"), [("bert", "text-classification"), ("resnet", "image-classification")])
def test_externalized_weights_change_no_byte(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, model_type: str, task: str
) -> None:
    """By default, none of these small models has weights that are put aside."""
    loader, fields = random_model(model_type, task), ExportFields(dynamo=False)
    expected = exported_once(loader, fields).model.read_bytes()
    monkeypatch.setattr("winml_dag.stages.export.exporter.LEAST_BYTES", 64)
    assert bench.export(loader, fields).model.read_bytes() == expected


def test_large_weights_bypass_the_exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = torch.nn.Linear(256, 256), tmp_path / "model.onnx"
    with exporter.weights_aside() as aside:
        torch.onnx.export(model, (torch.ones(1, 256),), str(path), dynamo=False)
    assert path.stat().st_size < 4096
    [(name, tensor)] = aside.items()
    assert tensor.data_ptr() == model.weight.data_ptr()
    exporter.attach_weights(path, aside)
    [found] = [each for each in onnx.load(path).graph.initializer if each.name == name]
    assert torch.equal(torch.from_numpy(onnx.numpy_helper.to_array(found).copy()), model.weight)

    monkeypatch.setattr("winml_dag.stages.export.exporter._LAST_PASS", "no_such_pass")  # as in a torch without it
    with exporter.weights_aside() as aside:
        torch.onnx.export(model, (torch.ones(1, 256),), str(path), dynamo=False)
    assert not aside
    assert path.stat().st_size > 256 * 256 * 4


def test_all_supported_architectures_are_tested() -> None:
    tested = {each.name for each in architectures.ARCHITECTURES.values() if each.tested}
    assert tested == {*SMALL, *(each.model_type for each in ARCHITECTURES)}


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
def test_every_recipe_architecture_exports(bench: Bench, architecture: Architecture) -> None:
    """The stage compares each with PyTorch on three inputs, and fails when they differ."""
    exported = bench.export(architecture.loader, architecture.fields)
    found = [(each.name, each.dtype, each.shape) for each in model_inputs(exported.model)]
    assert found == [(each.name, each.dtype, each.shape) for each in architecture.inputs]
    assert tuple(outputs_of(exported.model)) == architecture.outputs
    assert exported.metrics["opset_version"] == 17
    assert exported.metrics["cosine"] > 0.9999


def test_fixed_size_model_interpolates_positions_once(bench: Bench) -> None:
    """DINOv2's table is for another image size; resizing it in every call takes a bicubic Resize."""
    dinov2 = next(each for each in ARCHITECTURES if each.model_type == "dinov2")
    loader = made(dinov2.task, "dinov2_with_registers", **dinov2.config, image_size=70)
    exported = bench.export(loader, replace(dinov2.fields, input_tensors=picture(56, 56)))
    operators = {node.op_type for node in onnx.load(exported.model).graph.node}
    assert "Resize" not in operators


def test_decoder_without_attention_mask_exports_with_torchscript(bench: Bench) -> None:
    decoder = random_model("gpt2", "text-generation")
    exported = bench.export(decoder, ExportFields(dynamo=False, input_tensors=(InputTensor("input_ids"),)))
    assert exported.metrics["exporter"] == "torchscript"


def classifier(model_type: str = "bert", **fields: Any) -> Exported:
    task = "text-classification" if model_type == "bert" else "image-classification"
    return exported_once(random_model(model_type, task), ExportFields(dynamo=False, **fields))


def branches(module: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield module
    for child in module["children"].values():
        yield from branches(child)


@pytest.mark.parametrize(
    ("exported", "attentions"),
    [
        (classifier, [f"BertModel/BertEncoder/BertLayer.{layer}/BertAttention/BertSelfAttention" for layer in (0, 1)]),
        pytest.param(
            lambda: exported_once(DECODER, DYNAMIC),
            ["GPT2Model/GPT2Block.0/GPT2Attention"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["torchscript", "dynamo"],
)
def test_nodes_are_tagged_with_their_module(exported: Callable[[], Exported], attentions: list[str]) -> None:
    hierarchy, graph = exported().hierarchy, onnx.load(exported().model).graph
    tags: dict[str, str] = hierarchy["nodes"]
    softmaxes = [tags[node.name] for node in graph.node if node.op_type == "Softmax"]
    assert softmaxes == [f"/{hierarchy['model']['class_name']}/{each}" for each in attentions]
    # Every linear layer multiplies by its own weights, so its tag must be on a MatMul or Gemm.
    modules = branches(hierarchy["modules"])
    linear = {each["traced_tag"] for each in modules if each["class_name"] in ("Linear", "Conv1D")}
    assert linear <= {tags.get(node.name) for node in graph.node if node.op_type in ("MatMul", "Gemm")}


@pytest.mark.parametrize("model_type", ["bert", "resnet"])
def test_hierarchy_covers_all_nodes_and_modules_without_time_or_path(model_type: str) -> None:
    exported = classifier(model_type)
    hierarchy, scratch = exported.hierarchy, exported.model.parents[2]
    names = [node.name for node in onnx.load(exported.model).graph.node]
    nodes, statistics = hierarchy["nodes"], hierarchy["statistics"]
    assert len(set(names)) == len(names) == statistics["onnx_nodes"] == exported.metrics["nodes"]
    assert set(nodes) <= set(names)
    assert statistics["tagged_nodes"] == len(nodes)
    assert statistics["empty_tags"] == len(names) - len(nodes)
    assert statistics["coverage_percentage"] == round(100 * len(nodes) / len(names), 2) > 80
    modules = list(branches(hierarchy["modules"]))
    assert hierarchy["modules"]["execution_order"] == 0
    assert len(modules) == hierarchy["model"]["total_modules"]
    called = [module["execution_order"] for module in modules if module["execution_order"] is not None]
    assert sorted(called) == list(range(hierarchy["tracing"]["modules_traced"]))
    assert (scratch / "outputs").is_dir()
    assert str(scratch) not in str(hierarchy)
    assert hierarchy["export_context"]["timestamp"] is None
    if model_type == "bert":
        assert hierarchy["model"]["name_or_path"] == "bert/BertForSequenceClassification"
        assert {each["scope"] for each in modules} >= {"", "bert.encoder.layer.1.attention.self.query", "classifier"}
    else:  # a sequential container is seen through
        assert any(tag.endswith("/Sequential/Linear.1") for tag in nodes.values())


def test_tags_are_embedded_and_survive_optimization(tmp_path: Path) -> None:
    exported = classifier()
    model = onnx.load(exported.model)
    tags = {node.name: tag for node in model.graph.node if (tag := tag_of(node))}
    assert tags == exported.hierarchy["nodes"]
    assert exported.hierarchy["export_context"]["embed_hierarchy_attributes"]
    optimized = optimize(tmp_path / "optimized", model, "gelu_fusion", "matmul_add_fusion")
    assert optimized.ops["Gemm"] > 0
    assert optimized.metrics["tagged_nodes"] == len(optimized.model.graph.node)
    products = {tag_of(node) for node in optimized.model.graph.node if node.op_type == "Gemm"}
    linear = {each["traced_tag"] for each in branches(exported.hierarchy["modules"]) if each["class_name"] == "Linear"}
    assert products == linear


def test_tags_may_be_left_out_of_model_module_only_or_disabled() -> None:
    exported = classifier(clean_onnx=True, hierarchy_tag_format="module_only")
    assert not any(node.metadata_props for node in onnx.load(exported.model).graph.node)
    assert not exported.hierarchy["export_context"]["embed_hierarchy_attributes"]
    tags = exported.hierarchy["nodes"].values()
    assert "BertLayer.1" in tags or "BertSelfAttention" in tags
    assert not any("/" in tag for tag in tags)
    hierarchy = classifier("resnet", enable_hierarchy_tags=False).hierarchy
    assert hierarchy["nodes"] == {}
    assert hierarchy["statistics"]["coverage_percentage"] == 0
