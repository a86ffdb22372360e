"""All samples that tables are measured with, each identified by its number and a seed.

They are ONNX's own node tests, random draws from all operators, from the operators of most models, or cell by cell, and
draws on which tables disagree.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto

from winml_dag.ep.support.case import Level, Quantized
from winml_dag.ep.support.table import SupportTable
from winml_dag.stages.probe.onenode import Array, OneNode, case_of_model
from winml_dag.stages.probe.samples import elementwise, layers, shaping
from winml_dag.stages.probe.samples.draft import (
    INTEGERS,
    QUANTIZES_FROM,
    SIZES,
    TYPES,
    Draft,
    Draw,
    InvalidError,
    Maker,
    finish,
    quantized,
    settle,
    with_output_types,
)

OPERATORS: dict[str, tuple[Maker, float]] = {**elementwise.OPERATORS, **shaping.OPERATORS, **layers.OPERATORS}
_MAKERS = [(maker, weight) for maker, weight in OPERATORS.values()]
# The share of draws that are variations of ONNX's tests.
_SHARE_OF_TESTS = 0.15


@dataclass(frozen=True)
class Sample:
    """``expected``: the results that ONNX defines; None if it defines none."""

    node: OneNode
    expected: tuple[Array, ...] | None = None


def sample(number: int, seed: int, sizes: Sequence[int] = SIZES, *, tests: bool = True) -> Sample | None:
    """The sample *number* of *seed*: ONNX's tests first, then random draws. None if the draw is not a valid model.

    *tests*: whether ONNX's tests are included as they are.
    """
    if tests:
        known = node_tests()
        if number < len(known):
            return known[number]
        number -= len(known)
    return drawn(seed * 1_000_003 + number, sizes)


def drawn(seed: int, sizes: Sequence[int] = SIZES, *, varies_tests: bool = True) -> Sample | None:
    """A random draw with *seed*; None if it is not a valid model. Without *varies_tests*, ONNX's tests are not read."""
    draw = Draw(seed, sizes)
    try:
        if draw.chance(_SHARE_OF_TESTS) and varies_tests:
            return Sample(varied(draw.choice(node_tests()).node, draw))
        return Sample(settle(draw.weighted(_MAKERS)(draw), draw))
    except InvalidError:
        return None


_VARIED_TYPES = (("float32", 4.0), ("float16", 2.0), ("float64", 1.0), ("int32", 1.0), ("int64", 1.0))
_SMALLEST_OPSET = 7


