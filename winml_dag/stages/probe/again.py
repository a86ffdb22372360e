"""A second look at results that are not right: whether the provider is wrong, or only wrong with these numbers.

What numbers are drawn should not decide what a table says of an operator: an index below zero that no exporter writes,
equal numbers that a sort may give in any order, a number that is just at a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from winml_dag.ep.registry import Target
from winml_dag.ep.support.case import Case, Outcome
from winml_dag.stages.probe.attempt import attempt, run_on_cpu
from winml_dag.stages.probe.fromcase import UnmakeableError, one_node

_SEEDS = (1, 2)


def confirmed(case: Case, outcome: Outcome, target: Target, options: Mapping[str, str]) -> Outcome:
    """*outcome* of *case*; right, where it was not, if any other numbers give what the CPU gives."""
    if outcome.agrees or not outcome.ran:
        return outcome
    is_wrong = all(_is_wrong(case, seed, target, options) for seed in _SEEDS)
    return replace(outcome, agrees=not is_wrong)


def _is_wrong(case: Case, seed: int, target: Target, options: Mapping[str, str]) -> bool:
    """Also where no model can be made of the case: then the first result is all that is known."""
    try:
        node = one_node(case, seed)
    except UnmakeableError:
        return True
    if node.quantized is not None:
        node = node.with_ranges(run_on_cpu(node.model().SerializeToString(), node.feeds()) or ())
    found = attempt(node.model().SerializeToString(), node.feeds(), target, options)
    return not (found.compiled and found.ran and found.agrees)
