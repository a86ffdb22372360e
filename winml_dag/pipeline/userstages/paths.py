"""The paths in a recipe's ``stages``: where outputs go, without collisions with each other or the user's files."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path

from winml_dag.engine.inplace import KEPT
from winml_dag.names import is_safe_part, parents
from winml_dag.pipeline.variant import NAME, Declared, is_ours
from winml_dag.recipe.document import Findings, Location


def inside(folder: Path, text: str) -> str | None:
    """Return *text* as a normalized relative name with ``/`` and no trailing one.

    None when it is empty, or leads out of *folder*.
    """
    if not text:
        return None
    if os.sep == "/" and text[0] not in "./~" and text[-1] != "/" and "/." not in text and "//" not in text:
        return text  # nearly always
    if os.path.isabs(text) or text.startswith("~"):  # noqa: PTH117 - of thousands of texts
        path = os.path.normpath(os.path.expanduser(text))  # noqa: PTH111 - a text that names no home stays as it is
        start = str(folder) + os.sep
        if not path.startswith(start):
            return None
        text = path[len(start) :]
    if os.sep != "/":
        text = text.replace(os.sep, "/")
    name = posixpath.normpath(text)
    return None if name == ".." or name.startswith("../") else name


class OutputPaths:
    """The path of every output of declared stages, checked for collisions.

    Attributes:
        paths: by stage and slot, folders with ``/`` at the end.
        makers: (stage, slot) by path without the trailing ``/``, case folded, since file systems differ.
        around: the parent folders of all of them, case folded.
    """

    def __init__(self, declared: Declared, taken: Mapping[str, str], findings: Findings) -> None:
        """Check all outputs; *taken*: files that outputs may not overwrite, relative to the recipe's folder."""
        self.paths: dict[str, dict[str, str]] = {}
        self.makers: dict[str, tuple[str, str]] = {}
        self.around: set[str] = set()
        self._findings = findings
        self._taken = {path.casefold(): what for path, what in taken.items()}
        for name, entry in declared.stages.items():
            if not is_ours(entry):
                self.paths[name] = dict(self._of_stage(name, entry.outputs))
        self._refuse_nesting()

    def maker_around(self, name: str) -> tuple[str, str] | None:
        """Return the output that the file or folder *name* is, or is inside."""
        folded = name.casefold()
        for path in (folded, *parents(folded)):
            if path in self.makers:
                return self.makers[path]
        return None

    def lies_around(self, folder: str) -> bool:
        """Whether an output is below *folder*."""
        return folder == "." or folder.casefold() in self.around

    def _of_stage(self, stage: str, outputs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        for slot, text in outputs.items():
            location: Location = ("stages", stage, "outputs", slot)
            if not NAME.fullmatch(slot):
                self._findings.add(location, "a name has letters, digits, - and _ only", about_key=True)
            path = self._checked(location, text)
            if path is None:
                continue
            folded = path.rstrip("/").casefold()
            if other := self.makers.get(folded):
                self._findings.add(location, f"{path} is also where {other[1]!r} of {other[0]!r} goes")
                continue
            self.makers[folded] = (stage, slot)
            self.around.update(parents(folded))
            yield slot, path

    def _checked(self, location: Location, text: str) -> str | None:
        """Return the normalized path, or None when it is invalid."""
        name = posixpath.normpath(text)
        problem = None
        if text.startswith(("/", "~")) or name == ".." or name.startswith("../"):
            problem = f"{text} leaves the recipe's folder; an output is a path inside it"
        elif name == ".":
            problem = "the recipe's own folder cannot be an output; name one inside it"
        elif unsafe := next((part for part in name.split("/") if not is_safe_part(part)), None):
            problem = f"{unsafe!r} is a name that not every system can have; parts of a path are divided by /"
        elif name.casefold().split("/", 1)[0] == KEPT:
            problem = f"{KEPT} is where manifests are kept; choose another folder"
        elif what := self._taken.get(name.casefold()):
            problem = f"{text} is {what}, so it cannot be an output"
        if problem is None:
            return f"{name}/" if text.endswith("/") else name
        self._findings.add(location, problem)
        return None

    def _refuse_nesting(self) -> None:
        for path, (stage, slot) in self.makers.items():
            if path in self.around:
                inner = next(other for other in self.makers if other.startswith(f"{path}/"))
                at, at_slot = self.makers[inner]
                self._findings.add(
                    ("stages", at, "outputs", at_slot),
                    f"{self.paths[at][at_slot]} lies in {self.paths[stage][slot]}, which is {slot!r} of {stage!r}; "
                    "outputs must lie beside each other",
                )
