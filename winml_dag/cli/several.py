"""Several builds on the command line: planned together, and the lines and the JSON that are printed of each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.cli.buildreport import build_json, failure_lines, summary
from winml_dag.cli.plaintext import print_object
from winml_dag.cli.remotes import traffic_json
from winml_dag.engine.events import Status
from winml_dag.errors import WinmlDagError
from winml_dag.pipeline.build import Outcome, Planned
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.planning import plan_or_refusal
from winml_dag.pipeline.request import Request
from winml_dag.pipeline.standing.surroundings import surroundings

if TYPE_CHECKING:
    from winml_dag.store.local import LocalStore
    from winml_dag.store.remote.traffic import Traffic


def planned_each(
    asked: Sequence[tuple[str, Request]], store: LocalStore, *, download: bool, needs_folder: bool = True
) -> tuple[Planned, ...]:
    """Plan each request, by its label; one that cannot be planned has an error in place of a graph."""
    # Read once for all: it is the same for each, and takes a third of the time of planning one.
    around = surroundings(time.time_ns())
    return tuple(
        Planned(label, plan_or_refusal(request, store, around, download=download, needs_folder=needs_folder))
        for label, request in asked
    )


def refuse_if_all_the_same(planned: Sequence[Planned]) -> None:
    """Raise the error of all of them where it is the same for each, so that it is printed once."""
    errors = {str(each.graph): each.graph for each in planned if isinstance(each.graph, WinmlDagError)}
    if len(errors) == 1 and not any(isinstance(each.graph, BuildGraph) for each in planned):
        raise next(iter(errors.values()))


def note_lines(outcome: Outcome) -> Iterator[str]:
    """Notices about what was built."""
    if outcome.result is not None:
        notices = outcome.result.build.notices if outcome.changed else ()
        note = outcome.result.cache_note
        yield from (f"note: {text}" for text in (*notices, *([note] if note else [])))


def problem_lines(outcome: Outcome, *, whole: bool) -> Iterator[str]:
    """Why a build did not start, or each of its stages that failed, with the end of its log or the *whole*."""
    if outcome.error is not None:
        yield f"error: {outcome.label}: {outcome.error}"
    for view in () if outcome.result is None else outcome.result.stages:
        if view.result is not None and view.status is Status.FAILED:
            labelled = replace(view.result, node=replace(view.result.node, id=f"{outcome.label}/{view.id}"))
            yield from failure_lines(labelled, whole=whole)


def outcome_lines(outcome: Outcome, *, verbose: bool) -> Iterator[str]:
    """The result of one build in a line; with *verbose*, before it one for each of its stages, with its reason."""
    if outcome.result is None:
        return
    if verbose:
        yield f"{outcome.label}:"
        width = max(len(view.id) for view in outcome.result.stages)
        yield from (f"  {view.id:<{width}}  {view.status:<8}  {view.reason}" for view in outcome.result.stages)
    yield summary(outcome.result)


def print_outcomes(outcomes: Sequence[Outcome], elapsed_seconds: float, traffic: Traffic | None) -> None:
    """Print exactly one JSON object to stdout: that of one build, with a name for each and the names that failed, and
    what went between here and remotes.
    """
    builds = [_outcome_json(outcome) for outcome in outcomes]
    failed = [outcome.label for outcome in outcomes if outcome.failed]
    value = {"builds": builds, "failed": failed, "elapsed_seconds": round(elapsed_seconds, 3), **traffic_json(traffic)}
    print_object(value)


def _outcome_json(outcome: Outcome) -> JsonObject:
    if outcome.result is None:
        return {"name": outcome.label, "final_artifact": None, "stages": [], "error": str(outcome.error)}
    return {"name": outcome.label, **build_json(outcome.result, foreseen=False)}
