"""How a command that is not a build runs, and the lines on what one stage did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli.command import with_options
from winml_dag.cli.options import Output, cache_option, output_options, rebuild_option, remote_options
from winml_dag.pipeline.request import RemoteOptions
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.buildresult import BuildResult

# What to replace and run again, the cache, and what to print: see :class:`How`.
how_options = with_options(
    click.option("--overwrite", is_flag=True, help="Replace files that winml-dag did not write."),
    rebuild_option,
    cache_option,
    output_options,
)


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


def outcome_lines(result: BuildResult, command: str) -> Iterator[str]:
    from winml_dag.ep.registry import CPU
    from winml_dag.pipeline.commandresult import command_result, main_view
    from winml_dag.pipeline.stageresults import quantize_result

    outcome = command_result(result, command)
    line, components = _LINES.get(main_view(result, command).stage), _by_component(outcome.metrics)
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
        yield f"compared with the given model: {outcome.quality.sentence()}"


def _by_component(metrics: JsonObject) -> Mapping[str, Mapping[str, Any]]:
    """Return the metrics of each component, if there are several."""
    found = metrics.get("components")
    return {name: own for name, own in found.items() if isinstance(own, Mapping)} if isinstance(found, Mapping) else {}


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
