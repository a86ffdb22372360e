"""Output of the build commands: JSON for programs, lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.cli import Note, echo
from winml_dag.engine.events import StageResult, Status
from winml_dag.errors import few

if TYPE_CHECKING:
    from winml_dag.cli.options import How
    from winml_dag.pipeline.buildresult import BuildResult, StageView

_MOST_NAMES = 10


def builds_json(results: Sequence[BuildResult], elapsed_seconds: float, *, dry_run: bool = False) -> JsonObject:
    """Return the JSON fields of builds, and their traffic. If *dry_run*, it omits quantization and compilation."""
    value: JsonObject = {
        "builds": [build_json(result, dry_run=dry_run) for result in results],
        "elapsed_seconds": round(elapsed_seconds, 3),
    }
    for result in results:
        if result.traffic is not None:
            # Imported here, as below: most builds have no remote.
            from winml_dag.cli.remotes import traffic_json

            value = {**value, **traffic_json(result.traffic)}
    return value


def build_json(result: BuildResult, *, dry_run: bool) -> JsonObject:
    """Return the JSON of one build. If *dry_run*, it omits quantization and compilation."""
    parts = {name: _model_json(part, dry_run=dry_run) for name, part in result.components.items()}
    return {
        "output_dir": str(result.build.output_dir),
        **_model_json(result, dry_run=dry_run),
        **({"components": parts} if parts else {}),
        "stages": stages_json(result),
    }


def _model_json(result: BuildResult, *, dry_run: bool) -> JsonObject:
    """Return the fields of a single model. With several components, each has its own."""
    final = {"final_artifact": None if result.final_artifact is None else str(result.final_artifact)}
    if dry_run:
        return {**final}
    # Imported here, as below: a plan does not report what stages did.
    from winml_dag.pipeline.stageresults import compile_result

    several = len(result.components) > 1
    done, compiled = result.quantization, None if several else compile_result(result.results)
    return {
        **final,
        "quantization": None if done is None else done.to_json(),
        "compilation": None if compiled is None else compiled.to_json(),
    }


def stages_json(result: BuildResult) -> list[JsonValue]:
    """Return every position of the stage sequence, with its outcome."""
    return [
        {
            "id": view.id,
            "stage": view.stage,
            "status": str(view.status),
            **({"reason": view.reason, "kind": "skipped"} if view.result is None else _outcome_json(view.result)),
            "cache_key": view.cache_key,
            "elapsed_seconds": view.elapsed_seconds,
        }
        for view in result.stages
    ]


def _outcome_json(result: StageResult) -> JsonObject:
    """Return the reason, the metrics recorded when the stage ran, now or earlier, and what describes a failure."""
    value = {**result.reason.to_json()}
    if result.assumes:
        value["assumes"] = list(result.assumes)
    if result.record is not None:
        value["metrics"] = result.record.metrics
    if result.error:
        value |= {
            "error": result.error,
            "advice": result.advice,
            "log": None if result.log is None else str(result.log),
        }
        value |= {"metrics": result.metrics} if result.metrics else {}
        value |= {"result": str(result.kept)} if result.kept is not None else {}
    return value


def print_result(result: BuildResult, how: How, lines: Callable[[BuildResult], Iterable[str]] = lambda _: ()) -> None:
    """Print the end of a build: notices, failures with the end of their log, *lines* on what ran, a summary."""
    ran = any(view.status is Status.RAN for view in result.stages)
    if restored := result.published.restored:
        how.say(Note(f"restored changed or deleted files: {few(restored, _MOST_NAMES)}"))
    if copied := result.published.not_linked:
        where = result.build.output_dir
        how.say(Note(f"copied, because the cache cannot be linked to {where}: {few(copied, _MOST_NAMES)}"))
    if result.cache_note:
        how.say(Note(result.cache_note))
    for view in result.stages:
        if view.result is not None and view.status is Status.FAILED:
            for line in failure_lines(view.result, whole=how.verbose):
                echo(line, err=True)
    if ran and not how.quiet and not result.failed:
        from winml_dag.cli.stage_lines import stage_lines

        for line in (*stage_lines(result), *lines(result)):
            how.say(line)
    if result.traffic is not None and not how.quiet:
        from winml_dag.cli.remotes import traffic_lines

        for line in traffic_lines(result.traffic):
            how.say(line)
    for notice in () if how.quiet else result.build.notices if ran else result.build.on_options:
        how.say(Note(notice))
    how.say(summary(result))


def failure_lines(result: StageResult, *, whole: bool = False) -> Iterator[str]:
    """Yield a failed stage: the error, the advice, its metrics, and the end of its log (or the *whole* log)."""
    from winml_dag.cli.stage_lines import broken_lines

    # A stage with a record did not fail: this build cannot continue with its result.
    failed = "" if result.record is not None else f"{result.node.id} failed: "
    yield f"error: {failed}{result.error} {result.advice}".rstrip()
    yield from (f"  {line}" for line in broken_lines(result.metrics))
    if result.log is not None:
        lines = result.log.read_text(encoding="utf-8", errors="replace").splitlines() if whole else result.tail
        yield from (f"  | {line}" for line in lines)
        yield f"  full log: {result.log}"
    if result.kept is not None:
        yield f"  full result of {result.node.stage.name}: {result.kept}"


def summary(result: BuildResult) -> str:
    build, seconds = result.build, f"{result.elapsed_seconds:.2f} s"
    counted = counts(result)
    if result.failed:
        left = "Finished results are in place" if build.origin == "stages" else f"{build.place} is unchanged"
        return f"Failed after {seconds}: {counted}. {left}."
    if any(view.status is Status.RAN for view in result.stages):
        return f"Built {build.headline} in {seconds}: {counted}."
    if result.published.changed:
        done = "Restored files of" if build.origin == "stages" else "Restored"
        return f"{done} {build.headline} from the cache in {seconds} (0 stages run)."
    return f"{build.up_to_date}, checked in {seconds}."


def counts(result: BuildResult) -> str:
    """Format ``3 ran, 4 reused, 1 skipped``: because of a failure, or since it is not needed."""
    found = Counter(view.status for view in result.stages)
    found[Status.REUSED] += result.others
    order = (Status.RAN, Status.REUSED, Status.FAILED, Status.SKIPPED)
    return ", ".join(f"{found[status]} {status}" for status in order if found[status])


def stage_line(view: StageView, width: int) -> str:
    """Format one stage of a plan: ``optimize.0  would run  ~1.2 s  first build``."""
    seconds = view.elapsed_seconds
    time = "" if view.status is not Status.RAN or seconds is None else f"~{seconds:.1f} s"
    why = view.result.error if view.result is not None and view.result.error else view.reason
    return f"{view.id:<{width}}  {FORESEEN[view.status]:<9}  {time:>8}  {why}"


FORESEEN = {Status.RAN: "would run", Status.REUSED: "reused", Status.SKIPPED: "skipped", Status.FAILED: "fails"}
