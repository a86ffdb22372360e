"""Check whether an output folder is as its build left it: read every file and compare it with the manifest.

The manifest is also checked for consistency, as far as possible: an artifact's digest follows from those of its files,
a stage's hash from its fields, and a stage's inputs are outputs of others. Nothing is written, and the cache is not
used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from winml_dag.canonical import JsonObject, JsonValue, json_hash
from winml_dag.errors import InputError, StoreError
from winml_dag.file_reading import parse_json, read_bytes
from winml_dag.names import KEPT
from winml_dag.pipeline.buildgraph import prefixed
from winml_dag.pipeline.documents import BuildManifest, Input, Output, Stage
from winml_dag.pipeline.layout import BUILD_CONFIG, MANIFEST
from winml_dag.pipeline.manifest import Manifest, load_manifest
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.commit import is_changing
from winml_dag.store.digest import digest_file, split_digest
from winml_dag.store.files import files_below, name_below
from winml_dag.store.records import KeyInputs, cache_key

T = TypeVar("T")

# The prefix of files that builds keep for themselves in a folder.
_HIDDEN = ".winml-dag"


class Found(StrEnum):
    """The state of a file."""

    INTACT = "sound"
    CHANGED = "changed"
    MISSING = "missing"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class FileCheck:
    """One file of the manifest. ``detail`` describes the difference; ``size_bytes`` is the expected size.

    ``intermediate``: the file is not shipped, so it may have been deleted or changed.
    """

    path: Path
    found: Found
    intermediate: bool = False
    size_bytes: int = 0
    detail: str | None = None

    @property
    def is_fault(self) -> bool:
        return self.found is not Found.INTACT and not self.intermediate


@dataclass(frozen=True)
class Verification:
    """The result of :func:`verify` for one folder.

    Attributes:
        manifest: the path of the manifest.
        files: all checked files, in the order of the manifest.
        extra: names of files in the folder that no build wrote; not a fault.
        contradictions: inconsistencies within the manifest, as sentences.
        unfinished: whether a build is writing to the folder, or was killed while writing.
    """

    manifest: Path
    files: tuple[FileCheck, ...]
    extra: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    unfinished: bool = False

    @property
    def is_intact(self) -> bool:
        return not self.contradictions and not self.unfinished and not any(file.is_fault for file in self.files)


def verify(path: Path) -> list[Verification]:
    """Check *path*: an output folder, a folder of recipes without output folders, or an output file and its companions.

    Raises:
        InputError: when there is no build output, or a manifest cannot be read.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist.", advice="Give the output folder of a build, or a file in it.")
    if path.is_file() and path.name != MANIFEST:
        return [_verify_file(path)]
    folder = path.parent if path.is_file() else path
    folders = [folder]
    if not (folder / MANIFEST).exists():  # recipes without an output folder have manifests in a folder beside them
        folders = sorted(path.parent for path in (folder / KEPT).glob(f"*/{MANIFEST}"))
    if not folders:
        raise InputError(
            f"{folder} has no {MANIFEST}, so its expected contents are unknown.",
            advice="Give the output folder of a build.",
        )
    return [_verify_folder(found) for found in folders]


def intermediates(build: BuildManifest) -> frozenset[str]:
    """Return the file names of a build's intermediate models, and of the files that belong to them."""
    passed, shipped = set[str](), set[str]()
    for stage in build.stages:
        for slot, output in stage.outputs.items():
            if not slot.endswith("model") or stage.placed is not None:
                continue
            files = [file.name for file in output.files]
            if stage.name == "finalize":
                shipped.update(files)
            else:
                # All components share one export, which has a slot for each.
                own = build.component_of(stage) or slot.removesuffix("model").rstrip("_")
                passed.update(prefixed(name, own) for name in files)
    return frozenset(passed - shipped)


