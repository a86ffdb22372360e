"""Prepare the folder and the inputs of a stage before it starts, and check that they are unchanged when it has ended.

A built-in stage gets private copies. A stage that works in place reads the user's files where they are; in confined
mode it gets its own folder that contains only its declared inputs, at their paths in the user's folder. What it reads
in place is watched.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from winml_dag.engine.exchange import LOG_FILE
from winml_dag.engine.execute import Job
from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import FileAccess, Node, Source, SourceFile, changed
from winml_dag.errors import StageError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.clone import clone_file
from winml_dag.store.digest import Fingerprints, split_digest
from winml_dag.store.files import remove_tree
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.engine.inplace import InPlace
    from winml_dag.engine.watch import Watched, WatchedFile

# The file that represents an artifact of several files in a command, if exactly one file has this suffix.
_MAIN_SUFFIX = ".onnx"


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
        self._given = in_place
        self._confines = in_place is None or access is FileAccess.SANDBOX
        self._access = access
        # By path, digest, and the folder of the stage if they lie in it. Thousands of commands run the same program.
        self._tools: dict[tuple[str, str, Path | None], WatchedFile] = {}

    @cached_property
    def _in_place(self) -> InPlace:
        # Imported here, and what watches below: most builds have no stages of a recipe's own.
        from winml_dag.engine.inplace import InPlace

        return self._given or InPlace(self._store)

    def prepare(self, folder: Path, node: Node, inputs: Mapping[str, Artifact], timeout_seconds: float) -> Job:
        """Place the inputs of *node* in *folder*; *inputs* has its artifacts by slot.

        Raises:
            InputError: when a source has changed since the key was made.
            BlobDamaged: when an input cannot be fetched.
        """
        in_store = (inputs[slot] for slot, name in node.inputs.items() if self._file_source(name) is None)
        self._store.fetch_ahead(file for artifact in in_store for file in artifact.files)
        if node.stage.works_in_place:
            return self._in_folder(Job(node, folder, timeout_seconds), inputs)
        job = Job(node, folder, timeout_seconds, watched=tuple(self._watched_tools(node, folder)))
        for slot, name in node.inputs.items():
            if (source := self._file_source(name)) is None:
                self._store.fetch(inputs[slot], job.input_folder(slot))
            else:
                place_source(source, inputs[slot], job.input_folder(slot))
        return replace(job, began=time.time())

    def check(self, job: Job, inputs: Mapping[str, Artifact]) -> None:
        """Raise InputError when an input or a tool has changed since before the job ran."""
        for watched in job.watched:
            watched.check(self._in_place)
        if job.node.stage.works_in_place:
            return
        for slot, name in job.node.inputs.items():
            if source := self._graph.sources.get(name):
                digests = {file.name: file.digest for file in inputs[slot].files}
                for file in source.files:
                    if not self._fingerprints.unchanged(file.path, digests[file.name]):
                        raise changed(file.path)

    def _in_folder(self, job: Job, inputs: Mapping[str, Artifact]) -> Job:
        """The job in the user's folder, where files that other stages output are written first, or in its own."""
        from winml_dag.engine.watch import watch_file, watch_folders

        node, user_folder = job.node, job.node.folder
        if user_folder is None:
            raise StageError(f"{node.id} works in place, and has no folder to work in.")
        project = job.folder / "project" if self._confines else None
        if project is not None:
            project.mkdir()
        seen: dict[str, str] = {}
        watched: list[Watched] = []
        own: dict[str, FileEntry] = {}
        for slot, name in node.inputs.items():
            artifact, source = inputs[slot], self._graph.sources.get(name)
            if source is not None:
                seen[slot] = _source_text(source, user_folder)
                watched += () if project is not None else watch_folders(source)
                entries = {file.name: file for file in artifact.files}
                for file in source.files:
                    entry = entries[file.name]
                    if project is not None and _lies_in(user_folder, file):
                        _clone(file, project, entry.digest)
                        own[file.name] = entry
                    else:
                        watched.append(watch_file(str(file.path), entry, self._in_place, user_folder))
            elif (made := self._made_in(user_folder, name, artifact)) is not None:
                path, placed = made
                seen[slot] = path.rstrip("/")
                if project is not None:
                    self._store.fetch(placed, project)
                    own.update((file.name, file) for file in placed.files)
                    continue
                for entry in placed.files:
                    at = self._in_place.put_file(user_folder, entry)
                    watched.append(watch_file(at, entry, self._in_place, user_folder))
                if path.endswith("/"):
                    self._in_place.hold_only(user_folder, path, placed.files)
            else:
                seen[slot] = self._private(job, slot, artifact)
        watched += self._watched_tools(node, user_folder, inside=project is None)
        if project is not None:
            self._place_tools(node, user_folder, project, own)
            watched += [watch_file(str(project / name), entry, self._in_place, project) for name, entry in own.items()]
        return replace(
            job,
            at=project or user_folder,
            seen=seen,
            hidden=user_folder if self._access is FileAccess.SANDBOX else None,
            is_traced=self._access is FileAccess.TRACE,
            began=time.time(),
            watched=tuple(watched),
            own=None if project is None else frozenset(own),
        )

    def _watched_tools(self, node: Node, folder: Path, *, inside: bool = True) -> list[WatchedFile]:
        """The tools of *node*, watched; those in *folder* only if *inside*.

        A tool that is as it was for an earlier stage is watched from then on.
        """
        if not node.tools:
            return []
        from winml_dag.engine.watch import watch_tool

        found = []
        for name, path in node.tools.items():
            lies_in_it = str(path).startswith(f"{folder}{os.sep}")
            if lies_in_it and not inside:
                continue
            what = str(path), node.toolchain[name], folder if lies_in_it else None
            watched = self._tools.get(what)
            if watched is None or not watched.looks_unchanged():
                watched = self._tools[what] = watch_tool(what[0], what[1], self._in_place, folder)
            found.append(watched)
        return found

    def _place_tools(self, node: Node, user_folder: Path, project: Path, own: dict[str, FileEntry]) -> None:
        """Copy the tools that are in the user's folder to *project*, and add them to its *own* files."""
        for name, path in node.tools.items():
            if path.is_relative_to(user_folder):
                tool = SourceFile(path.relative_to(user_folder).as_posix(), path)
                if tool.name not in own:
                    _clone(tool, project, node.toolchain[name])
                    size = (project / tool.name).stat().st_size
                    own[tool.name] = FileEntry(tool.name, node.toolchain[name], size)

    def _file_source(self, name: str) -> Source | None:
        """The source *name*, if it consists of the user's files; everything else is in the store."""
        source = self._graph.sources.get(name)
        return None if source is None or source.stored is not None else source

    def _made_in(self, folder: Path, name: str, artifact: Artifact) -> tuple[str, Artifact] | None:
        """Path and files of artifact *name* in *folder*; None when its maker does not write it there."""
        maker = self._graph.maker(name)
        slot = maker.slot_of(name)
        if maker.folder != folder or slot not in maker.paths:
            return None
        return maker.paths[slot], Artifact(tuple(maker.placed_in(slot, artifact)))

    def _private(self, job: Job, slot: str, artifact: Artifact) -> str:
        """A copy for this job alone: the path of its only file, of its only model file, or else of its folder."""
        folder = job.input_folder(slot)
        self._store.fetch(artifact, folder)
        names = [file.name for file in artifact.files]
        main = names if len(names) == 1 else [name for name in names if name.endswith(_MAIN_SUFFIX)]
        return str(folder / main[0] if len(main) == 1 else folder)


