"""``winml-dag provenance``: describe a finished build as SLSA provenance or as a bill of materials."""

from __future__ import annotations

from pathlib import Path

import click

from winml_dag.cli import echo
from winml_dag.cli.command import FILE, Command, file_option
from winml_dag.errors import UsageError


@click.command(name="provenance", cls=Command)
@click.argument("folder", type=FILE, metavar="OUT")
@click.option(
    "-f",
    "--format",
    "format_",
    type=click.Choice(["slsa", "cyclonedx"]),
    required=True,
    help="SLSA provenance v1 in an in-toto statement, or a CycloneDX bill of materials.",
)
@file_option("Write the document to this file, or into this folder [print it].")
@click.option("--overwrite", is_flag=True, help="Replace a file of another kind.")
def command(*, folder: Path, format_: str, output: Path | None, overwrite: bool) -> None:
    """Describe the build in OUT for others: its files by SHA-256, what they were made from, and in a statement also the
    tools and settings. OUT is verified first; a folder that was changed since its build is rejected.

    OUT may be the folder of a sweep: one bill covers all builds, and each build has a statement of its own in the
    folder -o. Documents are not signed; use a signing tool.

    \b
    winml-dag provenance out --format slsa -o out.slsa.json
    winml-dag provenance out --format cyclonedx -o out.cdx.json
    winml-dag verify out --against out.slsa.json
    """
    from winml_dag.report.provenance.document import documents_of

    documents = documents_of(folder, format_)
    if output is None:
        if len(documents) > 1:
            raise UsageError(
                f"{folder} has {len(documents)} builds, each with a statement.", advice="Give a folder with -o."
            )
        echo(documents[0].text, nl=False)
        return
    from winml_dag.report.provenance.document import write_documents

    for path in write_documents(output, format_, documents, overwrite=overwrite):
        echo(f"written: {path}", err=True)
