"""The report of ``quantize --sensitivity``: what quantizing each node alone costs, and which nodes to exclude."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from winml_dag.canonical import JsonObject
from winml_dag.store.quantities import counted

# Maximum rows of the report.
_MOST_ROWS = 15
# A smaller gain makes no noticeable difference.
_LEAST_GAIN_DB = 1.0


def sensitivity_json(output: Path) -> JsonObject:
    """Return the report next to *output*, and the paths of the report and the picture."""
    from winml_dag.file_reading import read_json
    from winml_dag.pipeline.layout import REPORTS, beside_output

    report, picture = (output.parent / beside_output(output.name, name) for name in REPORTS)
    content: JsonObject = read_json(report)
    return {"report": str(report), "picture": str(picture) if picture.exists() else None, **content}


def sensitivity_lines(output: Path) -> Iterator[str]:
    """Format the report next to *output* for people."""
    report: Any = sensitivity_json(output)
    nodes = report["nodes"]
    held_out = "held-out " if report["held_out"] else ""
    worst = f"the worst {min(len(nodes), _MOST_ROWS)} of {counted(len(nodes), 'node')}"
    yield (
        f"loss from quantizing one node alone, {worst},"
        f" on {counted(report['samples'], f'{held_out}sample')} ({report['data']}):"
    )
    width = max(len(node["op_type"]) for node in nodes[:_MOST_ROWS])
    yield f"  {'SQNR':>8}  {'cosine':>8}  {'operator':<{width}}  node"
    for node in nodes[:_MOST_ROWS]:
        yield f"  {_decibels(node):>8}  {node['cosine']:>8.5f}  {node['op_type']:<{width}}  {_name(node)}"
    yield from _relief_lines(report)
    picture = report["picture"] or "none, because matplotlib is not installed (pip install winml_dag[plot])"
    yield f"report: {report['report']}, picture: {picture}"


def _relief_lines(report: Any) -> Iterator[str]:
    from winml_dag.stages.sensitivity import RELIEF

    first, *others = report["relief"]
    yield f"all of them quantized: {_quality(first)}"
    for relief in others:
        yield f"  with the worst {relief['worst_nodes']} {RELIEF[relief['by']]}: {_quality(relief)}"
    if not others:
        return
    gains = {index: _gain(first, relief) for index, relief in enumerate(others)}
    most = max(gains.values())
    if most < _LEAST_GAIN_DB:
        yield "No few nodes cause the loss: sparing them gains less than 1 dB. Try a higher precision or other data."
        return
    # The fewest nodes that bring a good part of the possible gain: each additional node makes the model slower.
    chosen = others[next(index for index, gain in gains.items() if gain >= most / 3)]
    yield f"to have the worst {chosen['worst_nodes']} {RELIEF[chosen['by']]}, add to the recipe:"
    yield from _recipe(chosen["by"], [node["node"] for node in report["nodes"][: chosen["worst_nodes"]]], report)


def _recipe(field: str, names: list[str], report: Any) -> Iterator[str]:
    from winml_dag.recipe.precision import SIXTEEN_BITS

    yield "quant:"
    yield f"  {field}:"
    for name in names:
        # Every JSON string is also a YAML string.
        text = json.dumps(name, ensure_ascii=False)
        if field == "nodes_to_exclude":
            yield f"    - {text}"
        else:
            yield f"    {text}: {{activation_type: {SIXTEEN_BITS[report['activation_type']]}}}"


def _quality(figures: Any) -> str:
    return f"SQNR {_decibels(figures)}, cosine {figures['cosine']:.5f}"


def _decibels(figures: Any) -> str:
    """Format the SQNR. It is undefined without noise and without a signal; the cosine distinguishes these cases."""
    ratio = figures["sqnr_db"]
    if ratio is None:
        return "exact" if figures["cosine"] == 1 else "lost"
    return f"{ratio:.1f} dB"


def _gain(first: Any, relief: Any) -> float:
    if first["sqnr_db"] is None or relief["sqnr_db"] is None:
        return 0.0
    gain: float = relief["sqnr_db"] - first["sqnr_db"]
    return gain


def _name(node: Any) -> str:
    includes = node["includes"]
    return f"{node['node']} (with {', '.join(includes)})" if includes else str(node["node"])
