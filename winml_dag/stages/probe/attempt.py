"""The work of probe: whether an execution provider takes the node of a model, runs it, and gives a correct result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from winml_dag.canonical import JsonObject, canonical_json
from winml_dag.engine.stage import Workspace
from winml_dag.ep.registry import CPU, Target
from winml_dag.ep.session import register, session_for, session_options
from winml_dag.ep.support.case import Case, Level, Outcome, case_of_json
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.facts import QDQ
from winml_dag.stages.probe import RESULT_FILE, ProbeConfig
from winml_dag.stages.probe.onenode import PROBED, OneNode, UnmakeableError, one_node

if TYPE_CHECKING:
    import onnxruntime

Array = npt.NDArray[Any]

_ON_CPU = Target(CPU, "cpu")
# How far a result may be off, as a share of the largest expected number: NPUs compute floats with 10 bits of mantissa,
# and an integer result is off by a few steps of its scale. ``_MOST_OFF`` is the share of numbers that may be further
# off: at a step (in Floor, in comparisons), the smallest difference changes the result.
_TOLERANCE = 0.05
_MOST_OFF = 0.15
_SMALLEST = 5e-2
# Seeds of the numbers that confirm a wrong result.
_OTHER_SEEDS = (1, 2)


def run(config: ProbeConfig, workspace: Workspace) -> JsonObject:
    """Try the case; return the verdict as metrics and write it to the file.

    Raises:
        StageError: no model can be made from the case, or its provider is not installed.
    """
    verdict = _verdict(case_of_json(json.loads(config.probe.case)), config)
    (workspace.outputs["result"] / RESULT_FILE).write_text(canonical_json(verdict) + "\n", encoding="utf-8")
    return verdict


def _verdict(case: Case, config: ProbeConfig) -> JsonObject:
    target = config.target.resolve()
    try:
        node = one_node(case)
    except UnmakeableError as error:
        raise StageError(f"{case} cannot be tried alone: {error}.") from error
    if target.ep.packages:
        register(target.ep)
    node = _with_ranges(node)
    feeds = node.feeds()
    outcome = attempt(node.model().SerializeToString(), feeds, target, config.target.provider_options)
    level, reason = outcome.level, _reason(case, outcome)
    if not outcome.ran and outcome.compiled and any(kind.dtype.kind in "iu" for kind in feeds.values()):
        # Unknown indices and sizes were guessed, and a wrong guess says nothing about the provider.
        level, reason = Level.UNKNOWN, f"what was made up for its inputs does not fit: {outcome.words}"
    return {"verdict": level.value, "reason": reason, "compiled": outcome.compiled, "ran": outcome.ran}


def _with_ranges(node: OneNode) -> OneNode:
    """Return *node* with the scales that its results on the CPU require, if it is quantized."""
    if node.quantized is None:
        return node
    return node.with_ranges(run_on_cpu(node.model().SerializeToString(), node.feeds()) or ())


def _reason(case: Case, outcome: Outcome) -> str:
    """One sentence on the result of the trial."""
    if outcome.level is Level.SUPPORTED:
        return f"{case} was tried: taken and run"
    if not outcome.ran:
        return f"{case} was tried, and {'does not run' if outcome.compiled else 'is refused'}: {outcome.words}"
    if not outcome.compiled:
        return f"{case} was tried: left to the CPU"
    return f"{case} was tried: taken, and gave other numbers than the CPU"


def attempt(
    model: bytes,
    feeds: Mapping[str, Array],
    target: Target,
    options: Mapping[str, str],
    expected: Sequence[Array] | None = None,
) -> Outcome:
    """Try *model*, whose node is called ``PROBED``, on *target*.

    The result is compared with *expected*, or without it with the CPU's result for the same model. On the CPU without
    *expected*, the result counts as correct.

    Raises:
        StageError: the provider or its device is missing, which says nothing about the model.
    """
    try:
        session = session_for(model, target, session_options(target, options), threads=1)
    except StageError:
        raise
    except Exception as error:  # onnxruntime raises various types; all of them mean that the model does not load
        return Outcome(False, False, words=explanation(error))
    compiled = target.ep == CPU or _is_taken(session, target)
    try:
        results = session.run(None, dict(feeds))
    except Exception as error:
        return Outcome(compiled, False, words=explanation(error))
    if not compiled:
        return Outcome(False, True)
    if expected is None and target.ep != CPU:
        expected = run_on_cpu(model, feeds)
    return Outcome(True, True, expected is None or agree(results, expected))


def run_on_cpu(model: bytes, feeds: Mapping[str, Array]) -> list[Array] | None:
    """The CPU's outputs of *model*; None if it cannot run it."""
    try:
        return list(session_for(model, _ON_CPU, session_options(_ON_CPU, {}), threads=1).run(None, dict(feeds)))
    except Exception:
        return None


def agree(results: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether all *results* match *expected*, within the tolerance."""
    return all(_agrees(result, wanted) for result, wanted in zip(results, expected, strict=False))


def _agrees(result: Any, wanted: Any) -> bool:
    if not isinstance(result, np.ndarray) or not isinstance(wanted, np.ndarray) or wanted.dtype.kind not in "fiub":
        return True
    if result.shape != wanted.shape:
        return False
    if not wanted.size:
        return True
    with np.errstate(all="ignore"):
        one, other = np.asarray(result, np.float64), np.asarray(wanted, np.float64)
        # Whether a result overflows to NaN or infinity depends on the float type: 65504 is the largest number in 16
        # bits.
        comparable = np.isfinite(other) & (np.abs(other) < 6e4)
        if not comparable.any():
            return True
        bound = _TOLERANCE * max(float(np.abs(other[comparable]).max()), _SMALLEST)
        off = ~(np.abs(one[comparable] - other[comparable]) <= bound)
    return float(off.mean()) <= _MOST_OFF


def _is_taken(session: onnxruntime.InferenceSession, target: Target) -> bool:
    """Whether no other provider has nodes except conversions at the edges.

    Nodes that onnxruntime removes before it asks a provider, such as an Identity, do not matter.
    """
    return not any(
        node.op_type not in QDQ or node.name == PROBED
        for subgraph in session.get_provider_graph_assignment_info()
        if subgraph.ep_name != target.ep.name
        for node in subgraph.get_nodes()
    )


def confirmed(case: Case, outcome: Outcome, target: Target, options: Mapping[str, str]) -> Outcome:
    """Return *outcome* of *case*, marked correct if other random numbers give the same result as the CPU.

    The choice of random numbers should not decide what a table says about an operator: a negative index that no
    exporter writes, equal numbers that a sort may return in any order, a number exactly at a step.
    """
    if outcome.agrees or not outcome.ran:
        return outcome
    is_wrong = all(_is_wrong(case, seed, target, options) for seed in _OTHER_SEEDS)
    return replace(outcome, agrees=not is_wrong)


def _is_wrong(case: Case, seed: int, target: Target, options: Mapping[str, str]) -> bool:
    """Whether another seed gives a wrong result; True if no model can be made, so that the first result counts."""
    try:
        node = _with_ranges(one_node(case, seed))
    except UnmakeableError:
        return True
    found = attempt(node.model().SerializeToString(), node.feeds(), target, options)
    return not (found.compiled and found.ran and found.agrees)
