"""What is said at the end of a build of an ONNX file that was normalized: what that changed, and what it could not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.buildresult import BuildResult


def normalized_lines(result: BuildResult) -> Iterator[str]:
    """``normalized: 2 dimensions fixed, opset 11 -> 21``."""
    for view in result.stages:
        if view.stage == "normalize" and view.result is not None and view.result.record is not None:
            yield from _lines(view.result.record.metrics)


def _lines(metrics: Mapping[str, Any]) -> Iterator[str]:
    before, after = metrics["opset_before"], metrics["opset_after"]
    dropped = metrics["initializers_dropped_from_inputs"]
    parts = [
        *([f"{counted(metrics['dimensions_fixed'], 'dimension')} fixed"] if metrics["dimensions_fixed"] else []),
        *([f"{counted(dropped, 'initializer')} taken out of the inputs"] if dropped else []),
        *([f"opset {before} -> {after}{_unchecked(metrics)}"] if before != after else []),
    ]
    if parts:
        yield f"normalized: {', '.join(parts)}"
    if metrics["opset_kept_because"] is not None:
        yield f"warning: the model stays in opset {before}: {metrics['opset_kept_because']}"


def _unchecked(metrics: Mapping[str, Any]) -> str:
    """Random inputs mean nothing to some models; then only validate can tell."""
    return "" if metrics["outputs_compared"] else " (not compared: it does not run on random inputs)"
