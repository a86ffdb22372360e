from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from capability_samples import TOGETHER
from optimize_samples import assert_same_results, optimize

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "attn_implementation": "eager",
}


def _bert(activation: str) -> tuple[Any, dict[str, Any]]:
    config = transformers.BertConfig(**SIZES, vocab_size=50, max_position_embeddings=16, hidden_act=activation)
    ids = torch.ones(1, 12, dtype=torch.long)
    return transformers.BertModel(config), {"input_ids": ids, "attention_mask": ids}


def _vit() -> tuple[Any, dict[str, Any]]:
    config = transformers.ViTConfig(**SIZES, image_size=32, patch_size=8)
    return transformers.ViTModel(config), {"pixel_values": torch.zeros(1, 3, 32, 32)}


def _gpt2() -> tuple[Any, dict[str, Any]]:
    """Its heads are followed directly by a Reshape to two dimensions."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 16, "use_cache": False}
    config = transformers.GPT2Config(**sizes, attn_implementation="eager")
    ids = torch.ones(1, 12, dtype=torch.long)
    return transformers.GPT2Model(config), {"input_ids": ids, "attention_mask": ids}


def _export(model: Any, inputs: dict[str, Any], *, dynamo: bool, opset: int) -> onnx.ModelProto:
    class FirstOutput(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            return self.model(**dict(zip(inputs, values, strict=True)))[0]

    file = io.BytesIO()
    torch.onnx.export(
        FirstOutput().eval(),
        tuple(inputs.values()),
        file,
        input_names=list(inputs),
        output_names=["output"],
        opset_version=opset,
        dynamo=dynamo,
        verbose=False,
    )
    return onnx.load_from_string(file.getvalue())


@pytest.mark.parametrize(
    ("made", "dynamo", "opset"),
    [
        ("bert gelu", False, 17),
        ("bert gelu_new", False, 21),
        ("bert gelu_new", True, 21),
        ("vit", False, 21),
        ("gpt2", False, 17),
    ],
)
def test_exported_models_compute_the_same_with_all_capabilities(
    tmp_path: Path, made: str, dynamo: bool, opset: int
) -> None:
    torch.manual_seed(0)
    makers = {"vit": _vit, "gpt2": _gpt2}
    model, inputs = makers[made]() if made in makers else _bert(made.removeprefix("bert "))
    exported = _export(model, inputs, dynamo=dynamo, opset=opset)
    plain = optimize(tmp_path / "plain", exported)
    together = optimize(tmp_path / "together", exported, *TOGETHER)
    # A Conv instead of a Gemm needs more nodes around it.
    fused = optimize(tmp_path / "fused", exported, *(name for name in TOGETHER if "conv2d" not in name))
    for result in (plain, together, fused):
        assert_same_results(result)
    assert fused.ops["com.microsoft/MultiHeadAttention"] == SIZES["num_hidden_layers"]
    assert fused.metrics["nodes_after"] <= plain.metrics["nodes_after"]
    assert not fused.ops.keys() & {"Erf", "Tanh"}
    lowest = min(values.min() for values in fused.constants.values() if values.dtype == np.float32)
    assert lowest >= -50
