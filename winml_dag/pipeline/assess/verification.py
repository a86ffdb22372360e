"""Whether an output folder is as its build left it: every file is read again and held against the manifest.

The manifest is held against itself, too, as far as it can be: the digest of an artifact follows from those of its
files, the hash of a stage's fields from the fields, and what a stage reads is what another put out. Nothing is written,
and the cache is not asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.keys import cache_key, config_hash
from winml_dag.engine.placed import KEPT
from winml_dag.errors import InputError, StoreError
from winml_dag.pipeline.commit import is_changing
from winml_dag.pipeline.layout import BUILD_CONFIG, MANIFEST, prefixed
from winml_dag.pipeline.manifest import SCHEMA_VERSION, Manifest, component_names, final_artifacts, read_manifest
from winml_dag.smallfiles import MOST_BYTES_OF_MANY, parse_json, read_bytes, read_json
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import digest_file, split_digest
from winml_dag.store.files import files_below, name_below
from winml_dag.store.record import Ingredients

# What builds keep for themselves in a folder begins so.
HIDDEN = ".winml-dag"


class Found(StrEnum):
    """What became of a file."""

    SOUND = "sound"
    CHANGED = "changed"
    MISSING = "missing"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class FileCheck:
    """One file of the manifest. ``detail`` says how it differs; ``size`` is what it should have, in bytes.
    ``is_intermediate``: nobody ships it, so it may have been deleted or changed since.
    """

    path: Path
    found: Found
    size: int
    detail: str = ""
    is_intermediate: bool = False

    @property
    def is_fault(self) -> bool:
        return self.found is not Found.SOUND and not self.is_intermediate


@dataclass(frozen=True)
class Verification:
    """What :func:`verify` found of one folder.

    Attributes:
        manifest: the file.
        files: all that were checked, in the order of the manifest.
        extra: names of files in the folder that no build of ours put there; no fault.
        contradictions: what the manifest says against itself, as sentences.
        unfinished: whether a build is writing to the folder, or was killed while it did.
    """

    manifest: Path
    files: tuple[FileCheck, ...]
    extra: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    unfinished: bool = False

    @property
    def is_sound(self) -> bool:
        return not self.contradictions and not self.unfinished and not any(file.is_fault for file in self.files)


def verify(path: Path) -> list[Verification]:
    """Check what lies at *path*: an output folder, a folder with recipes whose builds have none, or one file of an
    output folder and what belongs to it.

    Raises:
        InputError: when there is nothing of ours there, or a manifest cannot be read.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist.", advice="Give the output folder of a build, or a file in it.")
    if path.is_file() and path.name != MANIFEST:
        return [_verify_file(path)]
    folder = path.parent if path.is_file() else path
    folders = [folder] if (folder / MANIFEST).exists() else _kept(folder)
    if not folders:
        raise InputError(
            f"{folder} has no {MANIFEST}, so nothing says what should be in it.",
            advice="Give the output folder of a build.",
        )
    return [_verify_folder(found) for found in folders]


def intermediates(value: JsonObject) -> frozenset[str]:
    """The names of the models that the build of the manifest *value* went through, and of what belongs to them."""
    passed, shipped = set[str](), set[str]()
    for stage in _stages(value):
        component, _, _ = str(stage.get("id")).partition(".")
        for slot, output in _mapping(stage.get("outputs")).items():
            if not slot.endswith("model") or "placed" in stage:
                continue
            files = [file.name for file in _files(output)]
            if stage.get("name") == "finalize":
                shipped.update(files)
            else:
                # All components have one export, with a slot for each.
                own = component if component in component_names(value) else slot.removesuffix("model").rstrip("_")
                passed.update(prefixed(name, own) for name in files)
    return frozenset(passed - shipped)


def _kept(folder: Path) -> list[Path]:
    """Where the manifests of builds without an output folder lie, whose recipes are in *folder*."""
    return sorted(path.parent for path in (folder / KEPT).glob(f"*/{MANIFEST}"))


def load_manifest(folder: Path) -> Manifest:
    """The manifest in *folder*, where there is one.

    Raises:
        InputError: when it cannot be read or is not as a build writes it.
    """
    found = read_manifest(folder)
    if found is None:
        raise InputError(
            f"{folder / MANIFEST} {_fault(folder / MANIFEST)}",
            advice="Delete the folder and build again: what stages made is in the cache.",
        )
    return found


