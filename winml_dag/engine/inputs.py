"""Prepare the inputs of a stage before it starts, and check that they are unchanged when it has ended.

A built-in stage gets private copies. A stage that works in place reads the user's files where they are; in confined
mode it gets its own folder that contains only its declared inputs, at their paths in the user's folder.

Files that are read in place are watched. Content alone is not enough: a file that is changed and restored has the same
content when the stage has ended. Therefore the file's identity, recorded before its content was checked, is compared,
and that of every link and folder on the way to it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from winml_dag.engine.execute import Job
from winml_dag.engine.graph import Graph
from winml_dag.engine.inplace import InPlace, list_folder, placed_in
from winml_dag.engine.sandbox import FileAccess
from winml_dag.engine.stage import Node, Source, SourceFile
from winml_dag.errors import InputError, StageError
from winml_dag.file_reading import Signature, signature_from, signature_of
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.clone import clone_file
from winml_dag.store.digest import Fingerprints, split_digest
from winml_dag.store.store import Store

# The file that represents an artifact of several files in a command, if exactly one file has this suffix.
_MAIN_SUFFIX = ".onnx"
# Linux follows at most this many links in one path.
_MOST_LINKS = 40


class Preparer:
    """Prepares jobs for the nodes of one graph.

    *in_place* reads and writes the user's folders. Without it nothing of the user's is touched, and stages that work in
    place are confined. The sandbox also confines them, and prevents them from reading anything else of the user's
    folder.
    """

    def __init__(
        self, graph: Graph, store: Store, fingerprints: Fingerprints, in_place: InPlace | None, access: FileAccess
    ) -> None:
        self._graph = graph
        self._store = store
        self._fingerprints = fingerprints
        self._in_place = in_place or InPlace(store)
        self._confines = in_place is None or access is FileAccess.SANDBOX
        self._access = access

    def prepare(self, folder: Path, node: Node, inputs: Mapping[str, Artifact], timeout_seconds: float) -> Job:
        """Place the inputs of *node* in *folder*; *inputs* has its artifacts by slot.

        Raises:
            InputError: when a source has changed since the key was made.
            BlobDamaged: when an input cannot be fetched.
        """
        traces = node.stage.works_in_place and self._access is FileAccess.TRACE
        job = Job(node, folder, timeout_seconds, is_traced=traces)
        self._store.fetch_ahead(self._stored(node, inputs))
        if not node.stage.works_in_place:
            watched = tuple(watch_tools(node.tools, node.toolchain, self._in_place, folder))
            for slot, name in node.inputs.items():
                self._copy(name, inputs[slot], job.input_folder(slot))
            return replace(job, began=time.time(), watched=watched)
        if node.folder is None:
            raise StageError(f"{node.id} works in place, and has no folder to work in.")
        return self._confined(job, inputs) if self._confines else self._placed(job, inputs)

    def check(self, job: Job, inputs: Mapping[str, Artifact]) -> None:
        """Raise InputError when an input or a tool has changed since before the job ran."""
        for watched in job.watched:
            watched.check(self._in_place)
        node = job.node
        if node.stage.works_in_place:
            return
        for slot, name in node.inputs.items():
            if source := self._graph.sources.get(name):
                digests = _digests(inputs[slot])
                for file in source.files:
                    if not self._fingerprints.unchanged(file.path, digests[file.name]):
                        raise changed(file.path)

    def _placed(self, job: Job, inputs: Mapping[str, Artifact]) -> Job:
        """The job in the user's folder; files that other stages output there are written first."""
        node = job.node
        assert node.folder is not None
        seen: dict[str, str] = {}
        watched: list[Watched] = [*watch_tools(node.tools, node.toolchain, self._in_place, node.folder)]
        for slot, name in node.inputs.items():
            artifact = inputs[slot]
            source = self._graph.sources.get(name)
            if source is not None:
                seen[slot] = _source_text(source, node.folder)
                files = {file.name: file for file in artifact.files}
                watched += watch_folders(source)
                watched += [self._watch(str(file.path), files[file.name], node.folder) for file in source.files]
            elif (made := self._made_in(node.folder, name, artifact)) is not None:
                path, placed = made
                seen[slot] = path.rstrip("/")
                for file in placed.files:
                    watched.append(self._watch(self._in_place.put_file(node.folder, file), file, node.folder))
                if path.endswith("/"):
                    self._in_place.hold_only(node.folder, path, placed.files)
            else:
                seen[slot] = self._private(job, slot, artifact)
        return replace(job, at=node.folder, seen=seen, began=time.time(), watched=tuple(watched))

    def _confined(self, job: Job, inputs: Mapping[str, Artifact]) -> Job:
        """The job in its own folder below the scratch folder."""
        node = job.node
        assert node.folder is not None
        project = job.folder / "project"
        project.mkdir()
        seen: dict[str, str] = {}
        watched: list[Watched] = []
        own: dict[str, FileEntry] = {}
        for slot, name in node.inputs.items():
            artifact = inputs[slot]
            source = self._graph.sources.get(name)
            if source is not None:
                seen[slot] = _source_text(source, node.folder)
                entries = {file.name: file for file in artifact.files}
                for file in source.files:
                    entry = entries[file.name]
                    if _lies_in(node.folder, file):
                        _clone(file, project, entry.digest)
                        own[file.name] = entry
                    else:
                        watched.append(self._watch(str(file.path), entry, node.folder))
            elif (made := self._made_in(node.folder, name, artifact)) is not None:
                path, placed = made
                seen[slot] = path.rstrip("/")
                self._store.fetch(placed, project)
                own.update({file.name: file for file in placed.files})
            else:
                seen[slot] = self._private(job, slot, artifact)
        outside = {name: path for name, path in node.tools.items() if not path.is_relative_to(node.folder)}
        watched += watch_tools(outside, node.toolchain, self._in_place, node.folder)
        for name in node.tools.keys() - outside.keys():
            tool = SourceFile(node.tools[name].relative_to(node.folder).as_posix(), node.tools[name])
            if tool.name not in own:
                _clone(tool, project, node.toolchain[name])
                size = (project / tool.name).stat().st_size
                own[tool.name] = FileEntry(tool.name, node.toolchain[name], size)
        watched += [self._watch(str(project / name), entry, project) for name, entry in own.items()]
        hidden = node.folder if self._access is FileAccess.SANDBOX else None
        began, files = time.time(), frozenset(own)
        return replace(job, at=project, seen=seen, hidden=hidden, began=began, watched=tuple(watched), own=files)

    def _watch(self, path: str, file: FileEntry, folder: Path) -> Watched:
        return watch_file(path, file, self._in_place, folder)

    def _stored(self, node: Node, inputs: Mapping[str, Artifact]) -> Iterator[FileEntry]:
        """The files that *node* reads and that are in the store."""
        for slot, name in node.inputs.items():
            source = self._graph.sources.get(name)
            if source is None or source.stored is not None:
                yield from inputs[slot].files

    def _made_in(self, folder: Path, name: str, artifact: Artifact) -> tuple[str, Artifact] | None:
        """Path and files of artifact *name* in *folder*; None when its maker does not write it there."""
        maker = self._graph.maker(name)
        if maker.folder != folder:
            return None
        slot = maker.slot_of(name)
        if slot not in maker.paths:
            return None
        path = maker.paths[slot]
        return path, Artifact(tuple(placed_in(maker, slot, artifact)))

    def _private(self, job: Job, slot: str, artifact: Artifact) -> str:
        """A copy for this job alone: the path of its only file, of its only model file, or else of its folder."""
        folder = job.input_folder(slot)
        self._store.fetch(artifact, folder)
        names = [file.name for file in artifact.files]
        main = names if len(names) == 1 else [name for name in names if name.endswith(_MAIN_SUFFIX)]
        return str(folder / main[0] if len(main) == 1 else folder)

    def _copy(self, name: str, artifact: Artifact, folder: Path) -> None:
        source = self._graph.sources.get(name)
        if source is None or source.stored is not None:
            self._store.fetch(artifact, folder)
        else:
            place_source(source, artifact, folder)


