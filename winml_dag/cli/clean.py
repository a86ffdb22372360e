"""``winml-dag clean``: remove a build's results from its output folder."""

from __future__ import annotations

from pathlib import Path

import click

from winml_dag.cli import show
from winml_dag.cli.command import FILE, Command
from winml_dag.cli.options import format_option
from winml_dag.errors import UsageError


@click.command(name="clean", cls=Command)
@click.option("-c", "--config", "recipe", type=FILE, help="Remove the results of this recipe.")
@click.option("-o", "--output-dir", type=FILE, help="The output folder, unless the recipe names it.")
@click.option("--cache-dir", type=FILE, help="The cache folder [WINML_DAG_CACHE_DIR].")
@click.option("--dry-run", is_flag=True, help="Print what would be removed.")
@format_option
def command(*, recipe: Path | None, output_dir: Path | None, cache_dir: Path | None, dry_run: bool) -> None:
    """Remove the files of a build from its output folder. The cache stays.

    Removes only files that build_manifest.json lists and that were not edited, also those that the recipe's custom
    stages wrote elsewhere.
    """
    from winml_dag.pipeline.clean import clean
    from winml_dag.pipeline.layout import MANIFEST
    from winml_dag.pipeline.request import RemoteOptions
    from winml_dag.store.quantities import counted
    from winml_dag.store.store import Store

    cache = RemoteOptions(folder=recipe and recipe.parent).store_folder(cache_dir)
    folder = _folder(recipe, output_dir, cache)
    done = clean(folder, Store(cache), recipe=recipe, dry_run=dry_run)
    value = {
        "output_dir": str(folder),
        "dry_run": dry_run,
        "found": done.found,
        "removed": [str(path) for path in done.removed],
        "edited": [str(path) for path in done.edited],
    }
    lines = [f"would remove {path}" for path in (done.removed if dry_run else ())]
    lines += [f"kept, because it was edited: {path}" for path in done.edited]
    verb = "Would remove" if dry_run else "Removed"
    lines.append(f"{verb} {counted(len(done.removed), 'file')} of {folder}. The results are still cached.")
    if not done.found:
        lines = [f"Nothing to remove: {folder} has no {MANIFEST}."]
    show(value, lines)


def _folder(recipe: Path | None, output_dir: Path | None, cache: Path) -> Path:
    if recipe is None:
        if output_dir is None:
            raise UsageError("There is nothing to clean.", advice="Give a recipe with -c, or an output folder with -o.")
        return output_dir
    from winml_dag.pipeline.layout import output_dir_of
    from winml_dag.pipeline.request import Overrides, Request

    return output_dir_of(Request(recipe, Overrides(), output_dir), cache)
