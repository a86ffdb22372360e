"""What is said of a validation at the end of a build, beside how good a quantized model is: warnings, and what it stood
on where there was nothing to compare, or nothing was quantized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from winml_dag.ep.registry import CPU
from winml_dag.pipeline.layout import is_ours
from winml_dag.stages.quality import Quality
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.canonical import JsonObject
    from winml_dag.pipeline.buildresult import BuildResult


def validated_lines(result: BuildResult) -> Iterator[str]:
    """``validated on QNNExecutionProvider npu: cosine 0.99998, largest error 0.01 (logits), on 3 random samples``, of a
    model that was not quantized here; of a quantized one, another line says that.
    """
    metrics = _metrics(result)
    if metrics is None:
        return
    provider = metrics.get("execution_provider")
    where = f"validated on {provider} {metrics.get('device')}"
    if metrics.get("reference") is False:
        on = f"{counted(int(str(metrics.get('samples'))), 'sample')} ({metrics.get('data')}) and on ones"
        yield f"{where} alone, since nothing is there to hold it against: it loads, runs and gives numbers on {on}"
    elif provider not in (None, CPU.name) and not _quantizes(result):
        quality = Quality.from_json(metrics.get("quality"))
        if quality is not None:
            yield f"{where}: {quality.sentence()}"
    warnings = metrics.get("warnings")
    for warning in warnings if isinstance(warnings, list | tuple) else ():
        yield f"warning: {warning}"


def broken_lines(metrics: JsonObject) -> Iterator[str]:
    """The figures of every output, of a validation that failed over its bounds; nothing for what failed otherwise."""
    outputs, broken = metrics.get("outputs"), metrics.get("broken")
    if isinstance(outputs, Mapping) and isinstance(broken, Mapping):
        yield from outputs_table(outputs, broken)


def outputs_table(outputs: Mapping[str, Any], broken: Mapping[str, Any] | None = None) -> Iterator[str]:
    """A line for each output, the figures of its worst sample among them, and the bounds that are *broken*."""
    if not outputs:
        return
    width = max(len("output"), *map(len, outputs))
    yield f"{'output':<{width}}  {'cosine':>8}  {'lowest':>8}  {'SQNR':>9}  {'largest error':>13}  top-1"
    for name, figures in outputs.items():
        lowest = "" if figures["cosine_min"] is None else f"{figures['cosine_min']:.5f}"
        row = (
            f"{name:<{width}}  {figures['cosine']:>8.5f}  {lowest:>8}  {_ratio(figures):>9}"
            f"  {figures['max_abs_error']:>13.3g}  "
        )
        top1 = f"{figures['top1_agreed']} of {figures['top1_of']}" if figures.get("top1_of") else ""
        over = f"not kept: {', '.join(broken[name])}" if broken and name in broken else ""
        yield f"{row}{top1:<9}  {over}".rstrip()


def _ratio(figures: Mapping[str, Any]) -> str:
    if figures["sqnr_db"] is not None:
        return f"{figures['sqnr_db']:.1f} dB"
    return "no noise" if figures["cosine"] == 1 else "no signal"


def _metrics(result: BuildResult) -> JsonObject | None:
    done = [view.result for view in result.stages if view.result is not None]
    found = (each.record for each in done if each.node.stage.name == "validate" and is_ours(each.node))
    return next((record.metrics for record in found if record is not None), None)


def _quantizes(result: BuildResult) -> bool:
    return any(view.stage == "quantize" and view.result is not None for view in result.stages)
