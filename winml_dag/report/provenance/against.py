"""Checks a folder against a provenance document: every file is hashed again.

The document's signature identifies its author; checking that is up to signing tools. So its content is untrusted: it
must be valid in its format, and no name in it may lead out of the folder.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.errors import InputError, StoreError
from winml_dag.file_reading import MOST_BYTES_OF_MANY, parse_json, read_text
from winml_dag.pipeline.assess.verification import FileCheck, Found, check_file, others, recipe_folder
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.manifest import read_manifest
from winml_dag.report.provenance.document import CYCLONEDX, SLSA, require
from winml_dag.report.provenance.facts import HashedFile
from winml_dag.store.artifact import FileEntry
from winml_dag.store.files import check_name

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Against:
    """The result of checking ``folder`` against ``document``, which is in ``format``.

    ``files``: the required files, and the by-products that exist. ``left_out``: by-products that are missing, not a
    fault: they were intermediates of what is shipped. ``extra``: files that the document does not list; no fault.
    """

    document: Path
    format: str
    folder: Path
    files: tuple[FileCheck, ...]
    left_out: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    @property
    def is_intact(self) -> bool:
        return all(file.found is Found.INTACT for file in self.files)


def check_against(path: Path, document: Path) -> Against:
    """Check *path*, an output folder or one file in it, against *document*.

    Raises:
        UsageError: when the libraries for its format are not installed.
        InputError: when the path does not exist, and for a document that is invalid or lists no file.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist.", advice="Give the output folder of a build, or a file in it.")
    format_, listed = read_document(document)
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        names = {file.path for file in listed if not file.placed}
        extra = tuple(name for name in others(folder, names) if not _is(folder / name, document))
    else:
        extra = ()
        listed = [file for file in listed if file.path == path.name and not file.placed]
        if not listed:
            raise InputError(
                f"{document} does not list {path.name}.", advice="Give the whole folder to see what it lists."
            )
    checks = [(file, _check(folder, file)) for file in listed]
    left_out = tuple(file.path for file, check in checks if not file.is_output and check.found is Found.MISSING)
    kept = (check for file, check in checks if file.path not in left_out or file.is_output)
    return Against(document, format_, folder, tuple(kept), left_out, extra)


def read_document(document: Path) -> tuple[str, list[HashedFile]]:
    """Return the format of *document*, inferred from its content, and the files that it lists.

    Raises:
        UsageError: when the libraries for its format are not installed.
        InputError: when it is invalid or lists no file.
    """
    try:
        text = read_text(document, MOST_BYTES_OF_MANY)
        value = parse_json(text)
    except OSError as error:
        raise InputError(f"{document} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise InputError(f"{document} is not JSON: {error}.", advice=_KNOWN) from None
    try:
        format_, found = _listed(value if isinstance(value, dict) else {}, text)
        listed = sorted(map(_checked, found), key=lambda file: (file.path, file.sha256, file.is_output, file.placed))
    except (InputError, StoreError) as error:
        raise InputError(f"{document}: {error.message}", advice=error.advice) from None
    if not listed:
        raise InputError(f"{document} lists no file of an output folder.", advice=_KNOWN)
    return format_, listed


_KNOWN = "Give what `winml-dag provenance` has written, or a signed envelope around its statement."


def _listed(value: JsonObject, text: str) -> tuple[str, Iterator[HashedFile]]:
    if value.get("bomFormat") == "CycloneDX":
        require(CYCLONEDX)
        from winml_dag.report.provenance import bom

        return CYCLONEDX, bom.listed_files(text)
    payload = _payload_of(value)
    if payload is None and not isinstance(value.get("_type"), str):
        raise InputError("It is neither a statement of in-toto nor a bill of materials of CycloneDX.", advice=_KNOWN)
    require(SLSA)
    from winml_dag.report.provenance import statement

    return SLSA, statement.listed_files(text if payload is None else payload)


def _payload_of(value: JsonObject) -> str | None:
    """Return the statement in a signed envelope (DSSE) or a Sigstore bundle; None when *value* is neither.

    The signature is not checked.
    """
    envelope = value.get("dsseEnvelope") or value
    if not isinstance(envelope, Mapping) or envelope.get("payloadType") != "application/vnd.in-toto+json":
        return None
    try:
        return base64.b64decode(str(envelope.get("payload")), validate=True).decode("utf-8")
    except ValueError as error:
        raise InputError(f"Its payload is not text: {error}.") from None


def _checked(file: HashedFile) -> HashedFile:
    """Return *file*; raise InputError or StoreError if its name leads elsewhere, or it has no digest."""
    for name in (file.path, *((file.placed,) if file.placed not in ("", ".") else ())):
        check_name(name)
    if not _SHA256.fullmatch(file.sha256):
        raise InputError(f"It has no SHA-256 for {file.path}, so there is nothing to compare with.")
    return file


def _check(folder: Path, file: HashedFile) -> FileCheck:
    root: Path | None = folder
    if file.placed:
        manifest = read_manifest(folder / file.placed)
        root = None if manifest is None else recipe_folder(folder / file.placed, manifest)
    if root is None:
        where = f"it lies in the recipe's folder, and without {MANIFEST} nothing says where that is"
        return FileCheck(folder / file.path, Found.MISSING, detail=where)
    path = root / file.path
    try:
        size = path.lstat().st_size
    except OSError:
        size = 0  # the problem is reported below
    return check_file(path, FileEntry(file.path, f"sha256:{file.sha256}", size))


def _is(path: Path, document: Path) -> bool:
    try:
        return path.samefile(document)
    except OSError:
        return False
