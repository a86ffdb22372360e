"""Lines about the stages at the end of a build: what a stage did to the model, with warnings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from winml_dag.cli import Note
from winml_dag.onnxmodel.graph import QDQ
from winml_dag.pipeline.layout import is_builtin
from winml_dag.pipeline.search import searches
from winml_dag.pipeline.stageresults import (
    CalibrationStep,
    CompileResult,
    QuantizeStep,
    compile_result,
)
from winml_dag.stages.quality import Quality
from winml_dag.store.quantities import counted, size_text

if TYPE_CHECKING:
    from winml_dag.canonical import JsonObject
    from winml_dag.pipeline.buildresult import BuildResult

_VERDICTS = ("supported", "partial", "unsupported", "unknown")
# As many as fit on a line with the rest. The manifest and the JSON output list all.
_MOST_NAMES = 3
_MOST_TYPES = 5


def stage_lines(result: BuildResult) -> Iterator[str]:
    """Yield what the stages did to a model; with several components, for each, prefixed with its name."""
    about = (_normalized, _analyzed, _quantized, compiled_lines, _validated)
    for name, part in (result.components or {"": result}).items():
        for line in chain.from_iterable(lines(part) for lines in about):
            yield f"{name}: {line}" if name else line


def _normalized(result: BuildResult) -> Iterator[str]:
    """Yield ``normalized: 2 dimensions fixed, opset 11 -> 21``."""
    for view in result.stages:
        if view.stage != "normalize" or view.result is None or view.result.record is None:
            continue
        metrics: Mapping[str, Any] = view.result.record.metrics
        before, after = metrics["opset_before"], metrics["opset_after"]
        dropped = metrics["initializers_dropped_from_inputs"]
        # Only validate can check a model that was not compared.
        unchecked = "" if metrics["outputs_compared"] else " (not compared: it does not run on random inputs)"
        parts = [
            *([f"{counted(metrics['dimensions_fixed'], 'dimension')} fixed"] if metrics["dimensions_fixed"] else []),
            *([f"{counted(dropped, 'initializer')} taken out of the inputs"] if dropped else []),
            *([f"opset {before} -> {after}{unchecked}"] if before != after else []),
        ]
        if parts:
            yield f"normalized: {', '.join(parts)}"
        if metrics["opset_kept_because"] is not None:
            yield Note(f"the model stays in opset {before}: {metrics['opset_kept_because']}", "warning")


def _analyzed(result: BuildResult) -> Iterator[str]:
    """Yield ``analyzed for QNNExecutionProvider npu: 118 of 122 nodes supported, 4 unknown; switched on gelu_fusion in
    2 rounds``.
    """
    for searched in searches(view.result for view in result.stages if view.result is not None):
        counts = {verdict: searched.count(verdict) for verdict in _VERDICTS}
        others = [f"{count} {verdict}" for verdict, count in counts.items() if count and verdict != "supported"]
        found = f"{counts['supported']} of {counted(sum(counts.values()), 'node')} supported"
        on = ", ".join(searched.discovered)
        rounds = f"; switched on {on} in {counted(searched.iterations, 'round')}" if on else ""
        yield f"analyzed for {searched.target}: {', '.join([found, *others])}{rounds}"


def _quantized(result: BuildResult) -> Iterator[str]:
    """Yield a line per quantization in *result*, one on the quality, and a warning if it is poor.

    ``quantized 49 of 61 nodes (left in float: 6 Softmax), 86.6 MiB -> 22.4 MiB, calibration 1.2 s on 32 samples (text),
    Q/DQ in 0.8 s``
    """
    done = result.quantization
    if done is None:
        return
    for step in done.steps:
        yield _quantization(step, done.calibration if step.mode == "static" else None)
    if done.quality is not None:
        yield f"quality: {done.quality.sentence()}"
    if done.poor:
        yield Note(done.warnings[-1], "warning")


def _quantization(step: QuantizeStep, calibration: CalibrationStep | None) -> str:
    nodes = step.nodes_quantized + step.nodes_skipped
    skipped = {op_type: sum(reasons.values()) for op_type, reasons in step.nodes_skipped_reasons.items()}
    left = f" (left in float: {_operators(skipped)})" if skipped else ""
    kept = step.activations_kept_at_16_bits
    parts = [
        f"quantized {step.nodes_quantized} of {counted(nodes, 'node')}{left}",
        *([f"{counted(kept, 'activation')} kept at 16 bits"] if kept else []),
        f"{size_text(step.size_before_bytes)} -> {size_text(step.size_after_bytes)}",
    ]
    if calibration is not None:
        on = f"{counted(calibration.samples, 'sample')} ({calibration.data})"
        parts.append(f"calibration {calibration.calibration_time_seconds:.1f} s on {on}{reused(calibration.cached)}")
    if step.mode == "static":
        parts.append(f"Q/DQ in {step.qdq_insertion_time_seconds:.1f} s{reused(step.cached)}")
    else:
        parts.append(f"{step.mode} in {step.elapsed_seconds:.1f} s{reused(step.cached)}")
    return ", ".join(parts)


def _operators(counts: Mapping[str, int], last: Collection[str] = ()) -> str:
    """Format ``6 Softmax, 2 Gather, 3 more``: the most frequent operators first, those in *last* at the end."""
    ranked = sorted(counts.items(), key=lambda entry: (entry[0] in last, -entry[1], entry[0]))
    texts = [f"{count} {op_type}" for op_type, count in ranked[:_MOST_TYPES]]
    if more := sum(count for _, count in ranked[_MOST_TYPES:]):
        texts.append(f"{more} more")
    return ", ".join(texts)


def reused(cached: bool) -> str:
    return " (reused)" if cached else ""


def compiled_lines(result: BuildResult) -> Iterator[str]:
    """Yield the compilation result, and a second line with the operators left on the CPU.

    ``compiled for QNNExecutionProvider npu: 1 partition, nothing on the CPU, 23.8 MiB binary, SDK 2.51.0, 1.1 s``
    """
    done = compile_result(result.results)
    if done is None:
        return
    left = sum(done.nodes_on_cpu.values())
    parts = [
        counted(done.ep_context_partitions, "partition"),
        f"{counted(left, 'node')} on the CPU" if left else "nothing on the CPU",
        f"{size_text(done.binary_size_bytes)} binary",
        # v2.51.0.260929181845 without its build number
        *([f"SDK {'.'.join(done.ep_sdk_version.removeprefix('v').split('.')[:3])}"] if done.ep_sdk_version else []),
        f"{done.compile_time_seconds:.1f} s{reused(done.cached)}",
    ]
    yield f"compiled for {done.execution_provider} {done.device}: {', '.join(parts)}"
    if left:
        yield f"on the CPU: {_kept_on_cpu(done)}"


def _kept_on_cpu(done: CompileResult) -> str:
    """Format ``2 Gather, 1 Cast (/embed/Gather, /pool/Gather, /Cast_1)``, with conversions last."""
    types = _operators(done.nodes_on_cpu, last=QDQ)
    nodes = sorted(done.cpu_nodes, key=lambda node: node.get("op_type") in QDQ)
    names = [node.get("name", "") for node in nodes[:_MOST_NAMES]]
    if len(done.cpu_nodes) > _MOST_NAMES:
        names.append("...")
    return f"{types} ({', '.join(names)})" if names else types


def _validated(result: BuildResult) -> Iterator[str]:
    """Yield the validation result of a model that this build did not quantize; quantized models have another line.

    ``validated on QNNExecutionProvider npu: cosine 0.99998, largest error 0.01 (logits), on 3 random samples``
    """
    done = [view.result for view in result.stages if view.result is not None and view.result.record is not None]
    records = (each.record for each in done if each.node.stage.name == "validate" and is_builtin(each.node))
    if (record := next(records, None)) is None:
        return
    from winml_dag.ep.registry import CPU

    metrics: Mapping[str, Any] = record.metrics
    provider = metrics.get("execution_provider")
    where = f"validated on {provider} {metrics.get('device')}"
    quantizes = any(view.stage == "quantize" and view.result is not None for view in result.stages)
    if metrics.get("reference") is False:
        on = f"{counted(int(str(metrics.get('samples'))), 'sample')} ({metrics.get('data')}) and on ones"
        yield f"{where} without a reference: it loads, runs and returns finite values on {on}"
    elif provider not in (None, CPU.name) and not quantizes:
        quality = Quality.from_json(metrics.get("quality"))
        if quality is not None:
            yield f"{where}: {quality.sentence()}"
    warnings = metrics.get("warnings")
    for warning in warnings if isinstance(warnings, list | tuple) else ():
        yield Note(str(warning), "warning")


def broken_lines(metrics: JsonObject) -> Iterator[str]:
    """Yield the metrics of every output if validation failed its thresholds; nothing for other failures."""
    outputs, broken = metrics.get("outputs"), metrics.get("broken")
    if isinstance(outputs, Mapping) and isinstance(broken, Mapping):
        yield from outputs_table(outputs, broken)


def outputs_table(outputs: Mapping[str, Any], broken: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield a line per output, with the metrics of its worst sample and the *broken* thresholds."""
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
