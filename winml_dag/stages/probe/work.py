"""The work of probe: a model out of a case, tried on the provider."""

from __future__ import annotations

import json

from winml_dag.canonical import JsonObject
from winml_dag.ep.session import register
from winml_dag.ep.support.case import Case, Level, Outcome, case_of_json
from winml_dag.errors import StageError
from winml_dag.stages.probe import ProbeConfig
from winml_dag.stages.probe.attempt import attempt, run_on_cpu
from winml_dag.stages.probe.fromcase import UnmakeableError, one_node


def tried(config: ProbeConfig) -> JsonObject:
    """The verdict on the case of *config*, with what happened.

    Raises:
        StageError: when no model can be made of the case, or its provider is not here.
    """
    case = case_of_json(json.loads(config.probe.case))
    target = config.target.resolve()
    try:
        node = one_node(case)
    except UnmakeableError as error:
        raise StageError(f"{case} cannot be tried alone: {error}.") from error
    if target.ep.packages:
        register(target.ep)
    if node.quantized is not None:
        node = node.with_ranges(run_on_cpu(node.model().SerializeToString(), node.feeds()) or ())
    model, feeds = node.model().SerializeToString(), node.feeds()
    outcome = attempt(model, feeds, target, config.target.provider_options)
    is_made_up = any(kind.dtype.kind in "iu" for kind in feeds.values())
    if not outcome.ran and outcome.compiled and is_made_up:
        # Indices and sizes that nobody knows were guessed, and a wrong guess says nothing about the provider.
        return _said(Level.UNKNOWN, outcome, f"what was made up for its inputs does not fit: {outcome.words}")
    return _said(outcome.level, outcome, _reason(case, outcome))


def _said(level: Level, outcome: Outcome, reason: str) -> JsonObject:
    return {"verdict": level.value, "reason": reason, "compiled": outcome.compiled, "ran": outcome.ran}


def _reason(case: Case, outcome: Outcome) -> str:
    """One sentence on what happened."""
    if outcome.level is Level.SUPPORTED:
        return f"{case} was tried: taken and run"
    if not outcome.ran:
        return f"{case} was tried, and {'does not run' if outcome.compiled else 'is refused'}: {outcome.words}"
    if not outcome.compiled:
        return f"{case} was tried: left to the CPU"
    return f"{case} was tried: taken, and gave other numbers than the CPU"
