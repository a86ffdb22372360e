"""What the commands for one stage tell of what they did: a line or two for people, one object for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonObject
from winml_dag.cli.onestage import Telling
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.buildresult import BuildResult
    from winml_dag.pipeline.request import Request


def _value(result: BuildResult, request: Request) -> JsonObject:
    from winml_dag.pipeline.commandresult import command_result

    assert request.command is not None
    return command_result(result, request.command).to_json()


def _lines(result: BuildResult, request: Request) -> Iterator[str]:
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
    # Of other providers, and of what was quantized, every build says it.
    on_cpu = outcome.validation is not None and outcome.validation["execution_provider"] == CPU.name
    if on_cpu and outcome.quality is not None and quantize_result(result) is None:
        yield f"held against the model that was given: {outcome.quality.sentence()}"


def _by_component(metrics: JsonObject) -> Mapping[str, Mapping[str, Any]]:
    """What was measured of each component, where several were made together."""
    found = metrics.get("components")
    return {name: own for name, own in found.items() if isinstance(own, Mapping)} if isinstance(found, Mapping) else {}


OUTCOME = Telling(_value, done=_lines)


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
