"""Resolve each input in a recipe's ``stages``: an output of a built-in or declared stage, or a user's file or folder.

Files and folders become sources of the graph.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from winml_dag.engine.inplace import list_folder
from winml_dag.engine.stage import Source, SourceFile, Stage
from winml_dag.errors import InputError, did_you_mean, known_instead
from winml_dag.names import KEPT, is_safe_part, parents
from winml_dag.pipeline.buildgraph import Step
from winml_dag.pipeline.plan import NAME, Declared, rewires_builtin
from winml_dag.recipe.document import Findings, Location
from winml_dag.recipe.schema import StageEntry
from winml_dag.stages import artifact_types
from winml_dag.stages.builtin import LINE


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
            if not rewires_builtin(entry):
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
            problem = f"{unsafe!r} is a name that not every system can have; use / between folders"
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


KIND = "file"

_REFERENCE = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
# Built-in inputs that a declared stage may provide. The others are also settings: their content decides which fields a
# stage reads, and the recipe has a field for each.
_REWIRABLE = {"model", "reference", "ranges"}


class UserFiles:
    """Sources by their name in a recipe, each looked up once.

    Attributes:
        sources: by name in the graph.
        folders: folders that were listed, so that a new or removed file is noticed.
        absent: missing files that words in commands may name, and broken links in folders.
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
        """Return the file, or with ``/`` at the end the folder, that *text* names; None after reporting an error."""
        found = self._named.get(text)
        if found is None:
            found = self._named[text] = self._look(text)
        if isinstance(found, str):
            self._findings.add(location, found)
            return None
        self.sources[found.name] = found
        return found

    def literal(self, word: str) -> Source | None:
        """Return the project's file that *word* of a command names, if it exists; cached, since words recur."""
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
            pass  # not a file name
        return False

    def _look(self, text: str) -> Source | str:
        name = inside(self._folder, text)
        path = self._folder / (os.path.expanduser(text) if name is None else name)  # noqa: PTH111 - see inside
        if name is not None and (maker := self._outputs.maker_around(name)):
            return f"{text} is an output of {maker[0]!r}; read it as {maker[0]}.{maker[1]}"
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
            return f"{text} is a file; remove the / at its end"
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
    """Return a name that no artifact (``stage.output``) and no built-in source (``model folder``) has."""
    return called if "/" in called else f"./{called}"


class Links:
    """Every input of every entry, by name in the graph.

    Attributes:
        inputs: by declared stage and slot.
        rewired: by built-in stage and slot.
        kinds: artifact types of declared outputs that a built-in stage reads, by (stage, slot).
    """

    def __init__(
        self,
        declared: Declared,
        builtin: Mapping[str, Step],
        outputs: OutputPaths,
        files: UserFiles,
        findings: Findings,
    ) -> None:
        self.inputs: dict[str, dict[str, str]] = {}
        self.rewired: dict[str, dict[str, str]] = {}
        self.kinds: dict[tuple[str, str], str] = {}
        self._builtin = builtin
        self._outputs = outputs
        self._files = files
        self._findings = findings
        for name, entry in declared.stages.items():
            if rewires_builtin(entry) and name in builtin:
                self.rewired[name] = self._rewired(name, entry)
            elif not rewires_builtin(entry):
                self.inputs[name] = self._of_stage(name, entry)

    def _of_stage(self, stage: str, entry: StageEntry) -> dict[str, str]:
        found: dict[str, str] = {}
        for slot, text in entry.inputs.items():
            location: Location = ("stages", stage, "inputs", slot)
            if not NAME.fullmatch(slot):
                self._findings.add(location, "a name has letters, digits, - and _ only", about_key=True)
            elif (name := self._meaning(location, text)) is not None:
                found[slot] = name
        return found

    def _meaning(self, location: Location, text: str) -> str | None:
        match = _REFERENCE.fullmatch(text)
        if match and match[1] in self._outputs.paths:
            return self._user_output(location, text, match[1], match[2])
        if match and match[1] in self._builtin:
            return self._builtin_output(location, text, self._builtin[match[1]], match[2])
        source = self._files.source(location, text)
        return None if source is None else source.name

    def _user_output(self, location: Location, text: str, stage: str, slot: str) -> str | None:
        slots = self._outputs.paths[stage]
        if slot in slots:
            return text
        self._findings.add(location, f"{stage} has no output {slot!r}{known_instead(slot, slots)}")
        return None

    def _builtin_output(self, location: Location, text: str, step: Step, slot: str) -> str | None:
        slots = LINE[step.stage].outputs
        if step.skipped is not None:
            self._findings.add(location, f"{text} is not built here: {step.skipped}")
        elif slot not in slots:
            self._findings.add(location, f"{step.stage} has no output {slot!r}{known_instead(slot, slots)}")
        else:
            return f"{step.id}.{slot}"
        return None

    def _rewired(self, stage: str, entry: StageEntry) -> dict[str, str]:
        skipped = self._builtin[stage].skipped
        at: Location = ("stages", stage)
        if skipped is not None:
            self._findings.add(at, f"there is no {stage} in this build: {skipped}", about_key=True)
            return {}
        for field in sorted(entry.model_fields_set - {"inputs"}):
            message = f"{stage} is one of our stages: an entry of that name has only inputs"
            self._findings.add((*at, field), message, about_key=True)
        if not entry.inputs:
            self._findings.add(at, f"{stage} is one of our stages: say with inputs where it reads from")
        found: dict[str, str] = {}
        for slot, text in entry.inputs.items():
            if (name := self._rewired_input((*at, "inputs", slot), LINE[stage], slot, text)) is not None:
                found[slot] = name
        return found

    def _rewired_input(self, location: Location, stage: Stage, slot: str, text: str) -> str | None:
        can = sorted(_REWIRABLE & stage.inputs.keys() - ({"model"} if stage.name == "export" else set()))
        if slot not in can:
            what = (
                "has no input" if slot not in stage.inputs else "takes from the settings of the recipe alone its input"
            )
            instead = known_instead(slot, can) if can else ""
            self._findings.add(location, f"{stage.name} {what} {slot!r}{instead}", about_key=True)
            return None
        match = _REFERENCE.fullmatch(text)
        if match and match[1] in self._outputs.paths:
            name = self._user_output(location, text, match[1], match[2])
            if name is not None:
                accepts = stage.inputs[slot].accepts or frozenset({artifact_types.FLOAT_MODEL})
                kind = artifact_types.FLOAT_MODEL if artifact_types.FLOAT_MODEL in accepts else min(accepts)
                self.kinds[match[1], match[2]] = kind
            return name
        if match and match[1] in self._builtin:
            return self._builtin_output(location, text, self._builtin[match[1]], match[2])
        known = [*self._outputs.paths, *self._builtin]
        near = did_you_mean(match[1], known) if match else ""
        self._findings.add(location, f"{text!r} is not an output of a stage (stage.output){near}")
        return None
