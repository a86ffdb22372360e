"""What a stage declares, and what it gets to work with.

A :class:`Stage` is a declaration. Importing it must cost nothing, so ``module:function`` names its work, which only the
process that does it imports. A :class:`Node` is one use of a stage in a graph. The engine does not depend on ONNX: the
kind of an artifact is a string on which the declarations of makers and readers must agree.

Keys hash the config of a stage as JSON; stages use the dataclass.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.exchange import OnProgress, no_progress
from winml_dag.errors import InputError, StageError, UsageError
from winml_dag.store.artifact import Artifact, FileEntry

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from winml_dag.store.records import KeyInputs


DEFAULT_TIMEOUT_SECONDS = 3600.0


@dataclass(frozen=True)
class InputSlot:
    """An input that a stage declares.

    ``accepts``: the kinds of artifact that it takes (None: any). ``refusals``: why it rejects other kinds, shown to the
    user.
    """

    accepts: frozenset[str] | None
    required: bool = True
    refusals: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Memory:
    """The declared peak memory of a run: a fixed number of bytes, plus a number per byte of input.

    Used until a run was measured.
    """

    base_bytes: int = 0
    per_input_byte: float = 0.0

    def of(self, input_bytes: int) -> int:
        return round(self.base_bytes + self.per_input_byte * input_bytes)


@dataclass(frozen=True)
class Stage:
    """The declaration of a unit of work.

    Attributes:
        name: its name for users, in records and in manifests.
        version: increased when the same inputs give other bytes; never derived from source text, because then an edit
            of white space would rebuild everything.
        work: ``package.module:function``, called as ``function(config, workspace) -> metrics``.
        config: ``package.module:Class``, the frozen dataclass that ``config`` is read into.
        inputs: slots by name.
        outputs: kind of artifact by slot name.
        packages: distributions whose version affects the bytes; part of the key.
        likely_unchanged: output slots that usually stay as they were, and in a first build usually equal the input slot
            of that name; plans assume so.
        timeout_seconds: when this has passed, the whole process group is killed.
        works_in_place: it runs in the folder of its node and reads the user's files in place, as people expect of their
            own commands; any other stage gets private copies and sees no folder except its scratch folder.
        memory: the expected memory of a run.
        alone: no other run may run at the same time.
        published: the output slots that a build's output folder gets, with the name of the main file of each.
    """

    name: str
    version: int
    work: str
    config: str
    inputs: Mapping[str, InputSlot]
    outputs: Mapping[str, str]
    packages: tuple[str, ...] = ()
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    works_in_place: bool = False
    likely_unchanged: tuple[str, ...] = ()
    memory: Memory = Memory()
    alone: bool = False
    published: Mapping[str, str] = field(default_factory=dict)


class FileAccess(StrEnum):
    """How a user's stage accesses files."""

    FREE = "free"
    # Only declared inputs can be read.
    SANDBOX = "sandbox"
    # Everything can be read, but reading an undeclared file fails the stage.
    TRACE = "trace"


@dataclass(frozen=True)
class Skip:
    """Instead of a config: why a build skips the stage. ``listed``: whether reports show it as skipped."""

    reason: str
    listed: bool = True


@dataclass(frozen=True)
class Command:
    """A program that does the work of a node, instead of a Python function.

    ``arguments`` have the placeholders ``{inputs.SLOT}``, ``{outputs.SLOT}`` and ``{config.NAME}``; ``environment`` is
    added to the documented minimal environment. Both are also in the config of the node, and so in its key.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Node:
    """One use of a stage in a graph.

    Attributes:
        id: unique in its graph, such as ``optimize.0``.
        config: the resolved fields that the stage reads, by recipe section (``{"quant": {"samples": 10}}``), so that
            a reason can name a field as the recipe does.
        inputs: artifact name by slot.
        kinds: kind by output slot where it differs from the declaration.
        toolchain: versions and fingerprints by name; part of the key.
        tools: files whose digests are in the toolchain, by their names there: they must be unchanged when the work has
            ended. Not part of the key.
        command: the program to run instead of ``stage.work``.
        folder: the user's folder to which ``paths`` are relative; outputs are written there as soon as they exist. Not
            part of the key. None for a stage whose outputs stay in the cache until the whole build is assembled.
        paths: by output slot the declared file (``build/notes.txt``) or folder (``build/model/``); part of the key
            through the config.
        machine_facts: what the work needs to know of this machine, such as the folder of an SDK. Not part of the key:
            whatever affects the bytes is in the toolchain.
        interpreter: the Python of another environment that does the work; None for the current one. Not part of the
            key: the packages installed there are, through the toolchain.
        check: ``package.module:function``, called in the engine's process with the config and the metrics of the
            result, new or cached; if it raises StageError the node fails, though the result stays recorded. Not part of
            the key: it applies to the result, not to the work.
        pools: devices, by any name; there is one of each, so two nodes that name the same one never run concurrently.
        environment: the name of the environment that does the work, the same on every machine: its target, such as
            ``qnn/npu``; empty for the current environment. Not part of the key.
    """

    id: str
    stage: Stage
    config: JsonObject
    inputs: Mapping[str, str]
    kinds: Mapping[str, str] = field(default_factory=dict)
    toolchain: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, Path] = field(default_factory=dict)
    command: Command | None = None
    folder: Path | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    interpreter: Path | None = None
    machine_facts: Mapping[str, str] = field(default_factory=dict)
    check: str = ""
    pools: tuple[str, ...] = ()
    environment: str = ""

    def output(self, slot: str) -> str:
        """The graph-wide name of this node's output in *slot*."""
        return f"{self.id}.{slot}"

    def slot_of(self, artifact: str) -> str:
        """The slot whose output is *artifact*."""
        return artifact.removeprefix(f"{self.id}.")

    def kind(self, slot: str) -> str:
        return self.kinds.get(slot, self.stage.outputs[slot])

    def placed_files(self, outputs: Mapping[str, Artifact]) -> Iterator[FileEntry]:
        """The files of *outputs*, by slot, that are in ``folder``, under their names there.

        Raises:
            UsageError: when a stage output several files where the recipe declares one.
        """
        for slot in self.paths:
            yield from self.placed_in(slot, outputs[slot])

    def placed_in(self, slot: str, output: Artifact) -> Iterator[FileEntry]:
        """The same for one slot."""
        path, files = self.paths[slot], output.files
        if self.stage.works_in_place:
            yield from files
        elif path.endswith("/"):
            yield from (replace(file, name=path + file.name) for file in files)
        elif len(files) == 1:
            yield replace(files[0], name=path)
        else:
            names = ", ".join(file.name for file in files) or "none"
            raise UsageError(
                f"{self.id} did not write exactly one file to {slot!r}: {names}.",
                advice=f"Give it a folder in the recipe: {slot}: {path}/",
            )


