"""Where a model comes from: a saved folder, a seed, or a Python file of the user."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from export_models import SMALL, Bench, made, random_model, signature
from late import Late

from winml_dag.errors import StageError
from winml_dag.stages.export import ExportFields, InputTensor, LoaderFields

torch = Late("torch")
transformers = Late("transformers")
loading = Late("winml_dag.stages.export.loading")
subject = Late("winml_dag.stages.export.subject")

FEATURES = "feature-extraction"
CLASSIFIER = LoaderFields("text-classification")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench")


@pytest.fixture(scope="module")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("model")
    config = transformers.BertConfig(**SMALL["bert"], num_labels=3)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(classifier_folder: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return Path(shutil.copytree(classifier_folder, tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def test_saved_model_matches_pytorch_without_network(
    bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    exported = bench.export(CLASSIFIER, folder=folder)
    ids = np.arange(40, dtype=np.int32)[None]
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    (found,) = onnxruntime.InferenceSession(exported.model).run(None, feed)
    model = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        wanted = model(**{name: torch.from_numpy(array) for name, array in feed.items()}).logits
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-6)


def test_checkpoints_load_as_float32_without_unpickling(folder: Path) -> None:
    model = transformers.BertForSequenceClassification.from_pretrained(folder).half()
    model.save_pretrained(folder)
    assert {each.dtype for each in loading.load_pytorch_model(CLASSIFIER, folder).model.parameters()} == {torch.float32}
    state = model.state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    found = loading.load_pytorch_model(CLASSIFIER, folder)
    assert not found.missing
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.model.state_dict().items())


class _Payload:
    """Makes the file "ran" when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


def _pickled_code(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"classifier.bias": _Payload()}, folder / "pytorch_model.bin")


def _shard_outside(folder: Path) -> None:
    shutil.move(folder / "model.safetensors", folder.parent / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": {"classifier.bias": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_pickled_code, "cannot be loaded"),
        (_shard_outside, "not a file of the model folder"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"no weights: there is config\.json"),
        (lambda folder: os.truncate(folder / "model.safetensors", 2000), "cut short"),
        (
            lambda folder: edit_config(folder, quantization_config={"quant_method": "gptq", "bits": 4}),
            r"quantized already \(gptq\)",
        ),
        (lambda folder: (folder / "adapter_config.json").write_text("{}", encoding="utf-8"), "adapter"),
        (
            lambda folder: edit_config(folder, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1}),
            r"classifier\.bias is \[3\] instead of \[2\]",
        ),
    ],
    ids=["code", "a shard outside", "no weights", "cut short", "quantized", "an adapter", "another shape"],
)
def test_incomplete_or_unsafe_folder_is_refused(
    folder: Path, damage: Callable[[Path], Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    damage(folder)
    with pytest.raises(StageError, match=words):
        loading.load_pytorch_model(CLASSIFIER, folder)
    assert not Path("ran").exists()


def test_missing_weights_that_reach_an_output_are_refused(bench: Bench, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"no weights for cls\.predictions"):
        bench.export(LoaderFields("fill-mask"), folder=folder)
    pooled = ExportFields(output_tensors=("pooler_output",))
    bert = transformers.BertModel(transformers.BertConfig(**SMALL["bert"]), add_pooling_layer=False)
    bert.save_pretrained(tmp_path / "no pooler")
    assert bench.export(LoaderFields(FEATURES), folder=tmp_path / "no pooler").metrics["cosine"] > 0.9999
    with pytest.raises(StageError, match=r"no weights for pooler\.dense"):
        bench.export(LoaderFields(FEATURES), pooled, tmp_path / "no pooler")


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
def test_tied_weights_are_not_reported_missing(tmp_path: Path, model_type: str) -> None:
    """The decoder of a language model is its word table, which is saved once."""
    loading.load_pytorch_model(random_model(model_type, "fill-mask"), None).model.save_pretrained(tmp_path)
    assert not loading.load_pytorch_model(LoaderFields("fill-mask"), tmp_path).missing


def test_recipe_that_contradicts_folder_is_refused(folder: Path) -> None:
    assert loading.load_pytorch_model(replace(CLASSIFIER, model_type="bert"), folder)
    for loader, words in (
        (replace(CLASSIFIER, model_type="roberta"), r"config\.json says 'bert'"),
        (random_model("bert", "fill-mask"), "both"),
    ):
        with pytest.raises(StageError, match=words):
            loading.load_pytorch_model(loader, folder)


def test_one_tower_of_composite_model_is_loaded(tmp_path: Path) -> None:
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**layers, "vocab_size": 100, "max_position_embeddings": 16}
    vision = {**layers, "image_size": 32, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    loader = LoaderFields("feature-extraction", "clip_text_model", "CLIPTextModelWithProjection")
    loaded = loading.load_pytorch_model(loader, tmp_path)
    assert not loaded.missing
    with torch.no_grad():
        found = loaded.model(torch.arange(16)[None])
    assert (found["text_embeds"].shape, found["last_hidden_state"].shape) == ((1, 8), (1, 16, 32))


@pytest.mark.parametrize(
    ("preprocessor", "size"),
    [
        ({"size": {"height": 64, "width": 32}}, (64, 32)),
        ({"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 96, "width": 96}}, (96, 96)),
        ({"size": {"shortest_edge": 256}, "do_center_crop": False, "crop_size": 96}, (256, 256)),
        ({"size": 48}, (48, 48)),
        ({}, (224, 224)),
    ],
)
def test_image_size_comes_from_preprocessor(
    tmp_path: Path, preprocessor: dict[str, Any], size: tuple[int, int]
) -> None:
    transformers.ResNetConfig(**SMALL["resnet"]).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor), encoding="utf-8")
    (pixels,) = signature(LoaderFields("image-classification"), folder=tmp_path)["input_tensors"]
    assert pixels["shape"] == [1, 3, *size]


def test_vit_with_wrong_image_size_reports_shapes(bench: Bench, tmp_path: Path) -> None:
    transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL["vit"])).save_pretrained(tmp_path / "vit")
    (tmp_path / "vit/preprocessor_config.json").write_text('{"size": 64}', encoding="utf-8")
    with pytest.raises(StageError, match=r"pixel_values torch.float32 \[1, 3, 64, 64\]"):
        bench.export(LoaderFields("image-classification"), folder=tmp_path / "vit")


