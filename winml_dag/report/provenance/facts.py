"""What there is to tell others of a finished build, whatever the format: its files by SHA-256, and what they were made
from.
"""

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

# What the formats carry numbers in has so many bits; whole numbers beyond them are told as texts.
_EXACT = 2**53
# A data set of more files is told as one folder.
_MOST_FILES = 64

# What has names in a graph: they may begin with a slash as well.
_IN_A_GRAPH = frozenset({"name", "nodes_to_exclude"})

# Names and versions as Python's packaging has them; whatever else is in a key has blanks, or is a digest.
_DISTRIBUTION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"(?:[0-9]+!)?[0-9]+[A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class HashedFile:
    """A file that a build has put somewhere.

    Attributes:
        path: below the folder that the document is about, with ``/``; of a ``placed`` one below the recipe's folder,
            which does not lie in that one.
        sha256: 64 hex digits. size: in bytes.
        stage: the id of the stage whose result it is; empty for the manifest and the settings.
        component: of a composite model, the one that it is of.
        is_output: whether it is to be shipped; others are what was on the way to it.
        placed: the folder of the build whose recipe's folder that is, ``.`` for the document's; else empty.
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
    """A file that a build read: ``algorithm`` is ``sha256``, or ``xxh3_128`` where the file is not to be found any more
    and nothing else was noted of it.
    """

    name: str
    algorithm: str
    digest: str
    size: int


@dataclass(frozen=True)
class Dependency:
    """A source of a build. ``digest``: over names and contents of its files, as the manifest has it.

    ``hub``: ``models`` or ``datasets``, and the name there, at the commit ``revision``; both empty for what is not from
    the hub. ``is_ours``: it came with this program. ``license``: as the model's card has it.
    """

    name: str
    kind: str
    digest: str
    files: tuple[ReadFile, ...]
    hub: tuple[str, str] | None = None
    revision: str = ""
    license: str = ""
    is_ours: bool = False

    @property
    def folder_digest(self) -> tuple[str, str] | None:
        """Of more files than are told one by one, the name and hex digits of one digest over all: ``dirHash`` of
        in-toto, which is Go's Hash1; where one has no SHA-256, the same over the digests that there are, under another
        name.
        """
        if len(self.files) <= _MOST_FILES:
            return None
        lines = "".join(f"{file.digest}  {file.name}\n" for file in sorted(self.files, key=lambda file: file.name))
        every = all(file.algorithm == "sha256" for file in self.files)
        return ("dirHash" if every else "digestsSha256"), hashlib.sha256(lines.encode()).hexdigest()

    @property
    def called(self) -> str:
        """Its name for others: a path by its last part, since where it lay is nobody's business."""
        return last_part(self.name)


@dataclass(frozen=True)
class Tool:
    """What was in the key of a stage besides its inputs and settings: a distribution of Python in a version, a library
    or program by its digest, or what a machine is called. ``record``: the digest over what was installed of a
    distribution, empty if unknown.
    """

    name: str
    version: str
    record: str

    @property
    def purl(self) -> str:
        """Of a distribution, its address on PyPI; empty of anything else."""
        if not (_DISTRIBUTION.fullmatch(self.name) and _VERSION.fullmatch(self.version)):
            return ""
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', self.name).lower()}@{quote(self.version)}"

    @property
    def digest(self) -> tuple[str, str] | None:
        """Function and hex digits, of what is known by its content."""
        function, _, digits = self.version.partition(":")
        return (function.replace("-", "_"), digits) if function in ("xxh3-128", "sha256") else None


@dataclass(frozen=True)
class BuildFacts:
    """One build. ``name``: its folder below the one that the document is about, empty for that itself; ``value``: its
    manifest; ``settings``: the recipe with everything decided, empty for a build without a model.
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
        """``value``, as far as it is of the form."""
        return BuildManifest.model_validate(self.value)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Those that were not skipped."""
        return tuple(stage for stage in self.manifest.stages if stage.is_done)

    @property
    def tools(self) -> tuple[Tool, ...]:
        records = self.manifest.run.wheels
        versions = {
            (name, version): records.get(name, "") for stage in self.stages for name, version in stage.toolchain.items()
        }
        # The digest is that of the version which was installed; another one is of a stage that ran elsewhere.
        several = {name for name, version in versions if sum(name == other for other, _ in versions) > 1}
        return tuple(
            Tool(name, version, "" if name in several else record)
            for (name, version), record in sorted(versions.items())
        )

    @property
    def model(self) -> str:
        """What the model is called; empty for a build without one."""
        return last_part(self.manifest.model_id)

    @property
    def ended(self) -> datetime.datetime | None:
        return time_of(self.manifest.timestamp)

    @property
    def began(self) -> datetime.datetime | None:
        seconds = min(self.manifest.elapsed_seconds or 0.0, 1e8)
        return None if self.ended is None else self.ended - datetime.timedelta(seconds=seconds)


def last_part(name: str) -> str:
    """*name*; of one that is a path, its last part. The name of a repository has a slash as well."""
    plain = name.replace("\\", "/")
    is_path = plain.startswith((".", "/", "~")) or plain.casefold().endswith(".onnx") or plain[1:2] == ":"
    return plain.rstrip("/").rpartition("/")[2] if is_path else name


def without_places(value: JsonValue) -> JsonValue:
    """Settings, with the last part of each path that is absolute or leads out of its folder: where something lay is
    nobody's business, and paths that were given relative to the current folder are noted as absolute ones.
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
    """UTC; None for what is no time."""
    try:
        return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None


def time_text(moment: datetime.datetime) -> str:
    """As RFC 3339 has it, to the millisecond."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def tellable(value: JsonValue) -> JsonValue:
    """*value* as any reader of JSON has it: texts that are UTF-8, and no number that is rounded on the way."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {str(tellable(name)): tellable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [tellable(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return str(value)
    return value
