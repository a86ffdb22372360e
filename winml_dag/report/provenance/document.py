"""Creates the documents on an output folder: one statement per build, or one bill for all.

An in-toto statement has one predicate, on one run, so each build of a sweep has a statement of its own. A bill lists
all models. The digests in a manifest of a local cache are no proof for others, so files are hashed with SHA-256 here.
Documents are created only for a folder that is unchanged since its build.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import InputError, StoreError, UsageError
from winml_dag.names import KEPT
from winml_dag.pipeline.assess.builtmodel import settings_in
from winml_dag.pipeline.assess.verification import Found, Verification, recipe_folder, verify
from winml_dag.pipeline.buildgraph import prefixed
from winml_dag.pipeline.documents import BuildManifest, Origin
from winml_dag.pipeline.hub import cached_snapshot
from winml_dag.pipeline.jsonfile import has_mark, put_text
from winml_dag.pipeline.layout import BUILD_CONFIG, MANIFEST
from winml_dag.pipeline.manifest import Manifest, load_manifest
from winml_dag.report.folders import find
from winml_dag.report.provenance.facts import BuildFacts, Dependency, HashedFile, ReadFile
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import digest_file, split_digest

SLSA, CYCLONEDX = "slsa", "cyclonedx"
_EXTRA = {SLSA: ("in_toto_attestation", "google.protobuf"), CYCLONEDX: ("cyclonedx.validation.json", "jsonschema")}


@dataclass(frozen=True)
class Document:
    """The text of a document.

    ``build``: the folder of the build it describes, relative to the given one; empty for that folder, and for a bill of
    all.
    """

    build: str
    text: str


def documents_of(folder: Path, format_: str) -> tuple[Document, ...]:
    """Return the documents on *folder*, as ``slsa`` or ``cyclonedx``.

    Raises:
        UsageError: when the required libraries are not installed.
        InputError: when there is no build, or it was changed since.
    """
    require(format_)
    builds = gather(folder, apart=format_ == SLSA)
    if format_ == SLSA:
        from winml_dag.report.provenance.statement import statement_of

        return tuple(Document(build.name, statement_of(build)) for build in builds)
    from winml_dag.report.provenance.bom import bom_of

    return (Document("", bom_of(_name(folder, builds), builds)),)


def require(format_: str) -> None:
    """Raise UsageError when the libraries for *format_* are not installed."""
    import importlib

    for module in _EXTRA[format_]:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(
                f"The format {format_} takes libraries that are not installed ({error}).",
                advice="pip install winml_dag[provenance]",
            ) from error


def _name(folder: Path, builds: tuple[BuildFacts, ...]) -> str:
    """Return the common name of *builds*: their sweep, otherwise their models."""
    sweeps = [sweep.result.name for sweep in find(folder).sweeps]
    models = dict.fromkeys(build.model or "stages of a recipe" for build in builds)
    return sweeps[0] if len(sweeps) == 1 else ", ".join(models)


# A top-level key of each kind of document, and the ending of its file name.
_MARKS = {SLSA: "predicateType", CYCLONEDX: "bomFormat"}
_ENDINGS = {SLSA: ".slsa.json", CYCLONEDX: ".cdx.json"}


def write_documents(output: Path, format_: str, documents: Sequence[Document], *, overwrite: bool) -> list[Path]:
    """Write *documents* to the file *output*, or to that folder, each named after its build.

    Raises:
        UsageError: when another file is in the way; then nothing was written.
        StoreError: when a file cannot be written.
    """
    if len(documents) == 1 and not output.is_dir():
        files = {output: documents[0].text}
    else:
        if output.is_file():
            raise UsageError(
                f"{output} is a file, and there are {len(documents)} documents.", advice="Choose a folder."
            )
        files = {output / f"{document.build or 'build'}{_ENDINGS[format_]}": document.text for document in documents}
    for path in files:
        if path.is_file() and not (overwrite or has_mark(path, _MARKS[format_])):
            raise UsageError(f"{path} exists and is not such a document.", advice="Give --overwrite.")
    return [put_text(path, text) for path, text in files.items()]


_PACKAGE = Path(__file__).parent.parent.parent
_MOST_NAMED = 3


def gather(folder: Path, *, apart: bool) -> tuple[BuildFacts, ...]:
    """Return every build in *folder*: its own, or those of a sweep, in the order of their folders.

    Paths are relative to *folder*, or with *apart* to the folder of each build.

    Raises:
        InputError: when there is none, and for a folder that was changed since its build.
    """
    if (folder / MANIFEST).is_file():
        return (_facts(folder, "", folder),)
    found = find(folder)
    if found.notices:
        raise InputError(found.notices[0], advice="Build again, or give the folder of one build.")
    if not found.builds:
        raise InputError(
            f"No winml-dag build was found in {folder}.", advice="Give the output folder of a build or of a sweep."
        )
    return tuple(_facts(build.folder, build.name, _top(build.folder) if apart else folder) for build in found.builds)


def _top(folder: Path) -> Path:
    """Return the folder of a build; if its manifest is kept next to its recipe, the recipe's folder."""
    kept = [above for above in folder.parents if above.name == KEPT]
    return kept[-1].parent if kept else folder