def _fault(path: Path) -> str:
    """What is wrong with a manifest that :func:`read_manifest` does not take."""
    try:
        value = read_json(path, MOST_BYTES_OF_MANY)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}."
    except ValueError as error:
        return f"is damaged: it is no JSON ({error})."
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version is None:
        return "is not of this program: it has no schema_version."
    if version != SCHEMA_VERSION:
        return f"has schema_version {version!r}, and this version of winml-dag reads {SCHEMA_VERSION} only."
    try:
        Artifact.from_json(value.get("files"))
        for stage in value["stages"]:
            Artifact.from_json(stage.get("placed", []))
    except StoreError as error:
        return f"is damaged: {error}"
    except (KeyError, TypeError, AttributeError):
        pass
    return "is damaged: its stages or files are not what a build writes."


def _verify_folder(folder: Path) -> Verification:
    manifest = load_manifest(folder)
    unshipped = intermediates(manifest.value)
    checks = [
        replace(check_file(folder / entry.name, entry), is_intermediate=entry.name in unshipped)
        for entry in manifest.files
    ]
    if (placed_in := recipe_folder(folder, manifest)) is not None:
        for entries in manifest.placed.values():
            checks += [check_file(placed_in / entry.name, entry) for entry in entries]
    if final_artifacts(manifest.value):
        checks.append(_check_settings(folder / BUILD_CONFIG, manifest))
    return Verification(
        folder / MANIFEST,
        tuple(checks),
        tuple(_extra(folder, manifest)),
        tuple(contradictions(manifest)),
        is_changing(folder),
    )


def _verify_file(path: Path) -> Verification:
    """*path* alone, with those files that its stage put out together with it."""
    folder = path.parent
    if not (folder / MANIFEST).exists():
        raise InputError(
            f"{folder} has no {MANIFEST}, so nothing says what {path.name} should be.",
            advice="Give a file in the output folder of a build.",
        )
    manifest = load_manifest(folder)
    entries = {entry.name: entry for entry in manifest.files}
    if path.name not in entries:
        raise InputError(f"{folder / MANIFEST} does not list {path.name}: no build of ours put it there.")
    names = {path.name, *_together(manifest, entries[path.name])}
    checks = tuple(check_file(folder / name, entries[name]) for name in sorted(names & entries.keys()))
    return Verification(folder / MANIFEST, checks, unfinished=is_changing(folder))


def _together(manifest: Manifest, entry: FileEntry) -> Iterator[str]:
    for files in _output_files(manifest.value):
        if entry in files:
            yield from (file.name for file in files)


def _output_files(value: JsonObject) -> Iterator[Sequence[FileEntry]]:
    for stage in _stages(value):
        for output in _mapping(stage.get("outputs")).values():
            yield _files(output)


def _files(output: JsonValue) -> Sequence[FileEntry]:
    try:
        return Artifact.from_json(_mapping(output).get("files")).files
    except StoreError:  # told by contradictions()
        return ()


def recipe_folder(folder: Path, manifest: Manifest) -> Path | None:
    text = manifest.value.get("folder")
    return Path(os.path.normpath(folder / text)) if isinstance(text, str) else None


def check_file(path: Path, entry: FileEntry) -> FileCheck:
    """Read *path*, in pieces when it is large, and hold it against *entry*."""
    try:
        if path.is_symlink():
            return FileCheck(path, Found.CHANGED, entry.size, "a link is in its place")
        size = path.stat().st_size
        if not path.is_file():
            return FileCheck(path, Found.CHANGED, entry.size, "no file is in its place")
        if size != entry.size:
            return FileCheck(path, Found.CHANGED, entry.size, f"{size} bytes instead of {entry.size}")
        digest = digest_file(path, split_digest(entry.digest)[0])
    except FileNotFoundError:
        return FileCheck(path, Found.MISSING, entry.size)
    except OSError as error:
        return FileCheck(path, Found.UNREADABLE, entry.size, error.strerror or str(error))
    if digest != entry.digest:
        return FileCheck(path, Found.CHANGED, entry.size, f"{digest} instead of {entry.digest}")
    return FileCheck(path, Found.SOUND, entry.size)