def place_source(source: Source, artifact: Artifact, folder: Path) -> None:
    """Put copies of the files of *source*, whose content is *artifact*, into *folder*.

    Raises:
        InputError: for a file that has changed since the key was made.
    """
    digests = _digests(artifact)
    for file in source.files:
        # Check the copy: the stage must read what its key says, even if the original is changed back later.
        _clone(file, folder, digests[file.name])


def _clone(file: SourceFile, folder: Path, digest: str) -> None:
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if clone_file(file.path, target, split_digest(digest)[0]) != digest:
        raise changed(file.path)


def _digests(artifact: Artifact) -> dict[str, str]:
    return {file.name: file.digest for file in artifact.files}


def _source_text(source: Source, folder: Path) -> str:
    """The name of *source* in a command: its path relative to *folder*, or the absolute one if it is outside."""
    if source.name.endswith("/"):
        return source.name.removeprefix("./").rstrip("/") or "."
    file = source.files[0]
    return file.name if _lies_in(folder, file) else str(file.path)


def _lies_in(folder: Path, file: SourceFile) -> bool:
    # Compare with "/" on both sides: on Windows the path of a nested file has "\\" where its name has "/".
    return file.path.as_posix() == f"{folder.as_posix()}/{file.name}"


class Watched(Protocol):
    """A file or folder that a stage reads."""

    @property
    def path(self) -> str: ...

    def check(self, in_place: InPlace) -> None:
        """Raise InputError when it differs from when it was first watched, or differed in between."""


def changed(path: Path | str, advice: str = "Build again when it has come to rest.") -> InputError:
    """The error for an input that no longer matches the key."""
    return InputError(f"{path} changed while it was being used, so nothing was stored.", advice=advice)


