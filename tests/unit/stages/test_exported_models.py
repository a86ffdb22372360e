"""Models that PyTorch exports: analyze finds their patterns, and optimized they compute the same.

Counts of patterns follow from the number of layers.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from capability_samples import TOGETHER
from optimize_samples import assert_same_results, optimize

from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages.analyze.patterns import find_all

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LAYERS = 2
SIZES = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 64}
IDS = torch.ones(1, 12, dtype=torch.long)
TEXT = {"input_ids": IDS, "attention_mask": IDS}
PIXELS = {"pixel_values": torch.zeros(1, 3, 32, 32)}
Made = tuple[Any, Mapping[str, Any]]


def bert(activation: str, attention: str = "eager") -> Made:
    sizes = {"vocab_size": 50, "max_position_embeddings": 16, "hidden_act": activation}
    config = transformers.BertConfig(**SIZES, **sizes, attn_implementation=attention)
    return transformers.BertModel(config, add_pooling_layer=False), TEXT


def vit() -> Made:
    config = transformers.ViTConfig(**SIZES, image_size=32, patch_size=8, attn_implementation="eager")
    return transformers.ViTModel(config), PIXELS


def gpt2() -> Made:
    """Its heads are followed directly by a Reshape to two dimensions."""
    sizes = {"n_embd": 32, "n_layer": LAYERS, "n_head": 2, "vocab_size": 50, "n_positions": 16, "use_cache": False}
    return transformers.GPT2Model(transformers.GPT2Config(**sizes, attn_implementation="eager")), TEXT


def t5() -> Made:
    """It has no scale in its attention."""
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": LAYERS, "num_heads": 2, "vocab_size": 50}
    config = transformers.T5Config(**sizes, feed_forward_proj="gated-gelu")
    return transformers.T5EncoderModel(config), {"input_ids": IDS}


def swin() -> Made:
    """It moves windows through six dimensions, into windows and back."""
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2]}
    config = transformers.SwinConfig(**sizes, window_size=4)
    return transformers.SwinModel(config, add_pooling_layer=False), PIXELS


def export(model: Any, inputs: Mapping[str, Any], opset: int, *, dynamo: bool) -> onnx.ModelProto:
    class FirstOutput(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            return self.model(**dict(zip(inputs, values, strict=True)))[0]

    file = io.BytesIO()
    given, names = tuple(inputs.values()), {"input_names": list(inputs), "output_names": ["output"]}
    torch.onnx.export(FirstOutput().eval(), given, file, opset_version=opset, dynamo=dynamo, verbose=False, **names)
    return onnx.load_from_string(file.getvalue())


def patterns(folder: Path, model: onnx.ModelProto) -> Counter[str]:
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "model.onnx")
    return Counter(match.pattern for match in find_all(Dataflow(read_model(folder / "model.onnx", values=True))))


# Normalizations are spelled out below opset 17; products with biases are queries, keys, values and three more.
BERT = {"GeluPattern": LAYERS, "LayerNormPattern": 2 * LAYERS + 1, "RMSNormPattern": 0, "MatMulAddPattern": 6 * LAYERS}
NORMS = {"RMSNormPattern": 2 * LAYERS + 1}
WINDOWS = {"ReshapeTransposeReshapeOverlyHighDim": 2 * LAYERS}


@pytest.mark.parametrize(
    ("make", "opset", "exported", "optimized"),
    [
        pytest.param(lambda: bert("gelu"), 16, BERT, {"GeluPattern": LAYERS}, id="bert"),
        pytest.param(lambda: bert("gelu_new", "sdpa"), 17, {"GeluPattern": LAYERS}, {}, id="bert sdpa"),
        pytest.param(lambda: bert("quick_gelu"), 21, {"QuickGeluPattern": LAYERS}, {}, id="bert quick_gelu"),
        pytest.param(lambda: bert("gelu_new"), 21, {"GeluPattern": LAYERS}, {}, id="bert by dynamo"),
        pytest.param(vit, 21, {}, {}, id="vit"),
        pytest.param(gpt2, 17, {}, {"GeluPattern": LAYERS}, id="gpt2"),
        pytest.param(t5, 17, {**NORMS, "LayerNormPattern": 0}, NORMS, id="t5"),
        pytest.param(swin, 17, {"GeluPattern": LAYERS}, WINDOWS, id="swin"),
    ],
)
def test_patterns_are_found_and_all_capabilities_compute_the_same(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    make: Callable[[], Made],
    opset: int,
    exported: Mapping[str, int],
    optimized: Mapping[str, int],
) -> None:
    torch.manual_seed(0)
    name = request.node.callspec.id
    model = export(*make(), opset, dynamo="dynamo" in name)
    plain = optimize(tmp_path / "plain", model)
    optimized = {"AttentionPattern": LAYERS, **optimized}
    for found, expected in ((patterns(tmp_path, model), exported), (patterns(tmp_path, plain.model), optimized)):
        assert {pattern: found[pattern] for pattern in expected} == expected
    together = optimize(tmp_path / "together", model, *TOGETHER)
    # A Conv instead of a Gemm needs more nodes around it.
    fused = optimize(tmp_path / "fused", model, *(name for name in TOGETHER if "conv2d" not in name))
    for result in (plain, together, fused):
        assert_same_results(result)
    assert fused.ops["com.microsoft/MultiHeadAttention"] == (0 if "sdpa" in name else LAYERS)
    assert fused.metrics["nodes_after"] <= plain.metrics["nodes_after"]
    assert not fused.ops.keys() & {"Erf", "Tanh"}
    lowest = min(values.min() for values in fused.constants.values() if values.dtype == np.float32)
    assert lowest >= -50
