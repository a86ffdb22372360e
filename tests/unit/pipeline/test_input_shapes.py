"""Sizes of open dimensions: requested sizes, defaults of a target, and what is rejected early."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from winml_dag.errors import UsageError
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.pipeline.normalization import RequestedShapes, shapes_for
from winml_dag.recipe.schema import InputTensor

QNN = "QNNExecutionProvider"


def specs(**shapes: Sequence[int | str]) -> list[TensorSpec]:
    return [TensorSpec(name, "float32", tuple(shape)) for name, shape in shapes.items()]


def asked(
    batch: int | None = None, sizes: Mapping[str, int] | None = None, **tensors: Sequence[int | str]
) -> RequestedShapes:
    given = tuple(InputTensor(name=name, shape=tuple(shape)) for name, shape in tensors.items())
    return RequestedShapes(batch, sizes, given)


NCHW = specs(x=("N", 3, "h", "w"))


@pytest.mark.parametrize(
    ("inputs", "given", "expected"),
    [
        (specs(x=("N", 3)), asked(), {"x": (1, 3)}),
        (specs(x=("?", 3)), asked(), {"x": (1, 3)}),
        (specs(x=("?", 3)), asked(4), {"x": (4, 3)}),
        (specs(x=("?", 3)), asked(sizes={"batch_size": 4}), {"x": (4, 3)}),
        (specs(x=("?", 3)), asked(x=(4, 3)), {"x": (4, 3)}),
        (specs(x=("?", 3), y=(2, 2)), asked(4), {"x": (4, 3)}),
        (specs(x=("N", 3), y=("N",)), asked(x=(4, 3)), {"x": (4, 3), "y": (4,)}),
        (specs(x=("a", 3), y=("b",)), asked(x=(4, 3)), {"x": (4, 3), "y": (4,)}),
        (NCHW, asked(sizes={"h": 8, "w": 9}), {"x": (1, 3, 8, 9)}),
        (NCHW, asked(2, x=(1, 3, 8, 9)), {"x": (2, 3, 8, 9)}),
        (NCHW, asked(sizes={"h": 8}, x=("N", 3, "h", 9)), {"x": (1, 3, 8, 9)}),
        (specs(x=("batch", 3), h=(2, "batch", 5)), asked(), {"x": (1, 3), "h": (2, 1, 5)}),
        (specs(x=("...",)), asked(x=(2, 5)), {"x": (2, 5)}),
        (specs(x=(1, 3), s=()), asked(), {}),
        (specs(x=(1, 3)), asked(1, x=(1, 3)), {}),
    ],
)
def test_fixed_shape_target_sets_every_dimension(
    inputs: list[TensorSpec], given: RequestedShapes, expected: Mapping[str, tuple[int, ...]]
) -> None:
    assert shapes_for(inputs, given, QNN).shapes == expected


def test_default_batch_is_reported_and_given_batch_is_not() -> None:
    notice = shapes_for(specs(x=("N", 3)), asked(), QNN).notice
    assert "the open batch of x [N, 3] is 1" in notice
    assert "--batch-size" in notice
    assert shapes_for(specs(x=("N", 3)), asked(2), QNN).notice == ""


def test_other_targets_fix_only_given_sizes() -> None:
    assert shapes_for(NCHW, asked()).shapes == {}
    assert shapes_for(NCHW, asked(2)).shapes == {"x": (2, 3, "h", "w")}
    assert shapes_for(NCHW, asked(sizes={"h": 8})).shapes == {"x": ("N", 3, 8, "w")}


def test_name_shared_with_other_dimension_is_not_a_batch() -> None:
    inputs = specs(ids=("batch", "length"), weights=("length", 4))
    with pytest.raises(UsageError, match="'length' of input 'ids'"):
        shapes_for(inputs, asked(), QNN)
    found = shapes_for(inputs, asked(sizes={"length": 16}), QNN)
    assert found.shapes == {"ids": (1, 16), "weights": (16, 4)}


@pytest.mark.parametrize(
    ("inputs", "given", "said"),
    [
        (NCHW, asked(), "'h' of input 'x' (axis 2 of [N, 3, h, w]) is open, and 1 more"),
        (specs(x=(0, 8)), asked(), "no tensor without elements, and input 'x' has the shape [0, 8]"),
        (specs(x=(1, "?")), asked(), "without a name of input 'x' (axis 1 of [1, ?]) is open"),
        (specs(x=("...",)), asked(), "input 'x' has no shape"),
        (NCHW, asked(sizes={"hh": 8, "w": 9}), "no dimension of the model's inputs is called 'hh'; did you mean 'h'?"),
        (specs(x=("?", 3)), asked(sizes={"side": 9}), "no dimension of the model's inputs has a name"),
        (specs(x=(1, 3)), asked(2), "no input of the model has an open first dimension: x [1, 3]"),
        (specs(x=("N", 3)), asked(x=(1, 4)), "says 4 for axis 1 of 'x', which the model fixes at 3"),
        (specs(x=("N", 3)), asked(x=(1, 3, 3)), "has 3 dimensions"),
        (specs(pixels=("N", 3)), asked(pixel=(1, 3)), "no input 'pixel'; did you mean 'pixels'?"),
        (specs(x=("N", 3)), asked(2, x=(4, 3)), "The dimension 'N' is 2 by"),
        (specs(x=("?", 3)), asked(2, x=(4, 3)), "Axis 0 of 'x' is 2 by"),
        (specs(x=("N", 3), y=("N", 3)), asked(x=(4, 3), y=(2, 3)), "Equal names mean equal sizes."),
        (specs(x=("N", 3)), asked(2, {"batch_size": 3}), "batch_size is 3, and export.batch_size is 2"),
        (
            specs(x=("N", 3)),
            RequestedShapes(tensors=(InputTensor(name="x", dtype="int64"),)),
            "takes float32, not int64",
        ),
    ],
)
def test_invalid_sizes_are_refused_with_input_and_dimension(
    inputs: list[TensorSpec], given: RequestedShapes, said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        shapes_for(inputs, given, QNN)
    assert said in str(refused.value)


@pytest.mark.parametrize("inputs", [NCHW, specs(x=(1, "?", 4)), specs(x=("...",)), specs(x=("N", "?"), y=("N", "t"))])
def test_advice_for_open_dimensions_leads_to_fixed_shapes(inputs: list[TensorSpec]) -> None:
    """Following the advice repeatedly leads to fixed shapes."""
    sizes: dict[str, int] = {}
    tensors: dict[str, Sequence[int | str]] = {}
    for _ in range(3):
        try:
            found = shapes_for(inputs, asked(None, sizes, **tensors), QNN)
            break
        except UsageError as refused:
            match = re.search(r"--(shape-config|input-specs) '(.+?)' \(", refused.advice)
            assert match
            given = json.loads(match[2])
            if match[1] == "shape-config":
                sizes |= given
            else:
                tensors |= {name: spec["shape"] for name, spec in given.items()}
    assert all(isinstance(dim, int) for shape in found.shapes.values() for dim in shape)
    assert found.shapes.keys() == {spec.name for spec in inputs}


def test_options_override_recipe_tensors() -> None:
    spelled_out = asked(4, {"h": 8}, x=(2, 3, 6, 6))
    with pytest.raises(UsageError, match="is 8 by"):
        shapes_for(NCHW, replace(spelled_out, batch_size=None), QNN)
    assert shapes_for(NCHW, replace(spelled_out, tensors_yield=True), QNN).shapes == {"x": (4, 3, 8, 6)}
