"""Several builds on the command line: how they are planned, told of, and looked at together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli.buildreport import build_json, counts, failure_lines, summary
from winml_dag.engine.events import Status
from winml_dag.errors import StageError, WinmlDagError
from winml_dag.pipeline.build import plan
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.buildresult import BuildResult
from winml_dag.pipeline.builds import Census, Outcome, Planned, census, merged
from winml_dag.pipeline.modules import module_builds
from winml_dag.pipeline.planning import plan_request
from winml_dag.pipeline.request import Request
from winml_dag.recipe.reading import labels_of, module_items, recipe_files

if TYPE_CHECKING:
    from winml_dag.store.local import LocalStore


def planned_each(
    asked: Sequence[tuple[str, Request]], store: LocalStore, *, download: bool, needs_folder: bool = True
) -> tuple[Planned, ...]:
    """Each of the requests planned, by its label; what cannot be says why."""
    return tuple(
        Planned(label, _planned(request, store, download=download, needs_folder=needs_folder))
        for label, request in asked
    )


def _planned(request: Request, store: LocalStore, *, download: bool, needs_folder: bool) -> BuildGraph | WinmlDagError:
    try:
        return plan_request(request, store, download=download, needs_folder=needs_folder)
    except WinmlDagError as error:
        return error


def refuse_if_all_the_same(planned: Sequence[Planned]) -> None:
    """Raise what is wrong with every one of them, if that is one thing: no need to say it for each."""
    errors = {str(each.graph): each.graph for each in planned if isinstance(each.graph, WinmlDagError)}
    if len(errors) == 1 and not any(isinstance(each.graph, BuildGraph) for each in planned):
        raise next(iter(errors.values()))


def note_lines(outcome: Outcome) -> Iterator[str]:
    """What is to be known of what was built."""
    if outcome.result is not None:
        notices = outcome.result.build.notices if outcome.changed else ()
        note = outcome.result.cache_note
        yield from (f"note: {text}" for text in (*notices, *([note] if note else [])))


def problem_lines(outcome: Outcome, *, whole: bool) -> Iterator[str]:
    """Why a build was not carried out, or each of its stages that failed, with the end of its log or the *whole*."""
    if outcome.error is not None:
        yield f"error: {outcome.label}: {outcome.error}"
    for view in () if outcome.result is None else outcome.result.stages:
        if view.result is not None and view.status is Status.FAILED:
            labelled = replace(view.result, node=replace(view.result.node, id=f"{outcome.label}/{view.id}"))
            yield from failure_lines(labelled, whole=whole)


def outcome_lines(outcome: Outcome, *, verbose: bool) -> Iterator[str]:
    """What became of one build in a line, with *verbose* after one for each of its stages with its reason."""
    if outcome.result is None:
        return
    if verbose:
        yield f"{outcome.label}:"
        width = max(len(view.id) for view in outcome.result.stages)
        yield from (f"  {view.id:<{width}}  {view.status:<8}  {view.reason}" for view in outcome.result.stages)
    yield summary(outcome.result)


def print_outcomes(outcomes: Sequence[Outcome], elapsed_seconds: float) -> None:
    """Print exactly one JSON object to stdout: that of one build, with a name for each and the names that failed."""
    builds = [_outcome_json(outcome) for outcome in outcomes]
    failed = [outcome.label for outcome in outcomes if outcome.failed]
    value = {"builds": builds, "failed": failed, "elapsed_seconds": round(elapsed_seconds, 3)}
    click.echo(json.dumps(value, ensure_ascii=False))


def _outcome_json(outcome: Outcome) -> JsonObject:
    if outcome.result is None:
        return {"name": outcome.label, "final_artifact": None, "stages": [], "error": str(outcome.error)}
    return {"name": outcome.label, **build_json(outcome.result, foreseen=False)}


def look_at_recipes(named: Sequence[Path], request: Request, store: LocalStore, *, rebuild: bool, format_: str) -> int:
    """Tell what `build` would do with each of the recipes that are *named*, and with all of them as one graph; returns
    the exit code.
    """
    planned = planned_each(tuple(_asked(named, request)), store, download=False, needs_folder=False)
    refuse_if_all_the_same(planned)
    graphs = {each.label: each.graph for each in planned if isinstance(each.graph, BuildGraph)}
    results = {label: plan(graph, store, rebuild=rebuild) for label, graph in graphs.items()}
    together = census(planned)
    statuses = Counter(_together(planned, results).values())
    errors = {each.label: each.graph for each in planned if isinstance(each.graph, WinmlDagError)}
    if format_ == "json":
        value = {
            "builds": [
                {"name": each.label, **build_json(results[each.label], foreseen=True)}
                if each.label in results
                else {"name": each.label, "final_artifact": None, "stages": [], "error": str(each.graph)}
                for each in planned
            ],
            "graph": {
                "builds": together.builds,
                "stages": together.stages,
                "stages_apart": together.apart,
                "by_stage": together.by_stage,
                "by_status": {str(status): number for status, number in statuses.items()},
            },
            "failed": list(errors),
            "elapsed_seconds": round(sum(result.elapsed_seconds for result in results.values()), 3),
        }
        click.echo(json.dumps(value, ensure_ascii=False))
    else:
        width = max(len(each.label) for each in planned)
        for label, result in results.items():
            click.echo(f"{label:<{width}}  {_foreseen(counts(result))}")
        if results:
            click.echo(_graph_line(together, statuses))
    for label, error in errors.items():
        click.echo(f"error: {label}: {error}", err=True)
    return StageError.exit_code if errors else 0


def _asked(named: Sequence[Path], request: Request) -> Iterator[tuple[str, Request]]:
    """A label and a request for each recipe in the files that are *named*, and for each of a list in one of them."""
    files = recipe_files(named)
    for label, file in zip(labels_of(files), files, strict=True):
        folder = request.output_dir if len(files) == 1 or request.output_dir is None else request.output_dir / label
        one = replace(request, recipe=file, output_dir=folder)
        items = module_items(file)
        if items is None:
            yield label, one
        else:
            ahead = "" if len(files) == 1 else f"{label}/"
            yield from ((f"{ahead}{build.label}", build.request) for build in module_builds(one, items))


def _together(planned: Sequence[Planned], results: Mapping[str, BuildResult]) -> dict[str, Status]:
    """What would become of each stage of the one graph; later rounds of optimize and analyze are no stages here."""
    labels = [each.label for each in planned if each.label in results]
    found: dict[str, Status] = {}
    for label, ids in zip(labels, merged(planned).ids, strict=True):
        result = results[label]
        for view in result.stages:
            if view.result is not None:
                found.setdefault(ids[view.id], view.status)
    return found


def _graph_line(together: Census, statuses: Mapping[Status, int]) -> str:
    """``2 builds = 14 stages, 16 apart: 2 export, ...; 14 would run.``"""
    kinds = ", ".join(f"{number} {name}" for name, number in together.by_stage.items())
    foreseen = _foreseen(", ".join(f"{statuses[status]} {status}" for status in Status if statuses[status]))
    builds = "1 build" if together.builds == 1 else f"{together.builds} builds"
    return f"{builds} = {together.stages} stages ({together.apart} one by one): {kinds}; {foreseen}."


def _foreseen(text: str) -> str:
    return text.replace(" ran", " would run")
