"""``winml-dag graph``: the graph of one or many builds, as mermaid or graphviz text or as an HTML page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.cli import Note, echo
from winml_dag.cli.command import FILE, Command
from winml_dag.cli.options import (
    How,
    are_cells,
    cell_options,
    opened,
    planned_build,
    request_from,
    several_request_options,
)
from winml_dag.engine.events import Status
from winml_dag.engine.graph import Graph
from winml_dag.errors import UsageError, WinmlDagError
from winml_dag.pipeline.sweep.cells import Selection

if TYPE_CHECKING:
    from winml_dag.report.graphview import PlannedBuild

_MOST_NOTICES = 5
_CAME_TO = ("ran", "reused", "failed")


@click.command(name="graph", cls=Command)
@several_request_options
@cell_options
@click.option(
    "--format", "format_", type=click.Choice(["mermaid", "dot"]), default="mermaid", help="Output format [mermaid]."
)
@click.option("--html", type=FILE, help="Write an HTML page to this file instead.")
def command(**options: Any) -> None:
    """Print the graph of a build: sources, stages, and the artifacts between them. The builds of a sweep are one graph
    with shared stages.
    """
    recipes, html = options["recipes"], options["html"]
    if html is not None:
        _refuse_foreign(html)
    builds, notices = _planned_builds(recipes, Selection(options["filters"], options["shard"]), options)
    if html is None:
        for notice in notices:
            echo(Note(notice), err=True)
        echo(_text(builds, options["format_"]))
    else:
        named = ", ".join(path.name or str(path) for path in recipes) or _label(options)
        _write(html, builds, notices, title=f"Graph of {named}")


def _planned_builds(
    recipes: Sequence[Path], selection: Selection, options: Mapping[str, Any]
) -> tuple[tuple[PlannedBuild, ...], tuple[str, ...]]:
    """Return every selected build, and notices about those that are not drawn.

    Raises:
        WinmlDagError: when none can be planned.
    """
    from winml_dag.report.graphview import PlannedBuild

    if not are_cells(recipes, selects=selection != Selection()):
        graph, store = planned_build(options)
        return (PlannedBuild.of(_label(options), graph, store),), ()
    from winml_dag.cli.sweepplan import planned_cells
    from winml_dag.pipeline.plan_cache import refuse_if_all_the_same

    how = How.of(options)
    store = opened(how.cache_dir, how.remote)
    sweep, cells, planned = planned_cells(recipes, selection, request_from(options, how.remote), store)
    refuse_if_all_the_same(planned)
    last = _last(options["output_dir"] or sweep.output_dir)
    builds = tuple(
        PlannedBuild.of(label, graph, store, *last.get(label, ()))
        for label, graph in planned.items()
        if not isinstance(graph, WinmlDagError)
    )
    refused = [f"{label} is rejected: {error}" for label, error in planned.items() if isinstance(error, WinmlDagError)]
    left_out = [f"{cell.name} is skipped: {cell.left_out}" for cell in cells if cell.left_out]
    notices = tuple(_few([*refused, *left_out]))
    if not builds:
        raise UsageError("There is no build to draw.", advice=" ".join(notices))
    return builds, notices


def _last(folder: Path | None) -> dict[str, tuple[dict[str, str], dict[str, tuple[str, str]]]]:
    """Return, per cell of the last run, the failed stage with its reason, and the outcome of each stage reached."""
    from winml_dag.pipeline.sweep.result import read_sweep

    last = None if folder is None else read_sweep(folder)
    found = {}
    for cell in () if last is None else last.cells:
        failure = cell.failure
        failed = {failure.stage: failure.error} if failure is not None and failure.stage is not None else {}
        came_to = {run.id: (run.status, run.reason) for run in cell.stages if run.status in _CAME_TO}
        found[cell.name] = (failed, came_to)
    return found


def _few(notices: Sequence[str]) -> Iterator[str]:
    yield from notices[:_MOST_NOTICES]
    if len(notices) > _MOST_NOTICES:
        yield f"{len(notices) - _MOST_NOTICES} more builds are not drawn; `winml-dag plan` says why."


def _text(builds: Sequence[PlannedBuild], format_: str) -> str:
    from winml_dag.report.graphview import statuses_of, together

    draw = mermaid if format_ == "mermaid" else dot
    if len(builds) == 1:
        only = builds[0]
        return draw(only.graph.graph, {result.node.id: result.status for result in only.results})
    merged = together(builds)
    return draw(merged.graph, statuses_of(builds, merged))


def _write(path: Path, builds: Sequence[PlannedBuild], notices: Sequence[str], title: str) -> None:
    from winml_dag import __version__
    from winml_dag.report.graphpage import graph_html, summary
    from winml_dag.report.graphview import view_of
    from winml_dag.store.files import in_words, write_whole

    view = view_of(builds, notices)
    made = f"Planned {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by winml_dag {__version__}."
    with in_words(f"Cannot write {path}"):
        write_whole(path, graph_html(view, title, made, path).encode("ascii"))
    echo(f"{summary(view)}\nWrote {path}.")


def _refuse_foreign(path: Path) -> None:
    """Raise UsageError if a file not written by this command exists at *path*."""
    from winml_dag.report.graphpage import GRAPH_PAGE

    try:
        is_owned = GRAPH_PAGE.made(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None
    if not is_owned:
        raise UsageError(
            f"{path} exists, and winml-dag did not write it.", advice="Choose another name, or move it away."
        )


def _label(options: Mapping[str, Any]) -> str:
    of_recipe = options["recipes"][0].stem if options["recipes"] else ""
    return of_recipe or str(options["model"] or options["onnx"] or "build")


_MERMAID_CLASSES = (
    "classDef ran stroke-width:3px",
    "classDef reused stroke-dasharray:4",
    "classDef source fill:none",
)


def mermaid(graph: Graph, statuses: Mapping[str, Status]) -> str:
    """Return a mermaid flowchart. See https://mermaid.js.org/syntax/flowchart.html."""
    names = _short_names(graph)
    lines = ["flowchart LR"]
    lines += [f"  {names[name]}([{_quoted(name)}]):::source" for name in graph.sources]
    lines += [f"  {names[node.id]}[{_quoted(node.id)}]:::{statuses[node.id]}" for node in graph.nodes]
    lines += [
        f"  {names[maker]} -->|{_quoted(_artifact_label(artifact, maker))}| {names[reader]}"
        for maker, reader, artifact in graph.edges()
    ]
    return "\n".join([*lines, *(f"  {line}" for line in _MERMAID_CLASSES)])


def dot(graph: Graph, statuses: Mapping[str, Status]) -> str:
    """Return a graphviz digraph. See https://graphviz.org/doc/info/lang.html."""
    lines = ["digraph build {", "  rankdir=LR;", "  node [shape=box];"]
    lines += [f"  {json.dumps(name)} [shape=ellipse];" for name in graph.sources]
    lines += [
        f"  {json.dumps(node.id)} [style={'bold' if statuses[node.id] is Status.RAN else 'dashed'}];"
        for node in graph.nodes
    ]
    lines += [
        f"  {json.dumps(maker)} -> {json.dumps(reader)} [label={json.dumps(_artifact_label(artifact, maker))}];"
        for maker, reader, artifact in graph.edges()
    ]
    return "\n".join([*lines, "}"])


def _short_names(graph: Graph) -> dict[str, str]:
    """Map names to identifiers that mermaid accepts."""
    return {name: f"n{index}" for index, name in enumerate([*graph.sources, *(node.id for node in graph.nodes)])}


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "#quot;") + '"'


def _artifact_label(artifact: str, maker: str) -> str:
    return artifact.removeprefix(f"{maker}.") if artifact != maker else "files"