def _verify_folder(folder: Path) -> Verification:
    manifest = load_manifest(folder)
    unshipped = intermediates(manifest.build)
    checks = [
        replace(check_file(folder / entry.name, entry), intermediate=entry.name in unshipped)
        for entry in manifest.files
    ]
    if (placed_in := recipe_folder(folder, manifest)) is not None:
        for entries in manifest.placed.values():
            checks += [check_file(placed_in / entry.name, entry) for entry in entries]
    if manifest.build.final_artifacts:
        checks.append(_check_settings(folder / BUILD_CONFIG, manifest))
    return Verification(
        folder / MANIFEST,
        tuple(checks),
        tuple(_extra(folder, manifest)),
        tuple(contradictions(manifest)),
        is_changing(folder),
    )


def _verify_file(path: Path) -> Verification:
    """Verify *path* alone, with the files that its stage output together with it."""
    folder = path.parent
    if not (folder / MANIFEST).exists():
        raise InputError(
            f"{folder} has no {MANIFEST}, so the expected {path.name} is unknown.",
            advice="Give a file in the output folder of a build.",
        )
    manifest = load_manifest(folder)
    entries = {entry.name: entry for entry in manifest.files}
    if path.name not in entries:
        raise InputError(f"{folder / MANIFEST} does not list {path.name}: no build of winml_dag wrote it.")
    outputs = (output.files for stage in manifest.build.stages for output in stage.outputs.values())
    together = (file.name for files in outputs if entries[path.name] in files for file in files)
    names = {path.name, *together}
    checks = tuple(check_file(folder / name, entries[name]) for name in sorted(names & entries.keys()))
    return Verification(folder / MANIFEST, checks, unfinished=is_changing(folder))


def recipe_folder(folder: Path, manifest: Manifest) -> Path | None:
    return None if manifest.folder is None else Path(os.path.normpath(folder / manifest.folder))


def check_file(path: Path, entry: FileEntry) -> FileCheck:
    """Read *path*, in chunks if it is large, and compare it with *entry*."""
    try:
        if path.is_symlink():
            return FileCheck(path, Found.CHANGED, size_bytes=entry.size, detail="a link is in its place")
        size = path.stat().st_size
        if not path.is_file():
            return FileCheck(path, Found.CHANGED, size_bytes=entry.size, detail="no file is in its place")
        if size != entry.size:
            return FileCheck(path, Found.CHANGED, size_bytes=entry.size, detail=f"{size} bytes instead of {entry.size}")
        digest = digest_file(path, split_digest(entry.digest)[0])
    except FileNotFoundError:
        return FileCheck(path, Found.MISSING, size_bytes=entry.size)
    except OSError as error:
        return FileCheck(path, Found.UNREADABLE, size_bytes=entry.size, detail=error.strerror or str(error))
    if digest != entry.digest:
        return FileCheck(path, Found.CHANGED, size_bytes=entry.size, detail=f"{digest} instead of {entry.digest}")
    return FileCheck(path, Found.INTACT, size_bytes=entry.size)


def _check_settings(path: Path, manifest: Manifest) -> FileCheck:
    """Check the settings by their hash in the manifest: they have no file entry."""
    try:
        data = read_bytes(path)
        found = json_hash(parse_json(data))
    except FileNotFoundError:
        return FileCheck(path, Found.MISSING)
    except OSError as error:
        return FileCheck(path, Found.UNREADABLE, detail=error.strerror or str(error))
    except ValueError:
        return FileCheck(path, Found.CHANGED, detail="it is not JSON")
    if found != manifest.build.config_hash:
        return FileCheck(path, Found.CHANGED, size_bytes=len(data), detail="other settings than those of the build")
    return FileCheck(path, Found.INTACT, size_bytes=len(data))


def _extra(folder: Path, manifest: Manifest) -> Iterator[str]:
    ours = {entry.name for entry in manifest.files} | {MANIFEST, BUILD_CONFIG}
    placed_in = recipe_folder(folder, manifest)
    if placed_in is not None and placed_in.resolve() == folder.resolve():
        ours |= {entry.name for entries in manifest.placed.values() for entry in entries}
    return others(folder, ours)


def others(folder: Path, ours: Collection[str]) -> Iterator[str]:
    """Yield the names of files in *folder* that are not among *ours*, without those that builds keep for themselves."""
    for file in files_below(folder):
        name = name_below(folder, file.path)
        if name not in ours and not name.startswith(_HIDDEN):
            yield name