def place_source(source: Source, artifact: Artifact, folder: Path) -> None:
    """Put copies of the files of *source*, whose content is *artifact*, into *folder*.

    Raises:
        InputError: for a file that has changed since the key was made.
    """
    digests = {file.name: file.digest for file in artifact.files}
    for file in source.files:
        # Check the copy: the stage must read what its key says, even if the original is changed back later.
        _clone(file, folder, digests[file.name])


def _clone(file: SourceFile, folder: Path, digest: str) -> None:
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if clone_file(file.path, target, split_digest(digest)[0]) != digest:
        raise changed(file.path)


def _source_text(source: Source, folder: Path) -> str:
    """The name of *source* in a command: its path relative to *folder*, or the absolute one if it is outside."""
    if source.name.endswith("/"):
        return source.name.removeprefix("./").rstrip("/") or "."
    file = source.files[0]
    return file.name if _lies_in(folder, file) else str(file.path)


def _lies_in(folder: Path, file: SourceFile) -> bool:
    # Compare with "/" on both sides: on Windows the path of a nested file has "\\" where its name has "/".
    return file.path.as_posix() == f"{folder.as_posix()}/{file.name}"


# Slot names with the folders of their files: jobs with the same layout can reuse each other's folders.
_Layout: TypeAlias = tuple[tuple[str, str], ...]


@dataclass
class JobFolder:
    """The folder of one job, which may not exist yet. ``keep``: the job succeeded, so the folder may be reused."""

    path: Path
    keep: bool = False


class JobFolders:
    """The folders of all jobs of a run, in *scratch*; thread-safe.

    Creating and removing a file or folder takes a file system up to 0.2 ms, as much as all other overhead of a short
    command. So if a command left nothing except its declared outputs, which are in the store by now, its folders are
    reused by the next command with outputs at the same paths.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._numbers = itertools.count()
        self._free: defaultdict[_Layout, list[Path]] = defaultdict(list)
        self._lock = threading.Lock()

    @contextmanager
    def folder(self, node: Node) -> Iterator[JobFolder]:
        """A folder for a job of *node*; afterwards it is removed, or kept for another job."""
        layout = _layout(node)
        with self._lock:
            free = self._free[layout] if layout else []
            # A number, not the node's id: paths stay short and contain nothing that a recipe may use in names.
            folder = JobFolder(free.pop() if free else self._scratch / str(next(self._numbers)))
        try:
            yield folder
        finally:
            if layout and folder.keep and _is_clean(folder.path):
                with self._lock:
                    self._free[layout].append(folder.path)
            else:
                shutil.rmtree(folder.path, ignore_errors=True)

    def clear(self) -> None:
        """Remove the folders that are kept."""
        with self._lock:
            kept = [path for free in self._free.values() for path in free]
            self._free.clear()
        for path in kept:
            shutil.rmtree(path, ignore_errors=True)


def _layout(node: Node) -> _Layout:
    """The layout of *node*; empty if its folder cannot be reused."""
    if node.command is None or any(path.endswith("/") for path in node.paths.values()):
        return ()
    return tuple(sorted((slot, path.rpartition("/")[0]) for slot, path in node.paths.items()))


def _is_clean(folder: Path) -> bool:
    """Whether the folder contains nothing of a job that another could see; its log will be overwritten."""
    temporary = f"{folder}{os.sep}temporary"
    try:
        names = set(os.listdir(folder))  # noqa: PTH208 - only names are needed
        if not names <= {"outputs", "temporary", LOG_FILE}:
            return False
        if "temporary" in names and os.listdir(temporary):  # noqa: PTH208
            remove_tree(Path(temporary))
    except OSError:  # a job may do anything to its folder
        return False
    return True