CODE = """
import torch
from pathlib import Path
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput

class OwnConfig(PreTrainedConfig):
    model_type = "own"

class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(4, 2)
        self.post_init()
    def forward(self, pixel_values=None):
        return ImageClassifierOutput(logits=self.layer(pixel_values))
"""


def test_custom_code_runs_only_if_trusted_and_local(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own.py").write_text(CODE, encoding="utf-8")
    torch.save({"layer.weight": torch.ones(2, 4), "layer.bias": torch.ones(2)}, folder / "pytorch_model.bin")

    def describe(repository: str) -> None:
        classes = {"AutoConfig": "own.OwnConfig", "AutoModelForImageClassification": "own.OwnModel"}
        auto_map = {name: f"{repository}{each}" for name, each in classes.items()}
        text = json.dumps({"model_type": "own", "auto_map": auto_map})
        (folder / "config.json").write_text(text, encoding="utf-8")

    fields = ExportFields(input_tensors=(InputTensor("pixel_values", shape=(1, 4)),))
    loader = LoaderFields("image-classification")
    trusting = replace(loader, trust_remote_code=True)
    describe("")
    with pytest.raises(StageError, match="Python code of its own"):
        bench.export(loader, fields, folder)
    assert bench.export(trusting, fields, folder).hierarchy["model"]["class_name"] == "OwnModel"
    describe("somebody/else--")
    with pytest.raises(StageError, match="another repository"):
        bench.export(trusting, fields, folder)


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (
            made(FEATURES, "bert", hidden_sise=32),
            "hidden_sise is not a field of BertConfig; did you mean 'hidden_size'",
        ),
        (made(FEATURES, "clip", text_config={"hidden_sise": 32}), r"text_config\.hidden_sise"),
        (made(FEATURES, "bert", hidden_size="wide"), "does not fit BertConfig"),
        (made(FEATURES, "bert", hidden_size=33), "gives no model"),
        (made(FEATURES, "burt"), "did you mean 'bert'"),
        (made(FEATURES, None), r"needs loader\.model_type"),
        (made(FEATURES, "bert", "BertForMaskedLLM"), "did you mean 'BertForMaskedLM'"),
        (made(FEATURES, "bert", "logging"), "not a model class"),
        (made(FEATURES, "bert", "BertTokenizer"), "not a model class"),
        (made(FEATURES, "bert", "RobertaForMaskedLM"), "not a class for the architecture 'bert'"),
    ],
)
def test_invalid_architecture_is_refused(loader: LoaderFields, words: str) -> None:
    with pytest.raises(StageError, match=words):
        loading.load_pytorch_model(loader, None)


