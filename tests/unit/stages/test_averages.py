"""QNN computes averages that exclude padding wrongly in half precision; compiled by this package they are correct."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from ep_stage_runs import compiled, loaded, requires_qnn
from hypothesis import given, settings
from hypothesis import strategies as st
from optimize_samples import graph, outputs

from winml_dag.stages.compiler import count_padding


def pooling(sizes: list[int], opset: int = 19, **attributes: object) -> onnx.ModelProto:
    settings = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    size, made = ", ".join(map(str, sizes)), ", ".join("hw"[: len(sizes)])
    return graph(f"g (float[1, 4, {size}] x) => (float[1, 4, {made}] y) {{ y = AveragePool <{settings}> (x) }}", opset)


def averages(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return outputs(model, {"x": x})[0]


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], dict[str, object]]:
    rank = draw(st.sampled_from([1, 2]))
    each = st.integers
    kernel = [draw(each(1, 4)) for _ in range(rank)]
    pads = [draw(each(0, kernel[axis % rank] - 1)) for axis in range(2 * rank)]
    sizes = [draw(each(9, 14)) for _ in range(rank)]
    more = {"strides": [draw(each(1, 3)) for _ in range(rank)], "dilations": [draw(each(1, 2)) for _ in range(rank)]}
    return sizes, {"kernel_shape": kernel, "pads": pads, **more}


@given(windows())
@settings(max_examples=25)
def test_counting_padding_preserves_the_result(drawn: tuple[list[int], dict[str, object]]) -> None:
    sizes, attributes = drawn
    model = pooling(sizes, **attributes)
    x = np.random.default_rng(0).standard_normal((1, 4, *sizes)).astype(np.float32)
    expected = averages(model, x)
    assert count_padding(model) == any(attributes["pads"])  # type: ignore[call-overload]
    np.testing.assert_allclose(averages(model, x), expected, rtol=1e-5, atol=1e-6)
    assert not count_padding(model)


@pytest.mark.parametrize("attributes", [{"count_include_pad": 1}, {"ceil_mode": 1}])
def test_correct_or_unsupported_pooling_is_unchanged(attributes: dict[str, object]) -> None:
    assert not count_padding(pooling([9, 9], kernel_shape=[3, 3], pads=[1, 1, 1, 1], **attributes))


@requires_qnn
def test_npu_averages_match_cpu(tmp_path: Path) -> None:
    model = pooling([56, 56], opset=17, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = (np.random.default_rng(0).standard_normal((1, 4, 56, 56)) + 1).astype(np.float32)
    (found,) = loaded(compiled(tmp_path, model)).run(None, {"x": x})
    np.testing.assert_allclose(found, averages(model, x), atol=0.01)
