"""What ``analyze`` prints: JSON for programs, tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonObject
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.finished.analysis import AnalysisPlan, TargetAnalysis
    from winml_dag.pipeline.finished.measurement import Measurement

_VERDICTS = ("supported", "partial", "unsupported", "unknown")
_MEANING = {
    "supported": "runs on the target",
    "partial": "runs, but on the CPU or with other numbers",
    "unsupported": "does not run",
    "unknown": "was not measured",
}
_MOST_OPERATORS = 15
_MOST_REASON = 160


def analysis_json(
    plan: AnalysisPlan,
    done: Measurement,
    found: Sequence[TargetAnalysis],
    result: JsonObject,
    put: Mapping[str, Path],
    saved: Sequence[Path],
) -> JsonObject:
    """Everything that was found out, for each target, and where it was put."""
    return {
        "success": True,
        "model": str(plan.subject.model.path),
        "supported": all(each.is_fine(lint_only=plan.request.lint_only) for each in found),
        "analyzed": done.told,
        "made_at": done.made_at,
        "elapsed_seconds": round(done.elapsed_seconds, 3),
        "notices": list(plan.notices),
        "targets": [
            {
                "execution_provider": each.target.ep.name,
                "device": each.target.device,
                **{name: value for name, value in each.metrics.items() if name not in ("cases", "peak_memory_bytes")},
            }
            for each in found
        ],
        "analysis": result,
        "report": None if "report" not in put else str(put["report"]),
        "optim_config": None if "optim_config" not in put else str(put["optim_config"]),
        "saved_nodes": [str(path) for path in saved],
    }


def analysis_lines(
    plan: AnalysisPlan,
    done: Measurement,
    found: Sequence[TargetAnalysis],
    put: Mapping[str, Path],
    saved: Sequence[Path],
    *,
    quiet: bool,
) -> Iterator[str]:
    """The same for people; *quiet* leaves only the verdicts."""
    when = f"analyzed in {done.elapsed_seconds:.1f} s" if done.is_live else f"cached, analyzed {done.made_at}"
    yield f"{plan.subject.model.path}: {when}"
    yield from (f"note: {notice}" for notice in plan.notices)
    if not plan.request.lint_only:
        if len(found) > 1:
            yield from _overview(found)
        for each in found:
            yield ""
            yield from _target_lines(each, quiet=quiet)
    if not quiet:
        yield from _patterns(found[0])
        yield from _lint_lines(found[0])
    for name, path in put.items():
        yield f"{name.replace('_', ' ')}: {path}"
    if saved:
        yield f"saved nodes: {counted(len(saved), 'model')} in {saved[0].parent}"


def _overview(found: Sequence[TargetAnalysis]) -> Iterator[str]:
    yield ""
    names = [f"{each.target.ep.alias} {each.target.device}" for each in found]
    width = max(map(len, names))
    yield "  ".join([" " * width, *(f"{verdict:>11}" for verdict in _VERDICTS)])
    for name, each in zip(names, found, strict=True):
        nodes: Any = each.metrics["nodes"]
        yield "  ".join([f"{name:<{width}}", *(f"{nodes[verdict]:>11}" for verdict in _VERDICTS)])


def _target_lines(analysis: TargetAnalysis, *, quiet: bool) -> Iterator[str]:
    metrics: Any = analysis.metrics
    yield f"{analysis.target.ep.name}, {analysis.target.device}"
    if metrics["table"]:
        yield f"  measured with {metrics['table']}"
    for verdict in _VERDICTS:
        nodes, operators = metrics["nodes"][verdict], metrics["operators"][verdict]
        if nodes or verdict == "supported":
            what = f"{counted(nodes, 'node'):>12} of {counted(operators, 'operator')}"
            yield f"  {verdict:<12}{what}: {_MEANING[verdict]}"
            if verdict != "supported" and not quiet:
                yield from _operators(metrics[verdict], metrics["table"])
    if not quiet:
        yield from _advice(analysis)


def _advice(analysis: TargetAnalysis) -> Iterator[str]:
    """What would help: capabilities, and what only the user can do."""
    results: Any = analysis.file["results"]
    table = str(analysis.metrics["table"])
    for information in results[0]["information"]:
        for action in information["actions"]:
            named = "".join(name for item in action["action_items"] for name in item["optimization_options"])
            if action["enabled"] or action["level"] == "warning":
                yield f"  would help: {f'{named}: ' if named else ''}{_short(action['details'], table)}"


def _operators(found: Sequence[Any], table: str) -> Iterator[str]:
    for each in found[:_MOST_OPERATORS]:
        name = each["operator"].removeprefix("OP/").removeprefix("ai.onnx/")
        yield f"    {name:<24}{each['count']:>5}  {_short(each['reason'], table)}"
    if len(found) > _MOST_OPERATORS:
        yield f"    and {counted(len(found) - _MOST_OPERATORS, 'more operator')}"


def _patterns(analysis: TargetAnalysis) -> Iterator[str]:
    patterns: Any = analysis.metrics["patterns"]
    if patterns:
        yield ""
        told = (f"{name.removeprefix('SUBGRAPH/').removesuffix('Pattern')} {count}" for name, count in patterns.items())
        yield f"patterns: {', '.join(told)}"


def _lint_lines(analysis: TargetAnalysis) -> Iterator[str]:
    lint: Any = analysis.file["lint"]
    found = [(word, each) for word, key in _SEVERITIES for each in lint[key]]
    if found:
        yield ""
    for word, each in found:
        yield f"{word}: {each['message']} {each['advice']}".rstrip()
    if not found:
        yield "lint: nothing found"


_SEVERITIES = (("error", "errors"), ("warning", "warnings"), ("note", "info"))


def _short(text: str, table: str) -> str:
    """*text* without the name of the *table*, which is told above."""
    text = text.replace(f" ({table})", "") if table else text
    return text if len(text) <= _MOST_REASON else f"{text[: _MOST_REASON - 1]}…"
