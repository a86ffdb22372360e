"""How a choice of capabilities resolves: aliases, capabilities that others need, contradictions.

Planning uses it too, so it imports nothing heavy. Two recipes that resolve to the same selection have the same key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from winml_dag.errors import RecipeError
from winml_dag.recipe.capabilities import CATALOG

WHOLE = "ort_graph_optimization"
# Transformers of the portable level without a capability of their own; onnxruntime ignores unknown names.
# ConstantFolding has a capability, which is separate from the level as a whole.
_NAMELESS = frozenset(
    {
        "CastChainElimination",
        "CastElimination",
        "CommonSubexpressionElimination",
        "ConstantSharing",
        "DivMulFusion",
        "DoubleQDQPairsRemover",
        "EliminateDropout",
        "EliminateIdentity",
        "FuseReluClip",
        "LabelEncoderFusion",
        "NoopElimination",
        "PreShapeNodeElimination",
        "QDQPropagationTransformer",
        "ReshapeFusion",
        "SliceConcatToSpaceToDepthFusion",
    }
)

PORTABLE = _NAMELESS.union(*(each.portable for each in CATALOG.values()))


@dataclass(frozen=True)
class Selection:
    """The resolved capabilities.

    Attributes:
        on: capabilities that are switched on, in the order of the catalog, including those that others need.
        off: capabilities that are switched off, in the order of the catalog.
    """

    on: tuple[str, ...] = ()
    off: tuple[str, ...] = ()

    @property
    def without(self) -> frozenset[str]:
        """Transformers of the portable level to disable."""
        taken = {name for each in self.off for name in CATALOG[each].portable}
        if WHOLE in self.off:
            kept = {name for each in self.on for name in CATALOG[each].portable} | set(
                CATALOG["constant_folding"].portable
            )
            taken |= PORTABLE - kept
        return frozenset(taken)

    @property
    def waiting(self) -> frozenset[str]:
        """Transformers of the portable level that run after the capabilities."""
        return frozenset(name for each in self.on for name in CATALOG[each].waits)

    @property
    def form_depends_on_domain(self) -> bool:
        return any(CATALOG[name].form_depends_on_domain for name in self.on)

    def essential(self) -> dict[str, bool]:
        """The switches that have an effect: the same for all choices with the same effect."""
        switched_off = WHOLE in self.off
        on = {name: True for name in self.on if switched_off or not CATALOG[name].default}
        return {**on, **{name: False for name in self.off if name == WHOLE or CATALOG[name].portable}}


def select(wanted: Mapping[str, bool]) -> Selection:
    """Resolve *wanted*, which switches capabilities by name.

    Raises:
        RecipeError: a name is unknown, or capabilities contradict each other.
    """
    problems = [*_unknown(wanted), *_named_twice(wanted)]
    if not problems:
        named = {CATALOG[name].same_as or name: on for name, on in wanted.items()}
        chosen = Selection(
            on=tuple(name for name in CATALOG if name in _closure(named)),
            off=tuple(name for name in CATALOG if named.get(name) is False),
        )
        problems = list(_contradictions(chosen))
    if problems:
        raise RecipeError("optim cannot be done:", problems=tuple(problems))
    return chosen


def _closure(named: Mapping[str, bool]) -> set[str]:
    found: set[str] = set()
    queue = [name for name, on in named.items() if on]
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue.extend(CATALOG[name].needs)
    return found


def _unknown(wanted: Mapping[str, bool]) -> Iterator[str]:
    for name in wanted:
        if name not in CATALOG:
            yield f"optim.{name}: unknown capability."


def _named_twice(wanted: Mapping[str, bool]) -> Iterator[str]:
    for name, on in wanted.items():
        first = CATALOG[name].same_as if name in CATALOG else ""
        if first and wanted.get(first, on) is not on:
            yield f"optim.{name}: it is another name of {first}, which is switched the other way."


def _contradictions(chosen: Selection) -> Iterator[str]:
    for name in chosen.on:
        for needed in CATALOG[name].needs:
            if needed in chosen.off:
                yield f"optim.{name}: it needs {needed}, which is switched off."
        for other in CATALOG[name].excludes:
            if other in chosen.on:
                yield f"optim.{name}: it cannot be on together with {other}. Keep one of the two."
