"""Shared by the single-stage commands: options on how to run, running the stage, and printing the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli import errors_as_object, print_object
from winml_dag.cli.build import carry_out, look, say_up_to_date
from winml_dag.cli.options import Output, cache_option, output_options, rebuild_option, remote_options
from winml_dag.errors import StageError
from winml_dag.pipeline.request import RemoteOptions
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.buildresult import BuildResult
    from winml_dag.pipeline.request import Request

F = TypeVar("F", bound=Callable[..., Any])


def how_options(function: F) -> F:
    """Add the options that every command has: what to overwrite and run again, the cache, and what to print."""
    for option in reversed(
        (
            click.option("--overwrite", is_flag=True, help="Replace a file that is not ours."),
            rebuild_option,
            cache_option,
            output_options,
        )
    ):
        function = option(function)
    return function


@dataclass(frozen=True)
class How(Output):
    """The values of :func:`how_options`."""

    overwrite: bool
    rebuild: bool
    cache_dir: Path
    remote: RemoteOptions

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> How:
        """Read the *options* of a call, by the names of the command's parameters."""
        remote = remote_options(options, options.get("recipe"))
        return cls(
            verbose=options["verbose"],
            quiet=options["quiet"],
            as_json=options["format_"] == "json",
            overwrite=options["overwrite"],
            rebuild=options["rebuild"],
            cache_dir=remote.store_folder(options["cache_dir"]),
            remote=remote,
        )


@dataclass(frozen=True)
class Telling:
    """What a command prints in addition to the output of every build.

    ``value``: the JSON object of a finished build, without the stages. ``done``: lines for people on what ran.
    ``always``: lines for people even if everything was cached and nothing is imported.
    """

    value: Callable[[BuildResult, Request], JsonObject]
    done: Callable[[BuildResult, Request], Iterator[str]] = lambda *_: iter(())
    always: Callable[[Request], Iterator[str]] = lambda _: iter(())


def run_one(options: Mapping[str, Any], request_of: Callable[[Mapping[str, Any]], Request], telling: Telling) -> int:
    """Run the request for the *options* of a call, by the names of the command's parameters, and return the exit code.

    With ``--format json`` exactly one object is printed, also for errors.
    """
    started = time.monotonic()
    how = How.of(options)
    with errors_as_object(how.as_json, success=False):
        request = replace(request_of(options), remote=how.remote)
    current_plan = look(request, how.cache_dir)
    if not (how.rebuild or how.verbose or how.as_json) and say_up_to_date(current_plan, how.cache_dir, started):
        _print(telling.always(request), how)
        return 0

    from winml_dag.pipeline.run import BuildOptions

    options_of_build = BuildOptions(rebuild=how.rebuild, overwrite=how.overwrite)
    with errors_as_object(how.as_json, success=False):
        result = carry_out(
            request,
            how.cache_dir,
            current_plan,
            options_of_build,
            how,
            lines=lambda done: telling.done(done, request),
        )
    if not result.failed:
        _print(telling.always(request), how)
    if how.as_json:
        from winml_dag.cli.buildreport import stages_json

        print_object({**telling.value(result, request), "stages": stages_json(result)})
    return StageError.exit_code if result.failed else 0


def _print(lines: Iterator[str], how: How) -> None:
    if not how.quiet:
        for line in lines:
            how.say(line)


def _outcome_json(result: BuildResult, request: Request) -> JsonObject:
    from winml_dag.pipeline.commandresult import command_result

    assert request.command is not None
    return command_result(result, request.command).to_json()


def _outcome_lines(result: BuildResult, request: Request) -> Iterator[str]:
    from winml_dag.ep.registry import CPU
    from winml_dag.pipeline.commandresult import command_result, main_view
    from winml_dag.pipeline.quantized import quantize_result

    assert request.command is not None
    outcome = command_result(result, request.command)
    line, components = _LINES.get(main_view(result, request.command).stage), _by_component(outcome.metrics)
    took = f"{outcome.elapsed_seconds:.1f} s{' (reused)' if outcome.cached else ''}"
    if line and components:
        for name in result.build.components:
            yield f"{name}: {line(components[name])}"
        yield f"{counted(len(components), 'component')} of one model in {took}"
    elif line:
        yield f"{line(outcome.metrics)}, {took}"
    # For other providers and for quantized models, every build prints it.
    on_cpu = outcome.validation is not None and outcome.validation["execution_provider"] == CPU.name
    if on_cpu and outcome.quality is not None and quantize_result(result) is None:
        yield f"held against the model that was given: {outcome.quality.sentence()}"


def _by_component(metrics: JsonObject) -> Mapping[str, Mapping[str, Any]]:
    """Return the metrics of each component, if there are several."""
    found = metrics.get("components")
    return {name: own for name, own in found.items() if isinstance(own, Mapping)} if isinstance(found, Mapping) else {}


OUTCOME = Telling(_outcome_json, done=_outcome_lines)


def _optimized(metrics: Mapping[str, Any]) -> str:
    applied = [f"{name} in {counted(count, 'place')}" for name, count in metrics["applied"].items() if count]
    idle = [name for name, count in metrics["applied"].items() if not count and name not in metrics["left"]]
    nothing = [f"no place for {' and '.join(idle)}"] if idle else []
    left = [f"{name} left: {why}" for name, why in metrics["left"].items()]
    parts = [f"optimized {metrics['nodes_before']} -> {metrics['nodes_after']} nodes", *applied, *nothing, *left]
    return ", ".join(parts)


def _exported(metrics: Mapping[str, Any]) -> str:
    return (
        f"exported {counted(metrics['nodes'], 'node')} in opset {metrics['opset_version']}"
        f" ({metrics['exporter']}), {metrics['parameters']:,} parameters,"
        f" largest difference to PyTorch {metrics['max_abs_difference']:.2g}"
    )


def _calibrated(metrics: Mapping[str, Any]) -> str:
    return (
        f"ranges of {counted(metrics['tensors'], 'tensor')}"
        f" from {counted(metrics['samples'], 'sample')} ({metrics['data']})"
    )


_LINES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "optimize": _optimized,
    "export": _exported,
    "calibrate": _calibrated,
}