@pytest.mark.parametrize("model_class", ["BertForMaskedLM", "AutoModelForMaskedLM"])
def test_model_class_can_be_chosen(model_class: str) -> None:
    loader = replace(random_model("bert", "feature-extraction"), model_class=model_class)
    assert type(loading.load_pytorch_model(loader, None).model).__name__ == "BertForMaskedLM"


@pytest.mark.parametrize("model_type", SMALL)
def test_random_weights_are_seeded_and_not_all_zero(model_type: str) -> None:
    task = "image-feature-extraction" if model_type in ("resnet", "vit", "convnext") else FEATURES
    first, again, other = (
        loading.load_pytorch_model(random_model(model_type, task, seed), None).model.state_dict() for seed in (1, 1, 2)
    )
    assert [name for name, tensor in first.items() if tensor.is_floating_point() and not tensor.any()] == []
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not all(torch.equal(tensor, other[name]) for name, tensor in first.items())


SCRIPT = """
import torch

class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, left, right):
        return self.linear(left) + right, left * 2

def make(folder):
    return Sum() if folder is None else None
"""


def script(folder: Path, text: str = SCRIPT) -> Path:
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return folder


def by_script(folder: Path, name: str | None = None) -> Any:
    return loading.load_pytorch_model(LoaderFields(FEATURES, model_class=name), None, folder).model


def test_script_class_or_function_makes_model_with_same_weights(tmp_path: Path) -> None:
    """Only what the script itself defines is taken for the model."""
    folder = script(tmp_path, "from torch.nn import Linear\n" + SCRIPT)
    models = [by_script(folder, name) for name in ("Sum", "make", None)]
    assert {type(model).__name__ for model in models} == {"Sum"}
    assert not any(model.training for model in models)
    assert torch.equal(models[0].linear.weight, models[1].linear.weight)
    # A class without a constructor is called with nothing.
    text = "import torch\nclass Twice(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n"
    assert by_script(script(tmp_path, text))(torch.ones(1)).item() == 2


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("raise RuntimeError('not today')", "Sum", "mine.py .* cannot be run: not today"),
        (SCRIPT, "Som", "does not define; did you mean 'Sum'"),
        ("x = 1", None, "defines 0 model classes"),
        (SCRIPT.replace("return Sum()", "return 3"), "make", "not a torch.nn.Module"),
        ("import sys; sys.exit()", "Sum", "mine.py .* cannot be run: it calls sys.exit"),
    ],
)
def test_script_without_model_is_refused(tmp_path: Path, text: str, name: str | None, words: str) -> None:
    with pytest.raises(StageError, match=words):
        by_script(script(tmp_path, text), name)


def test_script_model_is_exported_with_recipe_names(bench: Bench, tmp_path: Path) -> None:
    tensors = (InputTensor("left", "float32", (1, 4)), InputTensor("right", "float32", (1, 3)))
    fields = ExportFields(input_tensors=tensors, output_tensors=("sum", "double"))
    loader = LoaderFields(FEATURES, model_class="Sum")
    (tmp_path / "script").mkdir()
    exported = bench.export(loader, fields, script(tmp_path / "script"), slot="script")
    assert exported.metrics["cosine"] == pytest.approx(1)
    assert [each.name for each in onnx.load(exported.model).graph.output] == ["sum", "double"]


def test_sentence_end_classifier_matches_transformers() -> None:
    sizes = {"vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32}
    heads = {"decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "eos_token_id": 2}
    torch.manual_seed(0)
    model = transformers.BartForSequenceClassification(transformers.BartConfig(**sizes, **heads)).eval()
    ids = torch.tensor([[5, 2, 6, 7, 2, 8], [9, 10, 2, 11, 12, 2]])
    mask = torch.ones_like(ids)
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits
        torch.testing.assert_close(subject.SentenceEndClassifier(model)(ids, mask)["logits"], wanted)
