"""What is said of a quantization at the end of a build: what it did, how good the result is, and what to try if not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from winml_dag.pipeline.quantized import CalibrationStep, QuantizeStep
from winml_dag.store.quantities import counted, size_text

if TYPE_CHECKING:
    from winml_dag.pipeline.buildresult import BuildResult

# As many operators as fit into a line beside the rest.
_MOST_TYPES = 5


def quantized_lines(result: BuildResult) -> Iterator[str]:
    """A line for each quantization in *result*, one for the quality, and a warning when that is poor.

    ``quantized 49 of 61 nodes (left in float: 6 Softmax), 86.6 MiB -> 22.4 MiB, calibration 1.2 s on 32 samples (text),
    Q/DQ in 0.8 s``
    """
    done = result.quantization
    if done is None:
        return
    for step in done.steps:
        yield _step(step, done.calibration if step.mode == "static" else None)
    if done.quality is not None:
        yield f"quality: {done.quality.sentence()}"
    if done.poor:
        yield f"warning: {done.warnings[-1]}"


def _step(step: QuantizeStep, calibration: CalibrationStep | None) -> str:
    nodes = step.nodes_quantized + step.nodes_skipped
    kept = step.activations_kept_at_16_bits
    parts = [
        f"quantized {step.nodes_quantized} of {counted(nodes, 'node')}{_left(step)}",
        *([f"{counted(kept, 'activation')} kept at 16 bits"] if kept else []),
        f"{size_text(step.size_before_bytes)} -> {size_text(step.size_after_bytes)}",
    ]
    if calibration is not None:
        on = f"{counted(calibration.samples, 'sample')} ({calibration.data})"
        parts.append(f"calibration {calibration.calibration_time_seconds:.1f} s on {on}{_reused(calibration.cached)}")
    if step.mode == "static":
        parts.append(f"Q/DQ in {step.qdq_insertion_time_seconds:.1f} s{_reused(step.cached)}")
    else:
        parts.append(f"{step.mode} in {step.elapsed_seconds:.1f} s{_reused(step.cached)}")
    return ", ".join(parts)


def _left(step: QuantizeStep) -> str:
    """Most frequent operators first."""
    counts = {op_type: sum(reasons.values()) for op_type, reasons in step.nodes_skipped_reasons.items()}
    if not counts:
        return ""
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    texts = [f"{count} {op_type}" for op_type, count in ranked[:_MOST_TYPES]]
    more = sum(count for _, count in ranked[_MOST_TYPES:])
    if more:
        texts.append(f"{more} more")
    return f" (left in float: {', '.join(texts)})"


def _reused(cached: bool) -> str:
    return " (reused)" if cached else ""
