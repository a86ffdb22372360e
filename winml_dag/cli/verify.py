"""``winml-dag verify``: whether an output folder is unchanged since its build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winml_dag.cli import show
from winml_dag.cli.command import FILE, Command
from winml_dag.cli.options import format_option
from winml_dag.pipeline.assess.verification import FileCheck, Found, Verification, verify
from winml_dag.store.quantities import counted, size_text

if TYPE_CHECKING:
    from winml_dag.report.provenance.against import Against

_MOST_EXTRA = 10


@click.command(name="verify", cls=Command)
@click.argument("path", type=FILE)
@click.option("--against", type=FILE, metavar="FILE", help="Compare with a document that `winml-dag provenance` wrote.")
@format_option
def command(*, path: Path, against: Path | None) -> int:
    """Hash every file of an output folder and compare it with build_manifest.json. PATH is the folder, or a model file
    in it, which is checked with its data files.

    With --against, compare with SLSA provenance or a CycloneDX bill of materials instead. The format of the document is
    validated; signatures are not checked. By-products may be missing.

    Exits with 1 if a shipped file is missing or changed. Intermediate models that are missing or changed and files of
    other programs are listed, but are no error.

    \b
    winml-dag verify out
    winml-dag verify out/model.onnx
    winml-dag verify out --against out.slsa.json
    """
    if against is not None:
        from winml_dag.report.provenance.against import check_against

        checked = check_against(path, against)
        is_intact, lines = checked.is_intact, _against_lines(checked)
        head = {"folder": checked.folder, "document": checked.document, "format": checked.format, "sound": is_intact}
        folders = [{**head, **asdict(checked)}]
    else:
        found = verify(path)
        is_intact = all(verification.is_intact for verification in found)
        lines = _lines(found)
        folders = [
            {"folder": each.manifest.parent, "manifest": each.manifest, "sound": each.is_intact, **asdict(each)}
            for each in found
        ]
    show({"sound": is_intact, "folders": folders, "errors": []}, lines)
    return 0 if is_intact else 1


def _against_lines(found: Against) -> Iterator[str]:
    yield from _faults(found.files)
    yield from _named("missing by-product", found.left_out, found.folder)
    yield from _named("not in the document", found.extra, found.folder)
    intact = sum(file.found is Found.INTACT for file in found.files)
    state = "Intact" if found.is_intact else "Not intact"
    of = f"{intact} of {counted(len(found.files), 'file')}"
    yield f"{state}: {found.folder}, {of} as {found.document} ({found.format}) has them."


def _lines(found: Sequence[Verification]) -> Iterator[str]:
    for verification in found:
        folder = verification.manifest.parent
        yield from _faults(verification.files)
        yield from (f"contradiction in {verification.manifest}: {text}" for text in verification.contradictions)
        if verification.unfinished:
            yield f"unfinished: a build is writing to {folder}, or was killed; build again to finish it"
        yield from _named("not of the build", verification.extra, folder)
        intact = [file for file in verification.files if file.found is Found.INTACT]
        size = size_text(sum(file.size_bytes for file in intact))
        state = "Intact" if verification.is_intact else "Not intact"
        yield f"{state}: {folder}, {len(intact)} of {counted(len(verification.files), 'file')} as built, {size} read."


def _faults(files: Sequence[FileCheck]) -> Iterator[str]:
    for file in files:
        if file.found is not Found.INTACT:
            what = f"{file.found}, an intermediate" if file.intermediate else file.found
            yield f"{what}: {file.path}{f' ({file.detail})' if file.detail else ''}"


def _named(what: str, names: Sequence[str], folder: Path) -> Iterator[str]:
    yield from (f"{what}: {folder / name}" for name in names[:_MOST_EXTRA])
    if len(names) > _MOST_EXTRA:
        yield f"{what}: {len(names) - _MOST_EXTRA} more files"
