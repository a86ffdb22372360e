"""``winml-dag graph``: the graph of a build as text for mermaid or graphviz."""

from __future__ import annotations

from typing import Any

import click

from winml_dag.cli.options import planned_build, request_options


@click.command(name="graph")
@request_options
@click.option("--format", "format_", type=click.Choice(["mermaid", "dot"]), default="mermaid", help="mermaid or dot.")
def command(*, format_: str, **options: Any) -> int:
    """Print the graph of a build: sources, stages, and what passes between them."""
    from winml_dag.pipeline.build import plan
    from winml_dag.report.graph import dot, mermaid

    planned, store = planned_build(options)
    result = plan(planned, store)
    statuses = {view.id: view.status for view in (*result.stages, *result.like_before)}
    click.echo((mermaid if format_ == "mermaid" else dot)(planned.graph, statuses))
    return 0
