"""Patterns in models exported by PyTorch; their counts follow from the number of layers."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages.analyze.patterns import find_all
from winml_dag.stages.optimize.levels import to_portable_level

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LAYERS = 3
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


def _bert(attention: str, activation: str) -> tuple[Any, dict[str, Any]]:
    config = transformers.BertConfig(
        **SIZES, vocab_size=50, max_position_embeddings=16, hidden_act=activation, attn_implementation=attention
    )
    ids = torch.ones(1, 12, dtype=torch.long)
    return transformers.BertModel(config, add_pooling_layer=False), {"input_ids": ids, "attention_mask": ids}


def _t5() -> tuple[Any, dict[str, Any]]:
    config = transformers.T5Config(
        d_model=32, d_kv=16, d_ff=64, num_layers=LAYERS, num_heads=2, vocab_size=50, feed_forward_proj="gated-gelu"
    )
    return transformers.T5EncoderModel(config), {"input_ids": torch.ones(1, 12, dtype=torch.long)}


def _swin() -> tuple[Any, dict[str, Any]]:
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    return transformers.SwinModel(config, add_pooling_layer=False), {"pixel_values": torch.zeros(1, 3, 32, 32)}


class _FirstOutput(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Any) -> Any:
        return self.model(**dict(zip(self.names, values, strict=True)))[0]


def _count(folder: Path, model: Any, inputs: dict[str, Any], opset: int) -> tuple[Counter[str], Counter[str]]:
    """Return the patterns in *model* after export, and after the basic level of optimize."""
    file = io.BytesIO()
    wrapped = _FirstOutput(model, list(inputs)).eval()
    torch.onnx.export(wrapped, tuple(inputs.values()), file, opset_version=opset, dynamo=False)
    before, after = folder / "before.onnx", folder / "after.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load_from_string(file.getvalue())), before)
    to_portable_level(before, after)
    flows = (Dataflow(read_model(path, values=True)) for path in (before, after))
    exported, optimized = (Counter(match.pattern for match in find_all(flow)) for flow in flows)
    return exported, optimized


@pytest.mark.parametrize(
    ("attention", "activation"), [("eager", "gelu"), ("sdpa", "gelu_new"), ("eager", "quick_gelu")]
)
def test_bert_has_an_attention_and_an_activation_in_each_layer(tmp_path: Path, attention: str, activation: str) -> None:
    exported, optimized = _count(tmp_path, *_bert(attention, activation), opset=17)
    gelu = "QuickGeluPattern" if activation == "quick_gelu" else "GeluPattern"
    assert exported[gelu] == optimized[gelu] == LAYERS
    assert optimized["AttentionPattern"] == LAYERS
    assert exported["MatMulAddPattern"] == 6 * LAYERS  # for queries, keys, values, their output, and two around it


def test_normalizations_are_spelled_out_below_opset_17(tmp_path: Path) -> None:
    exported, _ = _count(tmp_path, *_bert("eager", "gelu"), opset=16)
    assert exported["LayerNormPattern"] == 2 * LAYERS + 1
    assert exported["RMSNormPattern"] == 0


def test_t5_has_root_mean_square_normalizations_and_attention_without_scale(tmp_path: Path) -> None:
    exported, optimized = _count(tmp_path, *_t5(), opset=17)
    assert exported["RMSNormPattern"] == optimized["RMSNormPattern"] == 2 * LAYERS + 1
    assert optimized["AttentionPattern"] == LAYERS
    assert exported["LayerNormPattern"] == 0


def test_swin_moves_windows_through_six_dimensions(tmp_path: Path) -> None:
    exported, optimized = _count(tmp_path, *_swin(), opset=17)
    assert optimized["ReshapeTransposeReshapeOverlyHighDim"] == 2 * 2  # into windows and back, in each of two layers
    assert exported["GeluPattern"] == 2
