"""``winml-dag why STAGE``: the whole reason of one stage's decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from winml_dag.cli.options import planned_build, rebuild_option, request_options
from winml_dag.errors import UsageError

if TYPE_CHECKING:
    from winml_dag.pipeline.build import BuildResult, StageView


@click.command(name="why")
@click.argument("stage")
@request_options
@rebuild_option
def command(*, stage: str, rebuild: bool, **options: Any) -> int:
    """Explain why STAGE (a stage's name or id) would run, or why not."""
    from winml_dag.pipeline.build import plan

    result = plan(*planned_build(options), rebuild=rebuild)
    for view in _named(result, stage):
        _explain(view)
    return 0


def _named(result: BuildResult, name: str) -> list[StageView]:
    found = [view for view in result.stages if name in (view.id, view.stage)]
    if not found:
        known = ", ".join(view.id for view in result.stages)
        raise UsageError(f"This build has no stage {name!r}.", advice=f"It has: {known}.")
    return found


def _explain(view: StageView) -> None:
    from winml_dag.cli.report import FORESEEN

    click.echo(f"{view.id}: {FORESEEN[view.status]}")
    changes = () if view.result is None else view.result.reason.changes
    if changes and view.result is not None and view.result.reason.kind == "changed":
        for change in changes:
            click.echo(f"  {change}")
    else:
        click.echo(f"  {view.reason}")
    record = None if view.result is None else view.result.record
    if view.cache_key:
        click.echo(f"  cache key {view.cache_key}")
    if record is not None:
        click.echo(f"  made {record.made_at} by {record.made_by}, took {record.elapsed_seconds:.1f} s")
