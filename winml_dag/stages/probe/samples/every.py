"""All that a table is measured with, one sample after the other, each known by its number alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from winml_dag.stages.probe.onenode import Array, OneNode
from winml_dag.stages.probe.samples import elementwise, layers, reductions, shaping, windows
from winml_dag.stages.probe.samples.draw import SIZES, Draw, Maker
from winml_dag.stages.probe.samples.nodetests import node_tests, varied
from winml_dag.stages.probe.samples.settle import InvalidError, settle

OPERATORS: dict[str, tuple[Maker, float]] = {
    **elementwise.OPERATORS,
    **reductions.OPERATORS,
    **shaping.OPERATORS,
    **windows.OPERATORS,
    **layers.OPERATORS,
}
_MAKERS = [(maker, weight) for maker, weight in OPERATORS.values()]
# Of those that are drawn, every so many is one of ONNX's tests, varied.
_SHARE_OF_TESTS = 0.15


@dataclass(frozen=True)
class Sample:
    """``expected``: what ONNX defines; None where nobody wrote it down."""

    node: OneNode
    expected: tuple[Array, ...] | None = None


def sample(number: int, seed: int, sizes: Sequence[int] = SIZES, *, tests: bool = True) -> Sample | None:
    """The sample *number* of *seed*: ONNX's tests first, then what is drawn. None where that is no model.

    *tests*: without, ONNX's tests are not given as they are.
    """
    if tests:
        known = node_tests()
        if number < len(known):
            return Sample(known[number].node, known[number].expected)
        number -= len(known)
    return drawn(seed * 1_000_003 + number, sizes)


def drawn(seed: int, sizes: Sequence[int] = SIZES, *, varies_tests: bool = True) -> Sample | None:
    """What is drawn with *seed*; None where that is no model. Without *varies_tests*, nothing of ONNX's is read."""
    draw = Draw(seed, sizes)
    try:
        if draw.chance(_SHARE_OF_TESTS) and varies_tests:
            return Sample(varied(draw.choice(node_tests()), draw))
        return Sample(settle(draw.weighted(_MAKERS)(draw), draw))
    except InvalidError:
        return None