def _check_settings(path: Path, manifest: Manifest) -> FileCheck:
    """The settings have no entry, since the manifest has the hash of what they say."""
    try:
        data = read_bytes(path)
        found = config_hash(parse_json(data))
    except FileNotFoundError:
        return FileCheck(path, Found.MISSING, 0)
    except OSError as error:
        return FileCheck(path, Found.UNREADABLE, 0, error.strerror or str(error))
    except ValueError:
        return FileCheck(path, Found.CHANGED, 0, "it is no JSON")
    if found != manifest.value.get("config_hash"):
        return FileCheck(path, Found.CHANGED, len(data), "other settings than those of the build")
    return FileCheck(path, Found.SOUND, len(data))


def _extra(folder: Path, manifest: Manifest) -> Iterator[str]:
    ours = {entry.name for entry in manifest.files} | {MANIFEST, BUILD_CONFIG}
    placed_in = recipe_folder(folder, manifest)
    if placed_in is not None and placed_in.resolve() == folder.resolve():
        ours |= {entry.name for entries in manifest.placed.values() for entry in entries}
    for file in files_below(folder):
        name = name_below(folder, file.path)
        if name not in ours and not name.startswith(HIDDEN):
            yield name


def contradictions(manifest: Manifest) -> Iterator[str]:
    """Where the manifest does not agree with itself, as sentences: somebody has edited it."""
    value = manifest.value
    sources = _mapping(value.get("sources"))
    made = {
        (str(stage.get("id")), slot): output
        for stage in _stages(value)
        for slot, output in _mapping(stage.get("outputs")).items()
    }
    for (maker, slot), output in made.items():
        if _artifact_digest(_mapping(output).get("files")) != _mapping(output).get("digest"):
            yield f"{slot} of {maker} has another digest than its files make."
    for stage in _stages(value):
        if stage.get("status") != "completed":
            continue
        name = str(stage.get("id"))
        if config_hash(_mapping(stage.get("config"))) != stage.get("config_hash"):
            yield f"{name} has another config_hash than its config makes."
        elif _key(stage) not in (stage.get("cache_key"), None):
            yield f"{name} has another cache_key than its version, config, inputs and toolchain make."
        for slot, given in _mapping(stage.get("inputs")).items():
            if _digest_of_input(_mapping(given), sources, made) not in (_mapping(given).get("digest"), None):
                yield f"{name} reads other bytes as {slot} than {_mapping(given).get('from')} put out."
    yield from _models(manifest)


def _models(manifest: Manifest) -> Iterator[str]:
    """The same of the models to ship, which the last stage puts out, or the last one of each component."""
    finals = final_artifacts(manifest.value)
    for name in finals:
        if all(entry.name != name for entry in manifest.files):
            yield f"{name} is the model of the build and not among its files."
    done = [stage for stage in _stages(manifest.value) if stage.get("status") == "completed"]
    last = [stage for stage in done if stage.get("filename") in finals] if len(finals) > 1 else done[-1:]
    listed = set(manifest.files)
    for stage in last if finals else ():
        for files in _output_files({"stages": [stage]}):
            for file in files:
                if file not in listed:
                    yield f"{file.name} has another digest among the files than {stage.get('id')} put out."


def _key(stage: JsonObject) -> str | None:
    """The key that follows from what the manifest says of *stage*; None when it does not say enough (an older one)."""
    version = stage.get("version")
    if not isinstance(version, int):
        return None
    inputs = {slot: str(_mapping(given).get("digest")) for slot, given in _mapping(stage.get("inputs")).items()}
    toolchain = {name: str(text) for name, text in _mapping(stage.get("toolchain")).items()}
    return cache_key(Ingredients(str(stage.get("name")), version, _mapping(stage.get("config")), inputs, toolchain))


def _digest_of_input(
    given: JsonObject, sources: JsonObject, made: Mapping[tuple[str, str], JsonValue]
) -> JsonValue | None:
    """What the manifest says elsewhere of an input; None when it says nothing."""
    name = str(given.get("name"))
    if given.get("from") == "source":
        return _artifact_digest(sources[name]) if name in sources else None
    return _mapping(made.get((str(given.get("from")), name))).get("digest")


def _artifact_digest(files: JsonValue) -> str | None:
    try:
        return Artifact.from_json(files).digest
    except StoreError:
        return None


def _stages(value: JsonObject) -> list[JsonObject]:
    stages = value.get("stages")
    return [stage for stage in stages if isinstance(stage, Mapping)] if isinstance(stages, list) else []


def _mapping(value: JsonValue) -> JsonObject:
    return value if isinstance(value, Mapping) else {}
