"""``winml-dag report``: the results of a sweep or of builds, as a table and as files, and what has changed since."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.cli import Note, as_json, echo, set_result
from winml_dag.cli.command import FILE, TEXT, Command
from winml_dag.cli.options import format_option
from winml_dag.errors import StageError, UsageError

if TYPE_CHECKING:
    from winml_dag.report.compare import Comparison
    from winml_dag.report.row import Report

# Used when the width is unknown, as in a log.
_WIDTH = 120
# The option of each format of a file.
_KINDS = {"html": "html", "json": "json_", "csv": "csv"}


@click.command(name="report", cls=Command, panel="Report")
@click.argument("folders", type=FILE, nargs=-1, metavar="OUT...")
@click.option("--html", type=FILE, help="Write the HTML page to this file [OUT/report.html].")
@click.option("--json", "json_", type=FILE, help="Write the JSON to this file [OUT/report.json].")
@click.option("--csv", type=FILE, help="Write the CSV to this file [OUT/report.csv].")
@click.option("--no-files", is_flag=True, help="Write only the files named by options.")
@click.option("--overwrite", is_flag=True, help="Replace files that winml-dag did not write.")
@click.option(
    "--sort", type=TEXT, metavar="COLUMN", help="Sort by latency, size, cosine, time, ... or name, best first."
)
@click.option(
    "--filter",
    "filters",
    type=TEXT,
    multiple=True,
    help="Only these builds: model=bert,res*, precision!=fp32, or a name. Repeatable.",
)
@click.option("--against", type=FILE, help="Compare with an older report: a folder, or a report.json.")
@click.option(
    "--bound",
    "bounds",
    type=TEXT,
    metavar="MEASURE=WORSE",
    multiple=True,
    help="Allowed change: latency=+5%, cosine=-0.001, size=off. Repeatable.",
)
@format_option
def command(*, folders: tuple[Path, ...], **options: Any) -> int:
    """Show the results of the builds in OUT: the output folder of a sweep or a build, or several of them. Shards of one
    sweep are joined. Also writes the report into OUT as HTML, JSON and CSV.

    With --against, compare with an older report. Exits with 1 if a result is worse than the bounds allow.

    \b
    winml-dag report out
    winml-dag report out --sort latency --filter model=bert
    winml-dag report out --against main/report.json --bound latency=+5%
    """
    report, comparison = _reported(folders, options)
    files = _written(_files(folders, options), report, comparison, options)
    if as_json():
        from winml_dag.report.files import report_json

        set_result(report_json(report, comparison))
    else:
        _print(report, comparison)
    if files:
        echo(f"written: {', '.join(map(str, files.values()))}", err=as_json())
    return StageError.exit_code if comparison is not None and comparison.regressions else 0


def _reported(folders: tuple[Path, ...], options: dict[str, Any]) -> tuple[Report, Comparison | None]:
    from winml_dag.report.collect import collect
    from winml_dag.report.measures import SORTED_BY, chosen, sorted_by

    if not folders:
        raise UsageError("No folder is given.", advice="Give the output folder of a sweep or of a build.")
    if options["sort"] is not None and options["sort"] not in SORTED_BY:
        raise UsageError(
            f"--sort {options['sort']}: there is no such column.", advice=f"Known: {', '.join(SORTED_BY)}."
        )
    if options["bounds"] and options["against"] is None:
        raise UsageError("--bound is about a comparison.", advice="Give an older report with --against.")
    from winml_dag.report.compare import bounds_of

    bounds = bounds_of(options["bounds"])
    # Read before any file is written: this run may replace the old report.
    then = None if options["against"] is None else _older(options["against"])
    report = sorted_by(chosen(collect(folders), options["filters"]), options["sort"])
    if then is None:
        return report, None
    from winml_dag.report.compare import compare

    return report, compare(report, chosen(then, options["filters"], of_another=True), bounds)


def _older(path: Path) -> Report:
    """Return the report in the file *path*, or that of the folder *path*: collected now, or written earlier."""
    from winml_dag.errors import InputError
    from winml_dag.report.collect import collect
    from winml_dag.report.files import REPORT, read_report

    if not path.is_dir():
        return read_report(path)
    try:
        return collect([path])
    except InputError:
        if (path / REPORT).is_file():
            return read_report(path / REPORT)
        raise


def _files(folders: tuple[Path, ...], options: dict[str, Any]) -> dict[str, Path]:
    """Return the output file of each format. A partial report does not replace a complete one by default."""
    from winml_dag.report.files import default_files

    named = {kind: options[name] for kind, name in _KINDS.items() if options[name] is not None}
    if options["no_files"] or options["filters"] or len(folders) > 1:
        return named
    return {**default_files(folders[0]), **named}


def _written(
    files: dict[str, Path], report: Report, comparison: Comparison | None, options: dict[str, Any]
) -> dict[str, Path]:
    """Write *files* and return those written. A read-only folder is an error only for files named by an option."""
    from winml_dag.errors import StoreError
    from winml_dag.report.files import write_files

    try:
        write_files(files, report, comparison, overwrite=options["overwrite"])
    except StoreError as error:
        if any(options[name] is not None for name in _KINDS.values()):
            raise
        echo(Note(f"not all files were written: {error.message}"), err=True)
        return {}
    return files


def _print(report: Report, comparison: Comparison | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from winml_dag.report.table import comparison_lines, table_lines

    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    lines = [*table_lines(report, width)]
    if comparison is not None:
        lines += [Text(), *comparison_lines(comparison, width)]
    console = Console(highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)
