"""``winml-dag reproduce``: run the stages of a finished build again, and report whether they give the same bytes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from winml_dag.cli import show
from winml_dag.cli.buildreport import failure_lines
from winml_dag.cli.command import SECONDS, Command
from winml_dag.cli.options import format_option, planned_build, request_options
from winml_dag.errors import StageError
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.canonical import JsonObject
    from winml_dag.pipeline.assess.reproduce import Difference, Reproduction, StageReproduction


@click.command(name="reproduce", cls=Command)
@click.argument("stages", nargs=-1, metavar="[STAGE]...")
@request_options
@click.option("--runs", type=click.IntRange(min=1), default=1, help="Runs of each stage [1].")
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=None, help="Parallel stages [number of processors].")
@click.option("--stage-timeout", type=SECONDS, help="End a stage after this many seconds.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors and the result.")
@format_option
def command(**options: Any) -> int:
    """Run stages of a finished build again and compare their outputs with the record, byte for byte.

    Each STAGE (a name or id; default: all) runs in a fresh process with its recorded inputs. The cache and the output
    folder do not change. Exits with 1 if an output differs.

    \b
    winml-dag reproduce -c recipe.yaml -o out
    winml-dag reproduce quantize compile -c recipe.yaml -o out --runs 3
    """
    from winml_dag.cli.progress import progress
    from winml_dag.pipeline.assess.reproduce import reproduce

    planned, store = planned_build(options)
    # Progress goes to stderr: stdout has only the result.
    with progress(quiet=options["quiet"], to_stderr=True, stages=len(planned.graph.nodes), starts=True) as observer:
        found = reproduce(
            planned,
            store,
            options["stages"],
            runs=options["runs"],
            jobs=options["jobs"] or os.cpu_count() or 1,
            stage_timeout_seconds=options["stage_timeout"],
            observer=observer,
        )
    show(_json(found), _lines(found))
    return 0 if found.equal else StageError.exit_code


def _lines(found: Reproduction) -> Iterator[str]:
    width = max(len(stage.id) for stage in found.stages)
    for stage in found.stages:
        yield f"{stage.id:<{width}}  {_headline(stage)}"
        yield from (f"  {_sentence(difference)}" for difference in stage.differences)
        if stage.differences and stage.runs_agree:
            yield "  All runs gave the same: only the record is different."
        if stage.failure is not None:
            yield from failure_lines(stage.failure)
    yield _summary(found)


def _headline(stage: StageReproduction) -> str:
    if stage.reason:
        return f"{stage.verdict}: {stage.reason}; build first"
    if stage.failure is not None:
        return f"{stage.verdict:<7}  after {stage.elapsed_seconds:.1f} s"
    times = "" if stage.runs == 1 else f", {stage.runs} runs"
    files = counted(stage.files, "file")
    return f"{stage.verdict:<7}  {files}, {stage.size} bytes{times} in {stage.elapsed_seconds:.1f} s"


def _sentence(difference: Difference) -> str:
    runs = f"{'run' if len(difference.runs) == 1 else 'runs'} {', '.join(map(str, difference.runs))}"
    return f"{difference.file}, {difference.other} -> {runs}: {difference.text}"


def _summary(found: Reproduction) -> str:
    counts = Counter(str(stage.verdict) for stage in found.stages)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{'Reproduced' if found.equal else 'Not reproduced'}: {verdicts}, in {found.elapsed_seconds:.1f} s."


def _json(found: Reproduction) -> JsonObject:
    return {
        "equal": found.equal,
        "stages": [_stage_json(stage) for stage in found.stages],
        "elapsed_seconds": round(found.elapsed_seconds, 3),
    }


def _stage_json(stage: StageReproduction) -> JsonObject:
    failure = stage.failure
    return {
        "id": stage.id,
        "verdict": str(stage.verdict),
        "reason": stage.reason,
        "runs": stage.runs,
        "files": stage.files,
        "size": stage.size,
        "elapsed_seconds": stage.elapsed_seconds,
        "differences": [asdict(difference) for difference in stage.differences],
        "error": None if failure is None else failure.error,
        "log": None if failure is None or failure.log is None else str(failure.log),
    }
