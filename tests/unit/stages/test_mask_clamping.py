"""Constants that represent infinity: which are replaced, and which stay."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from optimize_samples import graph

from winml_dag.stages.float_model import write_typed
from winml_dag.stages.mask_clamping import clamp_certain

LOWEST = float(np.finfo(np.float32).min)
MASKED = "g (float[1, 4] x) => (float[1, 4] y) { y = Add (x, mask) }"


def written(folder: Path, model: onnx.ModelProto, *, finite: bool = True) -> tuple[int, onnx.ModelProto]:
    source = folder / "model.onnx"
    onnx.save(model, source)
    count = write_typed(source, folder / "float.onnx", finite=finite)
    return count, onnx.load(folder / "float.onnx")


def constant(model: onnx.ModelProto, name: str) -> list[float]:
    return numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == name)).ravel().tolist()


def in_file(name: str, file: str, dims: list[int]) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=file)
    return tensor


@pytest.mark.parametrize("infinity", [LOWEST, -np.inf, -1e30])
def test_only_infinite_mask_is_clamped_to_50_if_asked(tmp_path: Path, infinity: float) -> None:
    mask = np.array([[0, infinity, 7, -infinity]], np.float32)
    model = graph(MASKED, mask=mask)
    count, result = written(tmp_path, model)
    assert (count, constant(result, "mask")) == (1, [0, -50, 7, 50])
    large = np.array([[-10000, 1e9, 1e29, -1e29]], np.float32)
    for values, finite in ((mask, False), (large, True)):
        count, result = written(tmp_path, graph(MASKED, mask=values), finite=finite)
        assert (count, constant(result, "mask")) == (0, values.ravel().tolist())


def test_clip_bound_shared_with_mask_is_unchanged(tmp_path: Path) -> None:
    text = "g (float[1, 4] x) => (float[1, 4] y) { c = Clip (x, low) y = Add (c, low) }"
    count, result = written(tmp_path, graph(text, low=np.array(LOWEST, np.float32)))
    clip, add = result.graph.node
    assert count == 1
    assert constant(result, clip.input[1]) == [LOWEST]
    assert constant(result, add.input[1]) == [-50]


def test_attributes_and_subgraphs_are_clamped(tmp_path: Path) -> None:
    model = graph(
        f"""g (float[1, 4] x) => (float[1, 4] y) <int64[2] shape = {{1, 4}}, bool yes = {{1}}> {{
        fill = ConstantOfShape <value = float[1] {{{LOWEST}}}> (shape)
        chosen = If (yes) <
            then_branch = t () => (float[1, 4] then) {{ c = Constant <value_float = {LOWEST}> () then = Add (x, c) }},
            else_branch = e () => (float[1, 4] else) {{ else = Identity (x) }}>
        y = Add (chosen, fill) }}"""
    )
    count, result = written(tmp_path, model)
    assert count == 2
    filled, branching, _ = result.graph.node
    assert numpy_helper.to_array(filled.attribute[0].t).tolist() == [-50]
    (inner,) = [attribute.g for attribute in branching.attribute if attribute.name == "then_branch"]
    assert inner.node[0].attribute[0].f == -50


def test_whole_external_mask_is_scanned(tmp_path: Path) -> None:
    """16 MiB, which is more than is processed at once."""
    count = 2**22
    with (tmp_path / "mask.bin").open("wb") as file:
        file.seek(4 * (count - 1))
        file.write(np.float32(LOWEST).tobytes())
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {MASKED}')
    model.graph.initializer.append(in_file("mask", "mask.bin", [count]))
    assert clamp_certain(model, tmp_path / "model.onnx") == 1
    mask = numpy_helper.to_array(model.graph.initializer[0])
    assert (mask[-1], np.count_nonzero(mask)) == (-50, 1)


def test_external_table_is_scanned_without_loading_it_whole(tmp_path: Path) -> None:
    """An embedding of 128 MiB is no matrix weight, so it is scanned, in pieces."""
    rows = 2**15
    with (tmp_path / "table.bin").open("wb") as file:
        file.truncate(rows * 4096)
    text = "g (int64[2] ids) => (float[2, 1024] y) { y = Gather (table, ids) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    model.graph.initializer.append(in_file("table", "table.bin", [rows, 1024]))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    tracemalloc.start()
    try:
        count = write_typed(tmp_path / "model.onnx", tmp_path / "float.onnx", finite=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 0
    assert peak < 32 * 2**20