@dataclass(frozen=True)
class SourceFile:
    """A user's file: the name under which stages see it, and its path."""

    name: str
    path: Path


@dataclass(frozen=True)
class Source:
    """An input that no stage makes, by content: its name in the graph, its kind, its files.

    ``folders``: if it is a folder, that folder and all visited folders in it. ``stored``: a result of an earlier run,
    which is in the store; it has no other files.
    """

    name: str
    kind: str
    files: tuple[SourceFile, ...]
    folders: tuple[Path, ...] = ()
    stored: Artifact | None = None


def changed(path: Path | str, advice: str = "Build again when it has come to rest.") -> InputError:
    """The error for an input that no longer matches the key."""
    return InputError(f"{path} changed while it was being used, so nothing was stored.", advice=advice)


@dataclass(frozen=True)
class Workspace:
    """The folders of a stage, all relative to its current folder, so that no absolute path can affect the bytes.

    Each input slot is a folder with private copies of the artifact's files under their names; each output slot is an
    empty folder to fill. Files written elsewhere are discarded. ``machine_facts`` are those of the node. Long work
    calls ``progress(done, total, unit)`` for displays.
    """

    inputs: Mapping[str, Path]
    outputs: Mapping[str, Path]
    progress: OnProgress = no_progress
    machine_facts: Mapping[str, str] = field(default_factory=dict)

    def has(self, slot: str) -> bool:
        return slot in self.inputs

    def input_file(self, slot: str, suffix: str) -> Path:
        """The only file in input *slot* whose name ends with *suffix*.

        Raises:
            StageError: when there is none, or more than one.
        """
        found = sorted(path for path in self.inputs[slot].rglob("*") if path.name.endswith(suffix))
        if len(found) != 1:
            names = ", ".join(path.name for path in found) or "none"
            raise StageError(f"Input {slot!r} should have exactly one {suffix} file, but has: {names}.")
        return found[0]


def key_inputs_of(node: Node, inputs: Mapping[str, str]) -> KeyInputs:
    """The key inputs of *node*; *inputs* has the artifact digest of each of its slots."""
    # Imported here: the process of a stage needs no records.
    from winml_dag.store.records import KeyInputs

    return KeyInputs(node.stage.name, node.stage.version, node.config, inputs, node.toolchain)


T = TypeVar("T")


def config_json(config: DataclassInstance) -> JsonObject:
    """Every field of *config*, defaults included, as JSON."""
    return {field.name: _json(getattr(config, field.name)) for field in fields(config)}


def _json(value: object) -> JsonValue:
    if value is None or isinstance(value, str | int | float):  # first, since most values are
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return config_json(value)
    if isinstance(value, Mapping):
        return {str(key): _json(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_json(inner) for inner in value]
    raise TypeError(f"{value!r} is not JSON")


def read_config(kind: type[T], value: JsonValue) -> T:
    """The inverse of :func:`config_json` for the dataclass *kind*.

    pydantic is not used: the same version of this program wrote the JSON, and a worker would import pydantic only for
    this.

    Raises:
        TypeError: when a field is missing or unknown.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{kind.__name__} needs an object, got {value!r}")
    hints = _hints_of(kind)  # type: ignore[arg-type] # mypy: a class is hashable
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := value.keys() - known.keys():
        raise TypeError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    for name, each in known.items():
        if name not in value and each.default is MISSING and each.default_factory is MISSING:
            raise TypeError(f"{kind.__name__} needs {name}")
    return kind(**{name: _read(hints[name], inner) for name, inner in value.items()})


@cache
def _hints_of(kind: type) -> Mapping[str, object]:
    return typing.get_type_hints(kind)


def _read(hint: object, value: JsonValue) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        inner = [argument for argument in arguments if argument is not type(None)]
        return _read(inner[0], value) if len(inner) == 1 else value
    if isinstance(hint, type) and is_dataclass(hint):
        return read_config(hint, value)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(arguments[0], inner) for inner in value)
    if origin is Mapping and isinstance(value, Mapping):
        return {key: _read(arguments[1], inner) for key, inner in value.items()}
    return value
