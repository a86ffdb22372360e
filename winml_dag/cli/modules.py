"""The modules of a list built together: what ``build`` does with a recipe file that is a list."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.cli.plaintext import echo
from winml_dag.cli.remotes import opened, traffic_lines, traffic_of
from winml_dag.pipeline.modules import ModuleBuild, module_builds, refuse_unplaced, write_summary
from winml_dag.pipeline.request import Request
from winml_dag.pipeline.standing.check import check, note_use
from winml_dag.recipe.reading import ModuleItem

if TYPE_CHECKING:
    from winml_dag.cli.options import Output
    from winml_dag.pipeline.build import Outcome
    from winml_dag.pipeline.run import BuildOptions
    from winml_dag.store.local import LocalStore


def build_modules(
    request: Request,
    items: Sequence[ModuleItem],
    cache_dir: Path,
    how: BuildOptions,
    output: Output,
) -> int:
    """Build every module of a list, and tell of each in a line; returns the exit code.

    Raises:
        UsageError: when there is no folder for them.
        WinmlDagError: when none of them can be built, all for one reason.
    """
    started = time.monotonic()
    folder = refuse_unplaced(request)
    builds = module_builds(request, items)
    # Before anything else is imported: mostly there is nothing to do.
    at_a_glance = not (how.rebuild or output.verbose or output.as_json)
    up_to_date = dict(_up_to_date(builds, cache_dir)) if at_a_glance else {}
    rest = [build for build in builds if build.label not in up_to_date]
    outcomes: tuple[Outcome, ...] = ()
    traffic = None
    if rest:
        store = opened(cache_dir, request.remote)
        outcomes = _built(rest, store, how, output)
        traffic = traffic_of(store)
    by_label = {outcome.label: outcome for outcome in outcomes}
    write_summary(folder, builds, [by_label.get(build.label) for build in builds])
    seconds = time.monotonic() - started
    if output.as_json:
        from winml_dag.cli.several import print_outcomes

        print_outcomes(outcomes, seconds, traffic)
    _tell(builds, up_to_date, by_label, output)
    for line in () if output.quiet else traffic_lines(traffic):
        output.say(line)
    output.say(_total(up_to_date, outcomes, seconds))
    return _exit_code(outcomes)


def _up_to_date(builds: Sequence[ModuleBuild], cache_dir: Path) -> Iterator[tuple[str, str]]:
    """Label and line of each build in which there is nothing to do."""
    folder = str(cache_dir.absolute())
    for build in builds:
        words = build.request.words
        standing = None if words is None else check(folder, words)
        if standing is not None and standing.is_up_to_date:
            note_use(folder, standing)
            yield build.label, standing.note.header.summary


def _built(builds: Sequence[ModuleBuild], store: LocalStore, how: BuildOptions, output: Output) -> tuple[Outcome, ...]:
    from winml_dag.cli.progress import progress
    from winml_dag.cli.several import planned_each, refuse_if_all_the_same
    from winml_dag.pipeline.build import build_all, merged
    from winml_dag.pipeline.rounds import WithoutRounds
    from winml_dag.pipeline.run import Driver

    planned = planned_each([(build.label, build.request) for build in builds], store, download=True)
    refuse_if_all_the_same(planned)
    with progress(quiet=output.quiet, to_stderr=output.as_json, stages=len(merged(planned).graph.nodes)) as observer:
        return build_all(planned, Driver(store, how, observer if output.verbose else WithoutRounds(observer)))


def _tell(
    builds: Sequence[ModuleBuild],
    up_to_date: Mapping[str, str],
    outcomes: Mapping[str, Outcome],
    output: Output,
) -> None:
    """A line for each build, and what failed in it; what is to be known of several builds is said once."""
    said: set[str] = set()
    for build in builds:
        if build.label in up_to_date:
            if not output.quiet:
                output.say(f"{up_to_date[build.label]}.")
            continue
        from winml_dag.cli.several import note_lines, outcome_lines, problem_lines

        outcome = outcomes[build.label]
        for line in () if output.quiet else note_lines(outcome):
            if line not in said:
                output.say(line)
            said.add(line)
        for line in problem_lines(outcome, whole=output.verbose):
            echo(line, err=True)
        for line in () if output.quiet else outcome_lines(outcome, verbose=output.verbose):
            output.say(line)


def _total(up_to_date: Mapping[str, str], outcomes: Sequence[Outcome], seconds: float) -> str:
    failed = [outcome.label for outcome in outcomes if outcome.failed]
    unchanged = len(up_to_date) + sum(not outcome.failed and not outcome.changed for outcome in outcomes)
    built = len(outcomes) + len(up_to_date) - len(failed) - unchanged
    counts = [(built, "built"), (unchanged, "up to date"), (len(failed), "failed")]
    what = ", ".join(f"{number} {word}" for number, word in counts if number)
    which = f": {', '.join(failed)}" if failed else ""
    number = len(outcomes) + len(up_to_date)
    return f"{number} {'build' if number == 1 else 'builds'} in {seconds:.2f} s: {what}{which}."


def _exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 when all is in place; that of the reason where nothing but one kind of refusal came of them all; else 1."""
    failed = [outcome for outcome in outcomes if outcome.failed]
    codes = {1 if outcome.error is None else outcome.error.exit_code for outcome in failed}
    if not failed:
        return 0
    return codes.pop() if len(codes) == 1 and len(failed) == len(outcomes) else 1
