"""``winml-dag plan``: what a build would run and why, with nothing run and nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from winml_dag.cli.buildreport import counts, errors_as_json, print_json, stage_line
from winml_dag.cli.options import format_option, planned_build, rebuild_option, request_from, several_request_options


@click.command(name="plan")
@several_request_options
@rebuild_option
@format_option
def command(*, recipes: tuple[Path, ...], rebuild: bool, format_: str, **options: Any) -> int:
    """Show what `build` would do with the same options: stage by stage, with reasons and an estimate of the time. Of
    several recipes, what each would do, and what all of them are as one graph.
    """
    from winml_dag.engine.events import Status
    from winml_dag.pipeline.build import plan

    with errors_as_json(format_):
        options["recipe"] = recipes[0] if recipes else None
        if _are_several(recipes):
            from winml_dag.cli.several import look_at_recipes
            from winml_dag.store.local import LocalStore

            request, cache_dir = request_from(options)
            return look_at_recipes(recipes, request, LocalStore(cache_dir), rebuild=rebuild, format_=format_)
        result = plan(*planned_build(options), rebuild=rebuild, explain=True)
    if format_ == "json":
        print_json([result], result.elapsed_seconds, foreseen=True)
        return 0
    width = max(len(view.id) for view in result.stages)
    for view in result.stages:
        click.echo(stage_line(view, width))
    for notice in result.build.notices:
        click.echo(f"note: {notice}", err=True)
    told = {name for view in result.stages if view.result is not None for name in view.result.assumes}
    if assumed := [view.id for view in result.stages if view.id in told]:
        click.echo(f"note: What follows {', '.join(assumed)} is so if that finds what it found before.", err=True)
    to_run = [view for view in result.stages if view.status is Status.RAN]
    known = [view.elapsed_seconds for view in to_run if view.elapsed_seconds is not None]
    unknown = len(to_run) - len(known)
    untimed = f"{unknown} never timed" if unknown else ""
    time = ", ".join(part for part in (f"about {sum(known):.1f} s" if known else "", untimed) if part)
    click.echo(f"{counts(result).replace('ran', 'would run')}; {time if to_run else 'nothing to do'}.")
    return 0


def _are_several(recipes: tuple[Path, ...]) -> bool:
    """Whether more than one build may be meant: by several files, a folder, a pattern or a list of recipes."""
    from winml_dag.recipe.reading import module_items, recipe_files

    if len(recipes) != 1 or recipes[0].is_file():
        return len(recipes) > 1 or (len(recipes) == 1 and module_items(recipes[0]) is not None)
    return recipe_files(recipes) != recipes