@dataclass(frozen=True)
class _Step:
    """A link or folder on the way to a file. ``text``: the target of a link."""

    path: str
    seen: Signature
    text: str | None = None

    def is_still(self, other: _Step) -> bool:
        if (self.path, self.text, self.seen[2]) != (other.path, other.text, other.seen[2]):
            return False
        # Creating and removing files in a folder sets both of its times. Renaming a folder, and renaming it back,
        # changes only its change time.
        moved = self.seen[1] == other.seen[1] and self.seen[3] != other.seen[3]
        return self.seen == other.seen if self.text is not None else not moved


_Way: TypeAlias = tuple[_Step, ...]


@dataclass(frozen=True)
class WatchedFile:
    """A file with the bytes of ``file``."""

    path: str
    file: FileEntry
    seen: Signature
    way: _Way
    start: str

    def check(self, in_place: InPlace) -> None:
        if not (
            _signature(self.path) == self.seen
            and _is_same_way(self.way, _way(self.start, self.path))
            # A file that changed just before it was first checked could have changed again without a different
            # signature.
            and in_place.is_right(self.path, self.file)
        ):
            raise changed(self.path)


@dataclass(frozen=True)
class WatchedFolder:
    """An input folder, or one inside it, in which no file may be added or removed."""

    path: str
    seen: Signature

    def check(self, in_place: InPlace) -> None:  # noqa: ARG002
        if _folder_signature(self.path) != self.seen:
            raise changed(
                self.path,
                "Something came or went in it. If that was the stage itself, let it write elsewhere, or use --sandbox.",
            )


def watch_file(path: str, file: FileEntry, in_place: InPlace, folder: Path) -> WatchedFile:
    """Watch the file at *path*.

    If *path* is below *folder*, in which a stage works, links and folders above *folder* are ignored: the stage stays
    there whatever happens to them.

    Raises:
        InputError: when it does not have the bytes of *file*.
    """
    start = f"{folder}{os.sep}" if path.startswith(f"{folder}{os.sep}") else ""
    way, seen = _way(start, path), _signature(path)
    if seen is None or not in_place.is_right(path, file):
        raise changed(path)
    return WatchedFile(path, file, seen, way, start)


def watch_tools(
    tools: Mapping[str, Path], toolchain: Mapping[str, str], in_place: InPlace, folder: Path
) -> Iterable[WatchedFile]:
    """Watch the files *tools*, whose digests are in *toolchain* under the same names. Raises InputError as above."""
    for name, path in tools.items():
        seen = _signature(str(path))
        if seen is None:
            raise changed(path)
        yield watch_file(str(path), FileEntry(path.name, toolchain[name], seen[0]), in_place, folder)


def watch_folders(source: Source) -> Iterable[WatchedFolder]:
    """Watch all folders of *source*, if it is a folder.

    Raises:
        InputError: when the folder has other files than the key says.
    """
    if not source.folders:
        return ()
    watched = tuple(WatchedFolder(str(path), _folder_signature(str(path))) for path in source.folders)
    found = list_folder(source.folders[0], source.name.removeprefix("./"))
    if (found.files, found.folders) != ([*source.files], [*source.folders]):
        raise changed(source.folders[0])
    return watched


def _signature(path: str) -> Signature | None:
    try:
        return signature_of(path)
    except OSError:
        return None


def _folder_signature(path: str) -> Signature:
    try:
        return signature_from(path, os.stat(path))  # noqa: PTH116
    except OSError:
        return (0, 0, 0, 0)


def _way(start: str, path: str) -> _Way:
    """The links and folders that lead to *path*, starting at its prefix *start*."""
    steps: list[_Step] = []
    at = start.rstrip(os.sep) if start else os.path.splitdrive(path)[0] + os.sep
    # Not as a Path: twice for each file that a stage reads.
    pending = path[len(start) or len(at) :].replace("/", os.sep).split(os.sep)[::-1]  # noqa: PTH206
    links = 0
    while pending:
        name = pending.pop()
        if name in ("", os.curdir):
            continue
        at = os.path.dirname(at) if name == os.pardir else os.path.join(at, name)  # noqa: PTH118, PTH120
        try:
            status = os.lstat(at)
            if stat.S_ISDIR(status.st_mode):
                steps.append(_Step(at, _of_step(status)))
            elif stat.S_ISLNK(status.st_mode) and links < _MOST_LINKS:
                links += 1
                text = os.readlink(at)  # noqa: PTH115
                steps.append(_Step(at, _of_step(status), text))
                target = Path(text)
                at = target.anchor if target.is_absolute() else os.path.dirname(at)  # noqa: PTH120
                pending += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        except OSError:
            break
    return tuple(steps)


def _of_step(status: os.stat_result) -> Signature:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def _is_same_way(one: _Way, other: _Way) -> bool:
    return len(one) == len(other) and all(step.is_still(now) for step, now in zip(one, other, strict=True))
