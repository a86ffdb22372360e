"""The files that documents about builds are written into. One that somebody else has made is never replaced unasked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from winml_dag.errors import UsageError
from winml_dag.pipeline.jsonfile import put_text
from winml_dag.report.provenance.document import CYCLONEDX, SLSA, Document
from winml_dag.smallfiles import read_json

# What a document of each kind has at its top, and what the name of its file ends with.
_MARKS = {SLSA: "predicateType", CYCLONEDX: "bomFormat"}
_ENDINGS = {SLSA: ".slsa.json", CYCLONEDX: ".cdx.json"}


def write_documents(output: Path, format_: str, documents: Sequence[Document], *, overwrite: bool) -> list[Path]:
    """Write *documents*: one into the file *output*, several into that folder, each named for its build.

    Raises:
        UsageError: when another file is in the way; then nothing was written.
        StoreError: when a file cannot be written.
    """
    if len(documents) == 1:
        files = {output: documents[0].text}
    else:
        if output.is_file():
            raise UsageError(
                f"{output} is a file, and there are {len(documents)} documents.", advice="Choose a folder."
            )
        files = {output / f"{document.build}{_ENDINGS[format_]}": document.text for document in documents}
    for path in files:
        if path.is_file() and not (overwrite or _is_such(path, _MARKS[format_])):
            raise UsageError(f"{path} is in the way, and no document of that kind.", advice="Give --overwrite.")
    return [put_text(path, text) for path, text in files.items()]


def _is_such(path: Path, mark: str) -> bool:
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and mark in found