def contradictions(manifest: Manifest) -> Iterator[str]:
    """Yield the inconsistencies within the manifest, as sentences: it has been edited."""
    build = manifest.build
    made = {(stage.id, slot): output for stage in build.stages for slot, output in stage.outputs.items()}
    for (maker, slot), output in made.items():
        if Artifact.of(output.files).digest != output.digest:
            yield f"{slot} of {maker} has another digest than its files make."
    for stage in build.stages:
        if not stage.is_done:
            continue
        if _hash_or_none(json_hash, stage.config) != stage.config_hash:
            yield f"{stage.id} has another config_hash than its config makes."
        else:
            inputs = {slot: str(given.digest) for slot, given in stage.inputs.items()}
            made_from = KeyInputs(stage.name, stage.version, stage.config, inputs, stage.toolchain)
            if _hash_or_none(cache_key, made_from) != stage.cache_key:
                yield f"{stage.id} has another cache_key than its version, config, inputs and toolchain make."
        for slot, given in stage.inputs.items():
            if _digest_of_input(given, build.sources, made) not in (given.digest, None):
                yield f"{stage.id} reads other bytes as {slot} than {given.maker} wrote."
    yield from _models(manifest)


def _models(manifest: Manifest) -> Iterator[str]:
    """Yield those of the models to ship, which the last stage outputs, or the last one of each component."""
    finals = manifest.build.final_artifacts
    for name in finals:
        if all(entry.name != name for entry in manifest.files):
            yield f"{name} is the model of the build and not among its files."
    done = [stage for stage in manifest.build.stages if stage.is_done]
    last = [stage for stage in done if stage.filename in finals] if len(finals) > 1 else done[-1:]
    listed = set(manifest.files)
    for stage in last if finals else ():
        for file in stage.files:
            if file not in listed:
                yield f"{file.name} has another digest among the files than {stage.id} wrote."


def _hash_or_none(function: Callable[[T], str], value: T) -> str | None:
    try:
        return function(value)
    except ValueError:  # text that cannot be encoded as UTF-8: no build has made such a hash
        return None


def _digest_of_input(
    given: Input, sources: Mapping[str, JsonValue], made: Mapping[tuple[str, str], Output]
) -> str | None:
    """Return the digest that the manifest records elsewhere for an input; None if there is none."""
    if given.maker != "source":
        output = made.get((given.maker, given.name))
        return None if output is None else output.digest
    with suppress(StoreError, KeyError):
        return Artifact.from_json(sources[given.name]).digest
    return None


@dataclass(frozen=True)
class Provenance:
    """What a manifest records about one file in its folder.

    Attributes:
        manifest: the path of the manifest.
        build: fields of the manifest about the build: model_id, task, precision, execution_provider, device, timestamp.
        quality: as in the manifest; None when nothing was measured.
        notices: what to know before relying on the result.
        stages: the stages of the build, in order.
        made_by: the stage that made the file; empty if several or none did.
        check: whether it has the recorded digest; None when the manifest does not list it.
    """

    manifest: Path
    build: Mapping[str, str | None]
    quality: JsonObject | None
    notices: tuple[str, ...]
    stages: tuple[Stage, ...]
    made_by: str
    check: FileCheck | None


_OF_THE_MODEL = ("model_id", "task", "precision", "execution_provider", "device")


def provenance_of(model: Path) -> Provenance | None:
    """Return what the manifest in the folder of *model* records about it; None without a manifest. Reads the file once.

    Raises:
        InputError: when the manifest cannot be read.
    """
    folder = model.parent
    if not (folder / MANIFEST).exists():
        return None
    manifest = load_manifest(folder)
    build = manifest.build
    own, component = build.of(model.name), build.component_of_file(model.name)
    entry = next((entry for entry in manifest.files if entry.name == model.name), None)
    return Provenance(
        folder / MANIFEST,
        {**{name: getattr(own, name) or None for name in _OF_THE_MODEL}, "timestamp": build.timestamp or None},
        own.quality,
        tuple(build.notices),
        tuple(stage for stage in build.stages if build.component_of(stage) in ("", component)),
        next((stage.id for stage in build.stages if model.name in (stage.filename, *stage.filenames)), ""),
        None if entry is None else check_file(model, entry),
    )
