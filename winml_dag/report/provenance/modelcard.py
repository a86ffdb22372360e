"""The model card of a bill of materials: what a model takes and gives, how good and how fast it is, what to know of it.

Only what was measured or is in the manifest stands in it; nobody is told what a model is good for that a build cannot
know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.report.row import Accuracy, Latency
from winml_dag.report.told import at, count_at, number_at, object_at, objects_at, text_at, texts_at


@dataclass(frozen=True)
class Measured:
    """What a sweep has measured of a build, which no manifest has; None where it has not."""

    latency: Latency | None = None
    accuracy: Accuracy | None = None


def card_of(
    told: JsonObject, datasets: Sequence[str], measured: Measured | None, tensors: tuple[Sequence[str], Sequence[str]]
) -> JsonObject:
    """The card of one model. *told*: what the manifest tells of it; *datasets*: components with what it was calibrated
    with; *tensors*: its inputs and outputs, a text each.
    """
    inputs, outputs = tensors
    family = _family(told)
    task = text_at(told, "task")
    parameters: dict[str, JsonValue] = {
        **({"task": task} if task else {}),
        **({"architectureFamily": family} if family else {}),
        **({"datasets": [{"ref": ref} for ref in datasets]} if datasets else {}),
        **({"inputs": [{"format": text} for text in inputs]} if inputs else {}),
        **({"outputs": [{"format": text} for text in outputs]} if outputs else {}),
    }
    metrics: list[JsonValue] = [*_quality(told), *_measured(measured)]
    limits: list[JsonValue] = [*_limits(told)]
    tradeoffs: list[JsonValue] = [*_tradeoffs(told)]
    considerations: dict[str, JsonValue] = {
        **({"technicalLimitations": limits} if limits else {}),
        **({"performanceTradeoffs": tradeoffs} if tradeoffs else {}),
    }
    return {
        **({"modelParameters": parameters} if parameters else {}),
        **({"quantitativeAnalysis": {"performanceMetrics": metrics}} if metrics else {}),
        **({"considerations": considerations} if considerations else {}),
    }


def _family(told: JsonObject) -> str:
    """Such as ``bert``, as the stage that exports was told it."""
    for stage in objects_at(told, "stages"):
        if text_at(stage, "name") == "export" and (found := text_at(stage, "config", "loader", "model_type")):
            return found
    return ""


def _metric(kind: str, value: float | str, part: str = "", interval: tuple[float, float] | None = None) -> JsonObject:
    bounds: JsonObject = {}
    if interval is not None:
        bounds = {"confidenceInterval": {"lowerBound": str(interval[0]), "upperBound": str(interval[1])}}
    return {"type": kind, "value": str(value), **({"slice": part} if part else {}), **bounds}


def _quality(told: JsonObject) -> Iterator[JsonObject]:
    """Of the worst output against the float model, as validate found it."""
    quality = object_at(told, "quality")
    if not quality:
        return
    held_out = quality.get("held_out")
    seen = "held out" if held_out else "maybe seen in calibration" if held_out is None else "seen in calibration"
    part = (
        f"{text_at(quality, 'output')} against the float model, {count_at(quality, 'samples')} samples "
        f"({text_at(quality, 'data')}, {seen})"
    )
    for name in ("cosine", "cosine_min", "sqnr_db", "max_abs_error"):
        if (value := number_at(quality, name)) is not None:
            yield _metric(name, value, part)
    if count_at(quality, "top1_of"):
        yield _metric("top1_agreement", f"{at(quality, 'top1_agreed')}/{at(quality, 'top1_of')}", part)


def _measured(measured: Measured | None) -> Iterator[JsonObject]:
    if measured is None:
        return
    if (latency := measured.latency) is not None:
        where = ", ".join(f"{name} {value}" for name, value in latency.host.items())
        part = f"{latency.inferences} inferences{' on an emulated device' if latency.emulated else ''}"
        for name in ("p50", "p90", "p99"):
            yield _metric(f"latency_{name}_ms", getattr(latency, name), f"{part}{f', {where}' if where else ''}")
    if (accuracy := measured.accuracy) is not None:
        yield _metric(accuracy.metric, accuracy.value, f"{accuracy.samples} samples", accuracy.interval)
        if accuracy.drop is not None:
            yield _metric(f"{accuracy.metric}_drop", accuracy.drop, "against its reference")


def _limits(told: JsonObject) -> Iterator[str]:
    yield f"Built for {text_at(told, 'execution_provider')} ({text_at(told, 'device')})."
    yield from texts_at(told, "notices")
    if count := count_at(told, "analyze_unsupported_node_count"):
        yield f"The target cannot run {count} of its nodes."
    for stage in objects_at(told, "stages"):
        if nodes := count_at(stage, "nodes_on_cpu"):
            yield f"The compiler left {nodes} nodes to the CPU."


def _tradeoffs(told: JsonObject) -> Iterator[str]:
    quality = object_at(told, "quality")
    if quality and quality.get("poor"):
        yield "It agrees worse with the float model than models of this precision usually do."
    for stage in objects_at(told, "stages"):
        before, after = count_at(stage, "size_before_bytes"), count_at(stage, "size_after_bytes")
        if text_at(stage, "name") == "quantize" and before and after:
            yield f"Quantized to {text_at(told, 'precision')}: {before} bytes became {after}."
