"""Every operator with every type that it may have: of a type that it was not measured with a table says nothing, and
what is drawn by chance leaves out the rare ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from winml_dag.ep.support.case import Quantized
from winml_dag.stages.probe.samples.draw import SIZES, TYPES, Draw
from winml_dag.stages.probe.samples.every import OPERATORS, Sample
from winml_dag.stages.probe.samples.settle import INTEGERS, InvalidError, quantized, settle

_ACTIVATIONS = tuple(dict.fromkeys(types.activations for types, _ in INTEGERS))
_CONVERSIONS_FROM = 10
_TRIES = 8
_ANY_SEED = 0  # what an operator may have is the same in all its drafts, but for the few that draw it


@cache
def cells() -> tuple[tuple[str, str], ...]:
    """Operators with a type of floats or numbers, or with the integers of their activations."""
    found: list[tuple[str, str]] = []
    for name, (maker, _) in OPERATORS.items():
        draft = maker(Draw(_ANY_SEED))
        found += [(name, kind) for kind, _ in TYPES[draft.types]]
        found += [(name, f"between {kind}") for kind in _ACTIVATIONS if draft.quantizes]
    return tuple(found)


def cell_sample(number: int, seed: int, sizes: Sequence[int] = SIZES) -> Sample | None:
    """The sample *number* of *seed*: one cell after the other, and then all of them again. None where none of a few
    drafts is a model.
    """
    name, kind = cells()[number % len(cells())]
    maker, _ = OPERATORS[name]
    for attempt in range(_TRIES):
        draw = Draw((seed * 1_000_003 + number) * _TRIES + attempt, sizes)
        try:
            if not kind.startswith("between "):
                return Sample(settle(replace(maker(draw), types=kind, quantizes=False), draw))
            node = settle(replace(maker(draw), types="float32", quantizes=False), draw)
            if node.opset >= _CONVERSIONS_FROM:
                return Sample(quantized(node, _integers(draw, kind.removeprefix("between "))))
        except InvalidError:
            continue
    return None


def _integers(draw: Draw, activations: str) -> Quantized:
    return draw.weighted([(types, weight) for types, weight in INTEGERS if types.activations == activations])