@cache
def node_tests() -> tuple[Sample, ...]:
    """ONNX's tests of one node whose inputs and outputs are tensors of numbers or booleans, sorted by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        tests = collect_testcases(None)
    found = (_node_test(test) for test in sorted(tests, key=lambda test: str(test.name)))
    return tuple(test for test in found if test is not None)


def _node_test(test: Any) -> Sample | None:
    if test.model is None or len(test.model.graph.node) != 1 or not test.data_sets:
        return None
    node: NodeProto = test.model.graph.node[0]
    inputs, outputs = test.data_sets[0]
    fed = dict(zip((value.name for value in test.model.graph.input), inputs, strict=False))
    if not all(_is_tensor(value) for value in (*inputs, *outputs)) or len(fed) < len(test.model.graph.input):
        return None
    arrays = tuple(np.asarray(fed[name]) if name else None for name in node.input)
    types = {value.name: value.type.tensor_type.elem_type for value in test.model.graph.output}
    opset = next(each.version for each in test.model.opset_import if each.domain == node.domain)
    one = OneNode(
        node.op_type,
        opset,
        arrays,
        tuple(types.get(name, 0) for name in node.output),
        node.domain,
        {attribute.name: attribute for attribute in node.attribute},
    )
    return Sample(one, tuple(np.asarray(value) for value in outputs))


def _is_tensor(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind in "fiub"


def varied(node: OneNode, draw: Draw) -> OneNode:
    """Return *node* with another type, opset, constants and open sizes, drawn at random.

    Raises:
        InvalidError: ONNX does not allow the result.
    """
    if node.domain:
        raise InvalidError
    kind = draw.weighted(_VARIED_TYPES)
    main = next((array.dtype for array in node.inputs if array is not None and array.dtype.kind == "f"), None)
    if main is not None and kind != main:
        node = replace(node, inputs=tuple(_as(array, main, kind) for array in node.inputs))
    if draw.chance(0.6) and node.opset > _SMALLEST_OPSET:
        node = replace(node, opset=draw.integer(max(_SMALLEST_OPSET, node.opset - 8), node.opset + 3))
    later = [number for number, array in enumerate(node.inputs) if number and array is not None]
    if draw.chance(0.6):
        node = replace(node, constants=frozenset(draw.some(later, 0)) if later else frozenset())
    return finish(with_output_types(node), draw, quantizes=kind == "float32" and main is not None)


def _as(array: Array | None, main: np.dtype[Any], kind: str) -> Array | None:
    return array.astype(kind) if array is not None and array.dtype == main else array


_ACTIVATIONS = tuple(dict.fromkeys(types.activations for types, _ in INTEGERS))
_TRIES_OF_CELL = 8
_ANY_SEED = 0  # the types of an operator are the same in all its drafts, except for the few that draw them


@cache
def cells() -> tuple[tuple[str, str], ...]:
    """Every operator with every type that it may have, or with the integers of its activations.

    A table says nothing about types that an operator was not measured with, and random draws miss the rare ones.
    """
    found: list[tuple[str, str]] = []
    for name, (maker, _) in OPERATORS.items():
        draft = maker(Draw(_ANY_SEED))
        found += [(name, kind) for kind, _ in TYPES[draft.types]]
        found += [(name, f"between {kind}") for kind in _ACTIVATIONS if draft.quantizes]
    return tuple(found)


def cell_sample(number: int, seed: int, sizes: Sequence[int] = SIZES) -> Sample | None:
    """The sample *number* of *seed*: the cells in turn, repeatedly. None if several drafts give no valid model."""
    name, kind = cells()[number % len(cells())]
    maker, _ = OPERATORS[name]
    for attempt in range(_TRIES_OF_CELL):
        draw = Draw((seed * 1_000_003 + number) * _TRIES_OF_CELL + attempt, sizes)
        try:
            if not kind.startswith("between "):
                return Sample(settle(replace(maker(draw), types=kind, quantizes=False), draw))
            node = settle(replace(maker(draw), types="float32", quantizes=False), draw)
            if node.opset >= QUANTIZES_FROM:
                return Sample(quantized(node, _integers(draw, kind.removeprefix("between "))))
        except InvalidError:
            continue
    return None


def _integers(draw: Draw, activations: str) -> Quantized:
    return draw.weighted([(types, weight) for types, weight in INTEGERS if types.activations == activations])


_CORE = (
    *("MatMul", "Gemm", "Conv", "Add", "Mul", "LayerNormalization", "Softmax", "Gather") * 3,
    *("Reshape", "Transpose", "Concat", "Slice", "Split", "Sub", "Div", "Resize", "ConvTranspose") * 2,
    "AveragePool", "MaxPool", "GlobalAveragePool", "ReduceMean", "ReduceSum", "Clip", "Relu", "Sigmoid", "Tanh", "Gelu",
    "Sqrt", "Pow", "Expand", "Where", "Unsqueeze", "Squeeze", "Flatten", "Pad", "BatchNormalization", "HardSwish",
    "InstanceNormalization", "LeakyRelu", "PRelu", "Equal", "DepthToSpace", "Exp", "Neg", "HardSigmoid", "GridSample",
    "ScatterND", "GatherND", "GatherElements", "TopK", "CumSum", "ReduceMax", "Max", "Min", "Tile", "Einsum", "ArgMax",
)  # fmt: skip
_CORE_INTEGERS = (
    (Quantized("uint8", "uint8"), 3.0),
    (Quantized("uint8", "uint8", True), 2.0),
    (Quantized("uint16", "uint8"), 3.0),
    (Quantized("uint16", "uint8", True), 3.0),
    (Quantized("uint16", "int8", True), 1.0),
    (Quantized("uint16", "int16"), 1.5),
)
_CORE_QUANTIZED = 0.75
_CORE_OPSETS = range(13, 22)


def core_sample(seed: int, sizes: Sequence[int] = SIZES) -> Sample | None:
    """A draw with *seed* from the operators of nearly all exported models.

    It has a form that exporters and quantize write; None if it is not a valid model. Drawn separately, so that a table
    covers these operators well.
    """
    draw = Draw(seed, sizes)
    maker, _ = OPERATORS[draw.choice(_CORE)]
    draft = replace(maker(draw), types="float32")
    return _as_in_models(draft, draw, _CORE_OPSETS, _CORE_INTEGERS, _CORE_QUANTIZED)


def _as_in_models(
    draft: Draft, draw: Draw, opsets: range, integers: Sequence[tuple[Quantized, float]], share: float
) -> Sample | None:
    """Return *draft* in one of *opsets*, a *share* of them quantized with *integers*; None if it is not valid."""
    try:
        node = settle(replace(draft, quantizes=False), draw)
        if node.opset not in opsets:
            return None
        if share and draw.chance(share):
            node = quantized(replace(node, open_axes=frozenset()), draw.weighted(integers))
        return Sample(node)
    except InvalidError:
        return None


# Operators per thousand nodes: the mean of 39 exports of 19 architectures (BERT, RoBERTa, DistilBERT, ELECTRA, T5,
# BART, ViT, Swin, ConvNeXt, ResNet, SegFormer, MobileViT, CLIP, SigLIP, BLIP, OWL-ViT, wav2vec 2.0, Whisper, and an
# encoder and decoder of ViT and GPT-2), without Constant and Identity.
_OF_A_THOUSAND = {
    "Add": 175, "MatMul": 140, "Reshape": 100, "Transpose": 96, "Mul": 63, "LayerNormalization": 49, "Cast": 40,
    "Conv": 37, "Unsqueeze": 37, "Gather": 34, "Concat": 26, "Shape": 23, "Relu": 18, "Where": 17, "Softmax": 17,
    "Div": 14, "Gelu": 13, "Equal": 13, "ConstantOfShape": 12, "Slice": 11, "Expand": 9, "Erf": 6, "And": 5,
    "Sigmoid": 4, "Pow": 4, "Flatten": 3, "Gemm": 3, "GreaterOrEqual": 3, "Sub": 3, "MaxPool": 3, "ReduceMean": 2,
    "Sqrt": 2, "Mod": 2, "Not": 2, "GatherElements": 1, "Split": 1, "Tanh": 1, "Tile": 1, "Pad": 1, "ReduceL2": 1,
    "InstanceNormalization": 1, "Abs": 1, "Less": 1, "Log": 1, "Min": 1, "Range": 1, "CumSum": 1, "Ceil": 1,
    "GatherND": 1, "Squeeze": 1,
}  # fmt: skip
_EXPORTED_INTEGERS = (
    (Quantized("uint8", "uint8"), 1.0),
    (Quantized("uint8", "uint8", True), 1.0),
    (Quantized("uint16", "uint8"), 1.0),
    (Quantized("uint16", "uint8", True), 1.0),
    (Quantized("uint16", "int8", True), 0.5),
)
_EXPORTED_QUANTIZED = 0.5
_EXPORTED_OPSETS = range(14, 23)


def exports_sample(seed: int, sizes: Sequence[int] = SIZES) -> Sample | None:
    """A draw with *seed*, with operators as frequent as in exported models, half of it quantized where possible.

    None if it is not a valid model. Users query a table for such operators, so it is compared with these samples.
    """
    draw = Draw(seed, sizes)
    maker, _ = OPERATORS[draw.weighted(list(_OF_A_THOUSAND.items()))]
    draft = maker(draw)
    # Integers are those of shapes and indices.
    kind = "float32" if draft.types != "any" or draw.chance(0.8) else "int64"
    share = _EXPORTED_QUANTIZED if kind == "float32" and draft.quantizes else 0.0
    return _as_in_models(replace(draft, types=kind), draw, _EXPORTED_OPSETS, _EXPORTED_INTEGERS, share)


_TRIES_OF_DOUBTED = 40
_APART = 10_000_019  # distinct from the seeds of the other samples


def doubted(number: int, seed: int, tables: Sequence[SupportTable], folder: Path) -> Sample | None:
    """Of many draws for *number*, the first on which *tables* disagree or which one does not know; else the last.

    None if that is not a valid model. *folder* is for temporary files.
    """
    found = None
    for attempt in range(_TRIES_OF_DOUBTED):
        found = drawn(seed * _APART + number * _TRIES_OF_DOUBTED + attempt)
        if found is None:
            continue
        case = case_of_model(found.node.model().SerializeToString(), folder)
        levels = {table.verdict(case).level for table in tables}
        if len(levels) > 1 or Level.UNKNOWN in levels:
            break
    return found
