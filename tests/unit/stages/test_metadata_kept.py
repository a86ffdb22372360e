"""A model's metadata (class names, producer, descriptions) is kept: what builds do not show, and compile beside it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from metadata_samples import describe, said
from optimize_samples import graph, optimize
from quantization_samples import image_model, quantize

from winml_dag.onnxmodel import files
from winml_dag.onnxmodel.files import resave
from winml_dag.onnxmodel.metadata import carry_metadata


def test_optimize_and_blockwise_weights_keep_metadata(tmp_path: Path) -> None:
    model = describe(image_model())
    assert said(optimize(tmp_path, model, "conv_channel_affine_folding", "clamp_constant_values").model) == said(model)
    assert said(quantize(tmp_path, model, "rtn", rtn_block_size=16).model) == said(model)
    unchanged = describe(graph("g (float16[2, 2] x) => (float16[2, 2] y) { y = MatMul (x, x) }", 17))
    assert said(optimize(tmp_path, unchanged).model) == said(unchanged)


def test_externalizing_weights_keeps_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "EXTERNAL_DATA_THRESHOLD", 1)
    model = describe(image_model())
    model.graph.node[0].metadata_props.add(key="of a node", value="stays too")
    model.graph.node[0].doc_string = "Of a node."
    onnx.save(model, tmp_path / "model.onnx")
    resave(tmp_path / "model.onnx", tmp_path / "again.onnx")
    again = onnx.load(tmp_path / "again.onnx")
    assert said(again) == said(model)
    assert again.graph.node[0] == model.graph.node[0]


def test_tool_metadata_is_not_copied() -> None:
    source, made = image_model(), describe(image_model())
    made.metadata_props.add(key="ep_compatibility_info.X", value="1")
    expected = said(source)
    carry_metadata(source, made)
    assert said(made) == expected
    assert not made.metadata_props
    made.metadata_props.add(key="ep_compatibility_info.X", value="1")
    carry_metadata(describe(source), made, kept="ep_compatibility_info.")
    assert [entry.key for entry in made.metadata_props] == ["names", "stride", "author", "ep_compatibility_info.X"]
