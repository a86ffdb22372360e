"""What is said of the analysis at the end of a build: what the target takes, and what was switched on for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from winml_dag.pipeline.search import Searched, searches
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.buildresult import BuildResult

_VERDICTS = ("supported", "partial", "unsupported", "unknown")


def analyzed_lines(result: BuildResult) -> Iterator[str]:
    """``analyzed for QNNExecutionProvider npu: 118 of 122 nodes supported, 4 unknown; switched on gelu_fusion in 2
    rounds``.
    """
    return map(_line, searches(view.result for view in result.stages if view.result is not None))


def _line(searched: Searched) -> str:
    counts = {verdict: searched.count(verdict) for verdict in _VERDICTS}
    others = [f"{count} {verdict}" for verdict, count in counts.items() if count and verdict != "supported"]
    found = f"{counts['supported']} of {counted(sum(counts.values()), 'node')} supported"
    on = ", ".join(searched.discovered)
    rounds = f"; switched on {on} in {counted(searched.iterations, 'round')}" if on else ""
    return f"analyzed for {searched.target}: {', '.join([found, *others])}{rounds}"
