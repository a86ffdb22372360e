"""Folders for jobs below the scratch folder of a run, used again where that can be.

Making and removing a file or folder costs a file system up to 0.2 ms, as much as all else that a short command costs
us. So the folders of a command that left nothing but its declared outputs, which are in the store by now, serve the
next one that puts out files in the same places.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections import defaultdict
from pathlib import Path

from winml_dag.engine.stage import Node
from winml_dag.store.files import remove_tree

# Names of slots with the folders that their files lie in: jobs of one layout can use each other's folders.
_Layout = tuple[tuple[str, str], ...]


class JobFolder:
    """The folder of one job, for the time of a block. *keep* says that it ended well, and may be used again."""

    def __init__(self, owner: JobFolders, layout: _Layout, path: Path, *, made: bool) -> None:
        self.path = path
        self.keep = False
        self._owner = owner
        self._layout = layout
        self._made = made

    def __enter__(self) -> JobFolder:
        return self

    def __exit__(self, *raised: object) -> None:
        self._owner.take_back(self, self._layout)

    def make(self) -> None:
        """Make it if it is not there yet. Raises OSError."""
        if not self._made:
            self.path.mkdir()
            self._made = True


class JobFolders:
    """The folders of all jobs of a run, in *scratch*; safe for several threads."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._numbers = itertools.count()
        self._free: defaultdict[_Layout, list[Path]] = defaultdict(list)
        self._lock = threading.Lock()

    def folder(self, node: Node) -> JobFolder:
        """A folder for a job of *node*; afterwards it is removed, or kept for another."""
        layout = _layout(node)
        with self._lock:
            free = self._free[layout] if layout else []
            # A number, not the node's id: paths stay short and free of whatever a recipe may call its stages.
            path = free.pop() if free else None
            return JobFolder(self, layout, path or self._scratch / str(next(self._numbers)), made=path is not None)

    def take_back(self, folder: JobFolder, layout: _Layout) -> None:
        """Remove what the job has left, or keep the folder for another."""
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
    """Empty for a node whose folder serves once only."""
    if node.command is None or any(path.endswith("/") for path in node.paths.values()):
        return ()
    return tuple(sorted((slot, path.rpartition("/")[0]) for slot, path in node.paths.items()))


def _is_clean(folder: Path) -> bool:
    """Whether nothing of a job is left that another could see; its log will be overwritten."""
    temporary = f"{folder}{os.sep}temporary"
    try:
        names = set(os.listdir(folder))  # noqa: PTH208 - names are all that is wanted
        if not names <= {"outputs", "temporary", "log.txt"}:
            return False
        if "temporary" in names and os.listdir(temporary):  # noqa: PTH208
            remove_tree(Path(temporary))
    except OSError:  # a job can do to its folder what it likes
        return False
    return True
