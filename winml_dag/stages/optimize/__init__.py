"""optimize: the graph becomes smaller without leaving what every execution provider understands.

This is the declaration; the work is in :mod:`winml_dag.stages.optimize.apply`. This module also resolves a choice of
capabilities: aliases, capabilities that others need, contradictions. Two recipes that resolve to the same selection
have the same key. Planning uses it too, so it imports nothing heavy.

The capabilities that analyze found to help are in a file for the next optimize. A search starts with :data:`NOTHING`.
While nothing is discovered, the file is byte-identical, so the optimize that reads it has the key of the previous one.
The form of an operator, which also affects the result, is in the file and not in the config of optimize: the config
would differ between targets even if nothing is discovered, and their builds could not share one optimize.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.canonical import canonical_json
from winml_dag.engine.stage import InputSlot, Memory, Stage
from winml_dag.errors import RecipeError, StageError
from winml_dag.recipe.capabilities import BUILT_IN, CATALOG
from winml_dag.stages import artifact_types


@dataclass(frozen=True)
class OptimizeTarget:
    """``standard_domain_only``: no capability may add operators from outside the ONNX standard."""

    standard_domain_only: bool = False


@dataclass(frozen=True)
class OptimizeConfig:
    """``optim`` has the capabilities that a recipe switches on or off, where they differ from the defaults."""

    optim: Mapping[str, bool] = field(default_factory=dict)
    target: OptimizeTarget = OptimizeTarget()


OPTIMIZE = Stage(
    name="optimize",
    version=4,
    work="winml_dag.stages.optimize.apply:run",
    config="winml_dag.stages.optimize:OptimizeConfig",
    inputs={
        "model": artifact_types.model_slot("optimized", artifact_types.FLOAT_MODEL),
        # What an analysis of the model recommends. The recipe's own settings win.
        "flags": InputSlot(frozenset({artifact_types.OPTIMIZATIONS}), required=False),
    },
    outputs={"model": artifact_types.FLOAT_MODEL},
    published={"model": "optimized.onnx"},
    packages=("onnxruntime", "onnx", "onnxscript", "onnx-ir", "numpy"),
    memory=Memory(150 << 20, 3.5),
)


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

PORTABLE = _NAMELESS.union(*(each.portable for each in BUILT_IN.values()))


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
        return any(CATALOG[name].makes for name in self.on)

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
    problems = [f"optim.{name}: unknown capability." for name in wanted if name not in CATALOG]
    named: dict[str, bool] = {}
    for name, on in wanted.items():
        first = (CATALOG[name].same_as if name in CATALOG else "") or name
        if wanted.get(first, on) is not on:
            problems.append(f"optim.{name}: it is another name of {first}, which is switched the other way.")
        named[first] = on
    if not problems:
        needed = [name for name, on in named.items() if on]
        for name in needed:  # grows meanwhile
            needed += [each for each in CATALOG[name].needs if each not in needed]
        chosen = Selection(
            on=tuple(name for name in CATALOG if name in needed),
            off=tuple(name for name in CATALOG if named.get(name) is False),
        )
        problems = list(_contradictions(chosen))
    if problems:
        raise RecipeError("optim cannot be done:", problems=tuple(problems))
    return chosen


def _contradictions(chosen: Selection) -> Iterator[str]:
    for name in chosen.on:
        for needed in CATALOG[name].needs:
            if needed in chosen.off:
                yield f"optim.{name}: it needs {needed}, which is switched off."
        for other in CATALOG[name].excludes:
            if other in chosen.on:
                yield f"optim.{name}: it cannot be on together with {other}. Keep one of the two."


FILE = "optimizations.json"
NOTHING = Path(__file__).with_name(FILE)

# Stored next to the names of capabilities.
_STANDARD = "standard_domain_only"


@dataclass(frozen=True)
class Discovered:
    """Capabilities to switch on. ``standard_domain_only``: they create only operators of the ONNX standard."""

    capabilities: frozenset[str] = frozenset()
    standard_domain_only: bool = False

    @classmethod
    def of(cls, capabilities: Iterable[str], *, standard_domain_only: bool) -> Discovered:
        """Ignore *standard_domain_only* unless the form of one of *capabilities* depends on it."""
        found = frozenset(capabilities)
        matters = any(CATALOG[name].makes for name in found)
        return cls(found, standard_domain_only and matters)

    @classmethod
    def read(cls, path: Path) -> Discovered:
        """Read the file at *path*. Raises StageError if it is malformed."""
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not all(value is True for value in found.values()):
            raise StageError(f"{path.name} is not an object of capabilities that are true.")
        return cls(frozenset(found) - {_STANDARD}, _STANDARD in found)

    def write(self, path: Path) -> None:
        names = [*self.capabilities, *([_STANDARD] if self.standard_domain_only else [])]
        path.write_text(canonical_json(dict.fromkeys(names, True)), encoding="utf-8", newline="\n")
