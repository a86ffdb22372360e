"""Models that PyTorch exports: analyze finds their patterns, and optimized they compute the same.

Counts of patterns follow from the number of layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from capability_samples import TOGETHER
from export_models import Bench, made
from optimize_samples import assert_same_results, optimize

from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages.analyze.patterns import find_all
from winml_dag.stages.export import ExportFields, InputTensor, LoaderFields

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LAYERS = 1
SIZES = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 64}
TEXT, IMAGE = "feature-extraction", "image-feature-extraction"
VIT = made(IMAGE, "vit", **SIZES, image_size=32, patch_size=8)
# Its heads are followed directly by a Reshape to two dimensions.
GPT2 = made(TEXT, "gpt2", n_embd=32, n_layer=LAYERS, n_head=2, vocab_size=50, n_positions=16)
# It has no scale in its attention.
T5_SIZES = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": LAYERS, "num_heads": 2, "vocab_size": 50}
T5 = made(TEXT, "t5", "T5EncoderModel", **T5_SIZES, feed_forward_proj="gated-gelu")
# It moves windows through six dimensions, into windows and back.
SWIN_SIZES = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [LAYERS], "num_heads": [2]}
SWIN = made(IMAGE, "swin", **SWIN_SIZES, window_size=4)


def bert(activation: str) -> LoaderFields:
    return made(TEXT, "bert", **SIZES, vocab_size=50, max_position_embeddings=16, hidden_act=activation)


def patterns(folder: Path, model: onnx.ModelProto) -> Counter[str]:
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "model.onnx")
    return Counter(match.pattern for match in find_all(Dataflow(read_model(folder / "model.onnx", values=True))))


# Normalizations are spelled out below opset 17; products with biases are queries, keys, values and three more.
BERT = {"GeluPattern": LAYERS, "LayerNormPattern": 2 * LAYERS + 1, "RMSNormPattern": 0, "MatMulAddPattern": 6 * LAYERS}
NORMS = {"RMSNormPattern": 2 * LAYERS + 1}
WINDOWS = {"ReshapeTransposeReshapeOverlyHighDim": 2 * LAYERS}


@pytest.mark.parametrize(
    ("loader", "how", "opset", "exported", "optimized"),
    [
        (bert("gelu"), "", 16, BERT, {"GeluPattern": LAYERS}),
        (bert("gelu_new"), "sdpa", 17, {"GeluPattern": LAYERS}, {}),
        (bert("quick_gelu"), "", 21, {"QuickGeluPattern": LAYERS}, {}),
        (bert("gelu_new"), "dynamo", 21, {"GeluPattern": LAYERS}, {}),
        (VIT, "", 21, {}, {}),
        (GPT2, "", 17, {}, {"GeluPattern": LAYERS}),
        (T5, "unmasked", 17, {**NORMS, "LayerNormPattern": 0}, NORMS),
        (SWIN, "", 17, {"GeluPattern": LAYERS}, WINDOWS),
    ],
)
def test_exported_patterns_are_found_and_optimized_results_are_equal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loader: LoaderFields,
    how: str,
    opset: int,
    exported: Mapping[str, int],
    optimized: Mapping[str, int],
) -> None:
    if how == "sdpa":
        monkeypatch.setattr("winml_dag.stages.export.loading.ATTENTION", "sdpa")
    tensors = (InputTensor("input_ids"),) if how == "unmasked" else None
    fields = ExportFields(opset, dynamo=how == "dynamo", clean_onnx=True, input_tensors=tensors)
    model = onnx.load(Bench(tmp_path).export(loader, fields).model)
    plain = optimize(tmp_path / "plain", model)
    optimized = {"AttentionPattern": LAYERS, **optimized}
    for found, expected in ((patterns(tmp_path, model), exported), (patterns(tmp_path, plain.model), optimized)):
        assert {pattern: found[pattern] for pattern in expected} == expected
    together = optimize(tmp_path / "together", model, *TOGETHER)
    # A Conv instead of a Gemm needs more nodes around it.
    fused = optimize(tmp_path / "fused", model, *(name for name in TOGETHER if "conv2d" not in name))
    for result in (plain, together, fused):
        assert_same_results(result)
    assert fused.ops["com.microsoft/MultiHeadAttention"] == (0 if how == "sdpa" else LAYERS)
    assert fused.metrics["nodes_after"] <= plain.metrics["nodes_after"]
    assert not fused.ops.keys() & {"Erf", "Tanh"}
    lowest = min(values.min() for values in fused.constants.values() if values.dtype == np.float32)
    assert lowest >= -50