def _facts(folder: Path, name: str, top: Path) -> BuildFacts:
    manifest = load_manifest(folder)
    below = folder.relative_to(top).as_posix()
    files = tuple(_files(folder, "" if below == "." else below, manifest, top))
    # Verify after hashing, so that changes in between are detected.
    (checked,) = verify(folder)
    if faults := list(_faults(checked)):
        raise InputError(
            f"{folder} is not as its build left it: {'; '.join(faults[:_MOST_NAMED])}.",
            advice=f"`winml-dag verify {folder}` shows the differences; build again.",
        )
    dependencies = tuple(_dependencies(folder, manifest.build))
    settings = settings_in(folder) if manifest.build.final_artifacts else {}
    return BuildFacts(name, manifest.value, settings, files, dependencies)


def _faults(checked: Verification) -> Iterator[str]:
    for file in checked.files:
        # A deleted intermediate is omitted. A changed one would be listed as an output of the build.
        if file.is_fault or file.found not in (Found.INTACT, Found.MISSING):
            yield f"{file.path.name} is {file.found}"
    yield from (text.rstrip(".") for text in checked.contradictions)
    if checked.unfinished:
        yield "a build is writing to it, or was killed"


def _files(folder: Path, name: str, manifest: Manifest, top: Path) -> Iterator[HashedFile]:
    """Yield the files of a build. *name*: *folder* relative to *top*."""
    read = manifest.build
    finals, makers = read.final_artifacts, _makers(read)
    # Models to ship, with their weights and binaries.
    shipped = {*finals, *(file.name for stage in read.stages if stage.name == "finalize" for file in stage.files)}
    for entry in manifest.files:
        if not (folder / entry.name).exists():  # a fault, unless it is an intermediate
            continue
        yield HashedFile(
            _below(name, entry.name),
            *_hashed(folder / entry.name, entry),
            stage=makers.get(entry.name, ""),
            component=read.component_of_file(entry.name),
            is_output=not finals or entry.name in shipped,
        )
    for text in (MANIFEST, *((BUILD_CONFIG,) if finals else ())):
        yield HashedFile(_below(name, text), *_hashed(folder / text, None))
    where = recipe_folder(folder, manifest)
    if where is None:
        return
    inside = _inside(where, top)
    for stage, entries in manifest.placed.items():
        for entry in entries:
            path, placed = (entry.name, name or ".") if inside is None else (_below(inside, entry.name), "")
            hashed = _hashed(where / entry.name, entry)
            yield HashedFile(path, *hashed, stage=stage, is_output=not finals, placed=placed)


def _inside(folder: Path, top: Path) -> str | None:
    """Return *folder* relative to *top*, empty for *top* itself; None if it is elsewhere."""
    try:
        below = folder.resolve().relative_to(top.resolve()).as_posix()
    except ValueError:
        return None
    return "" if below == "." else below


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _hashed(path: Path, entry: FileEntry | None) -> tuple[str, int]:
    """Return SHA-256 and size. For an unreadable file, the verification reports the error."""
    if entry is not None and entry.digest.startswith("sha256:"):
        return split_digest(entry.digest)[1], entry.size
    try:
        return split_digest(digest_file(path, "sha256"))[1], path.stat().st_size
    except OSError:
        return "", 0


def _makers(read: BuildManifest) -> dict[str, str]:
    """Return the id of the stage that made each file in the folder, by file name."""
    makers: dict[str, str] = {}
    for stage in read.stages:
        names = [prefixed(file.name, read.component_of(stage)) for file in stage.files]
        makers |= dict.fromkeys((*names, stage.filename, *stage.filenames), stage.id)
    return makers


def _dependencies(folder: Path, read: BuildManifest) -> Iterator[Dependency]:
    for name, listed in read.sources.items():
        try:
            artifact = Artifact.from_json(listed)
        except StoreError as error:
            raise InputError(f"{folder / MANIFEST} is damaged: {error}") from None
        origin = read.run.sources.get(name, Origin())
        hub = origin.hub
        where = _place(folder, origin)
        yield Dependency(
            name,
            origin.kind or name,
            artifact.digest,
            tuple(_read(entry, where, origin.names) for entry in artifact.files),
            None if hub is None else (hub.kind, hub.name),
            "" if hub is None else hub.revision,
            origin.license,
            is_builtin=bool(origin.package),
        )


def _place(folder: Path, origin: Origin) -> Path | None:
    """Return where a source was read from, if that can still be determined."""
    if origin.package:
        return _PACKAGE / origin.folder
    if (hub := origin.hub) is not None:
        snapshot = cached_snapshot(hub.name, hub.revision, hub.kind)
        return None if snapshot is None else snapshot / origin.folder
    return Path(os.path.normpath(folder.resolve() / origin.folder)) if origin.folder else None


def _read(entry: FileEntry, where: Path | None, names: Mapping[str, str]) -> ReadFile:
    function, digest = split_digest(entry.digest)
    if function != "sha256" and where is not None:
        path = where / names.get(entry.name, entry.name)
        with suppress(OSError, ValueError):
            if path.is_file() and path.stat().st_size == entry.size and digest_file(path) == entry.digest:
                return ReadFile(entry.name, "sha256", split_digest(digest_file(path, "sha256"))[1], entry.size)
    return ReadFile(entry.name, function.replace("-", "_"), digest, entry.size)
