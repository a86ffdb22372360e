"""The user's files that stages of a recipe's own read: single ones and whole folders, each a source of the graph."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from winml_dag.engine.inputfolder import list_folder
from winml_dag.engine.stage import Source, SourceFile
from winml_dag.errors import InputError
from winml_dag.names import is_safe_part
from winml_dag.pipeline.userstages.declared import Declared
from winml_dag.pipeline.userstages.paths import OutputPaths, inside
from winml_dag.recipe.document import Findings, Location
from winml_dag.recipe.spelling import did_you_mean

KIND = "file"


class UserFiles:
    """Sources by what a recipe calls them, looked up once each.

    Attributes:
        sources: by name in the graph.
        folders: looked into, so that a file that comes or goes is noticed.
        absent: where files that words of commands may name are not, and links in folders that lead to nothing.
    """

    def __init__(self, declared: Declared, outputs: OutputPaths, findings: Findings) -> None:
        self.sources: dict[str, Source] = {}
        self.folders: set[Path] = set()
        self.absent: set[str] = set()
        self._folder = declared.folder
        self._outputs = outputs
        self._findings = findings
        self._named: dict[str, Source | str] = {}
        self._literals: dict[str, Source | None] = {}

    def source(self, location: Location, text: str) -> Source | None:
        """The file, or with ``/`` at its end the folder, that *text* names; None after saying what is wrong with it."""
        found = self._named.get(text)
        if found is None:
            found = self._named[text] = self._look(text)
        if isinstance(found, str):
            self._findings.add(location, found)
            return None
        self.sources[found.name] = found
        return found

    def literal(self, word: str) -> Source | None:
        """The file of the project that *word* of a command names, if there is one; the same come again and again."""
        if word not in self._literals:
            name = inside(self._folder, word)
            found = None
            if name is not None and not self._unsafe(name) and self._is_file(name):
                found = self._one_file(name, name)
                self.sources.setdefault(found.name, found)
            self._literals[word] = found
        return self._literals[word]

    def _is_file(self, name: str) -> bool:
        path = f"{self._folder}{os.sep}{name}"
        try:
            return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - of thousands of words
        except (FileNotFoundError, NotADirectoryError):
            self.absent.add(path)
        except (OSError, ValueError):
            pass  # no name of a file
        return False

    def _look(self, text: str) -> Source | str:
        name = inside(self._folder, text)
        path = self._folder / (os.path.expanduser(text) if name is None else name)  # noqa: PTH111 - see inside
        if name is not None and (maker := self._outputs.maker_around(name)):
            return f"{text} is what {maker[0]!r} puts out; read it as {maker[0]}.{maker[1]}"
        try:
            mode = path.stat().st_mode
        except (OSError, ValueError) as error:
            return self._missing(text, path, error)
        if text.endswith("/"):
            return self._look_into(text, name, path, mode)
        if stat.S_ISDIR(mode):
            return f"{text} is a folder; write {text}/ to read all files in it"
        if not stat.S_ISREG(mode):
            return f"{text} is not a file"
        if unsafe := self._unsafe(path.name if name is None else name):
            return unsafe
        return self._one_file(name or path.as_posix(), path.name if name is None else name, path)

    def _one_file(self, called: str, name: str, path: Path | None = None) -> Source:
        return Source(_graph_name(called), KIND, (SourceFile(name, path or self._folder / name),))

    def _look_into(self, text: str, name: str | None, path: Path, mode: int) -> Source | str:
        if not stat.S_ISDIR(mode):
            return f"{text} is a file; leave out the / at its end"
        if name is None:
            return f"{text} is outside of the recipe's folder; only single files may be"
        if self._outputs.lies_around(name):
            return f"{text} has outputs of stages in it; read those by name, and keep sources beside them"
        try:
            found = list_folder(path, "" if name == "." else f"{name}/")
        except InputError as error:
            return str(error)
        self.folders.update(found.folders)
        self.absent.update(map(str, found.dangling))
        if not found.files:
            return f"{text} has no files in it"
        unsafe = next(filter(None, (self._unsafe(file.name) for file in found.files)), None)
        return unsafe or Source(f"{name}/", KIND, tuple(found.files), tuple(found.folders))

    def _unsafe(self, name: str) -> str | None:
        unsafe = next((part for part in name.split("/") if not is_safe_part(part)), None)
        return None if unsafe is None else f"{unsafe!r} is a name that not every system can have; rename it"

    def _missing(self, text: str, path: Path, error: OSError | ValueError) -> str:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            return f"{text} cannot be read: {getattr(error, 'strerror', None) or error}"
        if not self._findings.are_few:
            return f"there is no file {text}"
        outputs = [f"{stage}.{slot}" for stage, slots in self._outputs.paths.items() for slot in slots]
        try:
            beside = [*os.listdir(path.parent)]  # noqa: PTH208 - names are all that is wanted
        except OSError:
            beside = []
        near = did_you_mean(text, outputs) if "/" not in text else ""
        return f"there is no file {text}{near or did_you_mean(path.name, beside)}"


def _graph_name(called: str) -> str:
    """A name that no artifact (``stage.output``) and no source of ours (``model folder``) has."""
    return called if "/" in called else f"./{called}"
