"""A model created by a Python file of the user."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import BartConfig, BartForSequenceClassification

from winml_dag.errors import StageError
from winml_dag.stages.export import ExportConfig, ExportFields, InputTensor, LoaderFields
from winml_dag.stages.export.loading import load_pytorch_model, scripted
from winml_dag.stages.export.subject import SentenceEndClassifier

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
