"""``winml-dag verify``: whether an output folder is as its build left it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli.options import format_option
from winml_dag.cli.parameters import FILE
from winml_dag.errors import WinmlDagError

if TYPE_CHECKING:
    from winml_dag.pipeline.finished.verification import Verification

_MOST_EXTRA = 10


@click.command(name="verify")
@click.argument("path", type=FILE)
@format_option
def command(*, path: Path, format_: str) -> int:
    """Read every file of an output folder again and hold it against build_manifest.json. PATH is the folder, or one
    file in it, which is then checked with what belongs to it.

    Ends with 0 when all is as it was built, and with 1 when not. Files that no build put there are told, and are no
    fault.

    \b
    winml-dag verify out
    winml-dag verify out/model.onnx
    """
    from winml_dag.pipeline.finished.verification import verify

    try:
        found = verify(path)
    except WinmlDagError as error:
        if format_ == "json":
            click.echo(json.dumps({"sound": False, "folders": [], "errors": [str(error)]}, ensure_ascii=False))
        raise
    is_sound = all(verification.is_sound for verification in found)
    if format_ == "json":
        value = {"sound": is_sound, "folders": [_json(verification) for verification in found], "errors": []}
        click.echo(json.dumps(value, ensure_ascii=False))
    else:
        for line in _lines(found):
            click.echo(line)
    return 0 if is_sound else 1


def _lines(found: Sequence[Verification]) -> Iterator[str]:
    from winml_dag.pipeline.finished.verification import Found
    from winml_dag.store.quantities import counted, size_text

    for verification in found:
        folder = verification.manifest.parent
        for file in verification.files:
            if file.found is not Found.SOUND:
                yield f"{file.found}: {file.path}{f' ({file.detail})' if file.detail else ''}"
        yield from (f"contradiction in {verification.manifest}: {text}" for text in verification.contradictions)
        if verification.unfinished:
            yield f"unfinished: a build is writing to {folder}, or was killed; build again to finish it"
        yield from (f"not of the build: {folder / name}" for name in verification.extra[:_MOST_EXTRA])
        if len(verification.extra) > _MOST_EXTRA:
            yield f"not of the build: {len(verification.extra) - _MOST_EXTRA} more files"
        sound = [file for file in verification.files if file.found is Found.SOUND]
        size = size_text(sum(file.size for file in sound))
        state = "Sound" if verification.is_sound else "Not sound"
        yield f"{state}: {folder}, {len(sound)} of {counted(len(verification.files), 'file')} as built, {size} read."


def _json(verification: Verification) -> JsonObject:
    return {
        "folder": str(verification.manifest.parent),
        "manifest": str(verification.manifest),
        "sound": verification.is_sound,
        "files": [
            {"path": str(file.path), "found": str(file.found), "size_bytes": file.size, "detail": file.detail or None}
            for file in verification.files
        ],
        "extra": verification.extra,
        "contradictions": verification.contradictions,
        "unfinished": verification.unfinished,
    }
