"""The facts on a finished build for any provenance format: its files by SHA-256, and what they were made from."""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath, PureWindowsPath
from urllib.parse import quote

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.pipeline.documents import BuildManifest, Stage

# The formats represent numbers with this precision. Larger integers are written as texts.
_EXACT = 2**53
# A data set of more files is described as one folder.
_MOST_FILES = 64

# Fields with names of graph nodes, which may also begin with a slash.
_IN_A_GRAPH = frozenset({"name", "nodes_to_exclude"})

# Names and versions as in Python packaging. Other entries in a key contain blanks or are digests.
_DISTRIBUTION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"(?:[0-9]+!)?[0-9]+[A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class HashedFile:
    """A file that a build wrote.

    Attributes:
        path: relative to the document's folder, with ``/``; for a ``placed`` file, to the recipe's folder, which is
            outside of it.
        sha256: 64 hex digits. size: in bytes.
        stage: the id of the stage that made it; empty for the manifest and the settings.
        component: its component in a composite model.
        is_output: whether it is shipped; the others are intermediates.
        placed: the folder of the build whose recipe's folder it is in, ``.`` for the document's; otherwise empty.
    """

    path: str
    sha256: str
    size: int
    stage: str = ""
    component: str = ""
    is_output: bool = False
    placed: str = ""


@dataclass(frozen=True)
class ReadFile:
    """A file that a build read.

    ``algorithm`` is ``sha256``, or ``xxh3_128`` if the file no longer exists and no other digest was recorded.
    """

    name: str
    algorithm: str
    digest: str
    size: int


@dataclass(frozen=True)
class Dependency:
    """A source of a build.

    ``digest``: over names and contents of its files, as in the manifest. ``hub``: ``models`` or ``datasets``, and the
    name there, at the commit ``revision``; both empty for other sources. ``is_builtin``: bundled with this program.
    ``license``: as in the model card.
    """

    name: str
    kind: str
    digest: str
    files: tuple[ReadFile, ...]
    hub: tuple[str, str] | None = None
    revision: str = ""
    license: str = ""
    is_builtin: bool = False

    @property
    def folder_digest(self) -> tuple[str, str] | None:
        """Return, for more files than are listed individually, the name and hex digits of one digest over all.

        It is in-toto's ``dirHash``, Go's Hash1. If a file has no SHA-256, it is the same over the available digests,
        under another name.
        """
        if len(self.files) <= _MOST_FILES:
            return None
        lines = "".join(f"{file.digest}  {file.name}\n" for file in sorted(self.files, key=lambda file: file.name))
        every = all(file.algorithm == "sha256" for file in self.files)
        return ("dirHash" if every else "digestsSha256"), hashlib.sha256(lines.encode()).hexdigest()

    @property
    def called(self) -> str:
        """Return its name for others: of a path only the last part, since its location is private."""
        return last_part(self.name)


@dataclass(frozen=True)
class Tool:
    """An entry in the key of a stage besides inputs and settings.

    It is a Python distribution with its version, a library or program by its digest, or the name of a machine.
    ``record``: the digest of a distribution's installed files, empty if unknown.
    """

    name: str
    version: str
    record: str

    @property
    def purl(self) -> str:
        """Return the package URL of a distribution on PyPI; empty for anything else."""
        if not (_DISTRIBUTION.fullmatch(self.name) and _VERSION.fullmatch(self.version)):
            return ""
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', self.name).lower()}@{quote(self.version)}"

    @property
    def digest(self) -> tuple[str, str] | None:
        """Return function and hex digits, for what is identified by its content."""
        function, _, digits = self.version.partition(":")
        return (function.replace("-", "_"), digits) if function in ("xxh3-128", "sha256") else None


@dataclass(frozen=True)
class BuildFacts:
    """One build.

    ``name``: its folder relative to the document's, empty for that itself. ``value``: its manifest. ``settings``: the
    recipe with every field filled in, empty for a build without a model.
    """

    name: str
    value: JsonObject
    settings: JsonObject
    files: tuple[HashedFile, ...]
    dependencies: tuple[Dependency, ...]

    @property
    def outputs(self) -> tuple[HashedFile, ...]:
        return tuple(file for file in self.files if file.is_output)

    @property
    def byproducts(self) -> tuple[HashedFile, ...]:
        return tuple(file for file in self.files if not file.is_output)

    @cached_property
    def manifest(self) -> BuildManifest:
        """Return ``value`` as a typed manifest."""
        return BuildManifest.model_validate(self.value)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages that were not skipped."""
        return tuple(stage for stage in self.manifest.stages if stage.is_done)

    @property
    def tools(self) -> tuple[Tool, ...]:
        records = self.manifest.run.wheels
        versions = {
            (name, version): records.get(name, "") for stage in self.stages for name, version in stage.toolchain.items()
        }
        # The digest belongs to the installed version. Another version comes from a stage that ran elsewhere.
        several = {name for name, version in versions if sum(name == other for other, _ in versions) > 1}
        return tuple(
            Tool(name, version, "" if name in several else record)
            for (name, version), record in sorted(versions.items())
        )

    @property
    def model(self) -> str:
        """Return the name of the model; empty for a build without one."""
        return last_part(self.manifest.model_id)

    @property
    def ended(self) -> datetime.datetime | None:
        return time_of(self.manifest.timestamp)

    @property
    def began(self) -> datetime.datetime | None:
        seconds = min(self.manifest.elapsed_seconds or 0.0, 1e8)
        return None if self.ended is None else self.ended - datetime.timedelta(seconds=seconds)


def last_part(name: str) -> str:
    """Return *name*, or its last part if it is a path. The name of a repository contains a slash as well."""
    plain = name.replace("\\", "/")
    is_path = plain.startswith((".", "/", "~")) or plain.casefold().endswith(".onnx") or plain[1:2] == ":"
    return plain.rstrip("/").rpartition("/")[2] if is_path else name


def without_places(value: JsonValue) -> JsonValue:
    """Return settings with each path that is absolute or leads out of its folder reduced to its last part.

    Locations are private, and paths given relative to the current folder are recorded as absolute ones.
    """
    if isinstance(value, str):
        leads_out = PureWindowsPath(value).parts[:1] == ("..",)
        is_far = leads_out or PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
        return last_part(value) if is_far else value
    if isinstance(value, Mapping):
        return {
            name: inner if name in _IN_A_GRAPH and isinstance(inner, str | list | tuple) else without_places(inner)
            for name, inner in value.items()
        }
    return [without_places(inner) for inner in value] if isinstance(value, list | tuple) else value


def time_of(text: str) -> datetime.datetime | None:
    """Parse *text* to UTC; None if it is not a time."""
    try:
        return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None


def time_text(moment: datetime.datetime) -> str:
    """Format as RFC 3339, to the millisecond, as protobuf does."""
    precision = "milliseconds" if moment.microsecond >= 1000 else "seconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def encodable(value: JsonValue) -> JsonValue:
    """Return *value* so that every JSON reader preserves it: valid UTF-8 texts, and no number that would be rounded."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {str(encodable(name)): encodable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return str(value)
    return value
