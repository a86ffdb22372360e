"""Differences between two runs of a stage, in the recipe's terms with old and new values.

Also finds the record that differs least from a run. Text output cuts long values around the first difference; JSON
output has them in full.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypeAlias, Union

from winml_dag.canonical import JsonObject, JsonValue, canonical_json
from winml_dag.engine.stage import SourceFile
from winml_dag.store.artifact import Artifact
from winml_dag.store.quantities import counted
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.engine.events import Inputs

# Limits per line: characters of a value, items of a list, changes of a stage.
_MOST_CHARACTERS = 60
_MOST_ITEMS = 3
MOST_CHANGES = 6
# Number of common characters shown before the first difference of two long values.
_LEAD = 20

# The newest records of a stage that are searched for the nearest one. Enough for a sweep; reading and comparing them
# takes 16 ms.
MOST_RECORDS = 100

_DIGEST = re.compile(r"([a-z][a-z0-9-]*):([0-9a-f]{8})[0-9a-f]{24,}")


class Unset(Enum):
    """The value of a missing field. Not the same as ``null``, which has another key."""

    UNSET = "not set"


UNSET = Unset.UNSET
Value: TypeAlias = Union[JsonValue, Unset]


@dataclass(frozen=True)
class FileChange:
    """The change of one file of an input.

    ``other`` is the new name of a renamed file, or the second name of two swapped files. ``old`` and ``new`` are
    digests, or None if the file does not exist.
    """

    how: Literal["changed", "added", "removed", "renamed", "swapped"]
    name: str
    old: str | None = None
    new: str | None = None
    other: str = ""

    def __str__(self) -> str:
        match self.how:
            case "changed":
                old, new = _shown_pair(self.old, self.new)
                # Show the hash function once: both digests use the same one unless the store's was changed.
                before, after = (text.partition(":") for text in (old, new))
                return f"{self.name} changed ({old} -> {after[2] if before[0] == after[0] else new})"
            case "renamed":
                return f"{self.name} renamed to {self.other}"
            case "swapped":
                return f"{self.name} and {self.other} swapped"
            case _:
                return f"{self.name} {self.how}"

    def called(self, names: Mapping[str, str]) -> FileChange:
        return replace(self, name=names.get(self.name, self.name), other=names.get(self.other, self.other))

    def to_json(self) -> JsonObject:
        other = {"other": self.other} if self.other else {}
        return {"how": self.how, "name": self.name, **other, "old": self.old, "new": self.new}


@dataclass(frozen=True)
class Change:
    """One key input that differs.

    ``name`` is a field as in the recipe (``quant.samples``), an input slot, or a tool. ``files`` lists the files of an
    input that differ; it is empty when the earlier run did not record them.
    """

    kind: Literal["stage", "version", "config", "input", "toolchain"]
    name: str
    old: Value
    new: Value
    files: tuple[FileChange, ...] = ()

    def __str__(self) -> str:
        return self._text(_some(self.files))

    def lines(self, most_files: int) -> Iterator[str]:
        """The same with one line per file, up to *most_files* files."""
        for file in self.files[:most_files]:
            yield self._text(str(file))
        if more := len(self.files[most_files:]):
            yield self._text(f"and {more} more files")
        if not self.files:
            yield str(self)

    def to_json(self) -> JsonObject:
        """Values in full; unset values are omitted."""
        old = {} if isinstance(self.old, Unset) else {"old": self.old}
        new = {} if isinstance(self.new, Unset) else {"new": self.new}
        files = {"files": [file.to_json() for file in self.files]} if self.files else {}
        return {"kind": self.kind, "name": self.name, **old, **new, **files}

    def _text(self, files: str) -> str:
        if self.kind == "input":
            if files:
                return f"input {self.name}: {files}"
            what = "is gone" if self.new is UNSET else "is new" if self.old is UNSET else "changed"
            return f"input {self.name} {what}"
        if _are_lists(self.old, self.new) and len(_quoted(self.old) + _quoted(self.new)) > _MOST_CHARACTERS:
            return f"{self.name}: {_list_change(self.old, self.new)}"
        old, new = _shown_pair(self.old, self.new)
        return f"{self.name}{':' if self.kind == 'config' else ''} {old} -> {new}"


def changes_between(old: Record, new: KeyInputs, inputs: Inputs) -> tuple[Change, ...]:
    """What differs between the recorded run *old* and a run with the key inputs *new* that reads *inputs*."""
    return tuple(_changes(old, new, inputs))


def summed_up(changes: Sequence[Change]) -> str:
    """All changes in one line: ``quant.samples: 10 -> 20; onnxruntime 1.30.0 -> 1.31.1``."""
    more = len(changes) - MOST_CHANGES
    return "; ".join(
        [*map(str, changes[:MOST_CHANGES]), *([f"and {counted(more, 'more change')}"] if more > 0 else [])]
    )


def field_changes(old: Value, new: Value, path: str = "") -> Iterator[Change]:
    """One change per differing leaf. Lists are leaves, because their elements have no names to report."""
    if isinstance(old, Mapping) and (isinstance(new, Mapping) or (new is UNSET and old)):
        new = new if isinstance(new, Mapping) else {}
        for name in sorted(old.keys() | new.keys()):
            yield from field_changes(old.get(name, UNSET), new.get(name, UNSET), f"{path}.{name}" if path else name)
    elif old is UNSET and isinstance(new, Mapping) and new:
        yield from field_changes({}, new, path)
    elif not _same(old, new):
        yield Change("config", path, old, new)


def _changes(record: Record, new: KeyInputs, inputs: Inputs) -> Iterator[Change]:
    old = record.key_inputs
    if old.stage != new.stage:
        yield Change("stage", "stage", old.stage, new.stage)
    if old.version != new.version:
        yield Change("version", "stage version", old.version, new.version)
    yield from field_changes(old.config, new.config)
    for slot in sorted(old.inputs.keys() | new.inputs.keys()):
        before, after = old.inputs.get(slot, UNSET), new.inputs.get(slot, UNSET)
        if before != after:
            yield Change("input", slot, before, after, input_changes(inputs, slot, record.input_artifact(slot)))
    for name in sorted(old.toolchain.keys() | new.toolchain.keys()):
        version, now = old.toolchain.get(name, UNSET), new.toolchain.get(name, UNSET)
        if version != now:
            yield Change("toolchain", name, version, now)


def input_changes(inputs: Inputs, slot: str, before: Artifact | None) -> tuple[FileChange, ...]:
    """The changed files of *slot* since *before*; empty when either artifact is unknown."""
    after = inputs.artifacts.get(slot)
    if before is None or after is None:
        return ()
    source = inputs.sources.get(slot)
    own_names = {} if source is None else {file.name: _own_name(file) for file in source.files}
    return tuple(change.called(own_names) for change in file_changes(before, after))


def file_changes(old: Artifact, new: Artifact) -> tuple[FileChange, ...]:
    """Changes file by file, ordered by name. Renamed and swapped files are not reported as edits."""
    return tuple(sorted(_file_changes(old, new), key=lambda change: change.name))


def _file_changes(old_files: Artifact, new_files: Artifact) -> Iterator[FileChange]:
    before, after = ({file.name: file.digest for file in artifact.files} for artifact in (old_files, new_files))
    alone: dict[tuple[str, str], list[str]] = {}
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        if old == new:
            continue
        if partners := alone.get((new, old)):
            yield FileChange("swapped", partners.pop(), new, old, name)
        else:
            alone.setdefault((old, new), []).append(name)
    for (old, new), names in alone.items():
        yield from (FileChange("changed", name, old, new) for name in names)
    added: dict[str, list[str]] = {}
    for name in sorted(after.keys() - before.keys(), reverse=True):
        added.setdefault(after[name], []).append(name)
    for name in sorted(before.keys() - after.keys()):
        old = before[name]
        if renamed := added.get(old):
            yield FileChange("renamed", name, old, old, renamed.pop())
        else:
            yield FileChange("removed", name, old=old)
    for new, names in added.items():
        yield from (FileChange("added", name, new=new) for name in names)


def _own_name(file: SourceFile) -> str:
    """The user's name for *file*. A stage may see it under a fixed name, which keeps the user's name out of the key."""
    return file.name if file.path.as_posix().endswith(f"/{file.name}") else file.path.name


def _same(old: Value, new: Value) -> bool:
    if isinstance(old, Unset) or isinstance(new, Unset):
        return old is new
    # Compare as a key does: Python considers 1, 1.0 and True equal.
    return canonical_json(old) == canonical_json(new)


def _are_lists(*values: Value) -> bool:
    return all(isinstance(value, Sequence) and not isinstance(value, str) for value in values)


def _list_change(old: Value, new: Value) -> str:
    assert isinstance(old, Sequence)
    assert isinstance(new, Sequence)
    shown = {canonical_json(item): _cut(_shown(item), 0) for item in (*old, *new)}
    before, after = (Counter(map(canonical_json, items)) for items in (old, new))
    added, removed = ([shown[item] for item in found.elements()] for found in (after - before, before - after))
    parts = [f"{_some(items)} {how}" for items, how in ((added, "added"), (removed, "removed")) if items]
    return ", ".join(parts) or "in another order"


def _some(items: Sequence[object]) -> str:
    more = len(items) - _MOST_ITEMS
    return ", ".join(map(str, items[:_MOST_ITEMS])) + (f" and {more} more" if more > 0 else "")


def _shown_pair(old: Value, new: Value) -> tuple[str, str]:
    """Both values as one line shows them, never equal: ``"10"`` is not 10, and long values may differ at their end."""
    before, after = _shown(old), _shown(new)
    if before == after:
        # Two strings that look the same here are digests with the same beginning.
        before, after = (old, new) if isinstance(old, str) and isinstance(new, str) else (_quoted(old), _quoted(new))
    start = 0
    if max(len(before), len(after)) > _MOST_CHARACTERS:
        shorter = min(len(before), len(after))
        common = next((at for at in range(shorter) if before[at] != after[at]), shorter)
        start = common - _LEAD if common > _MOST_CHARACTERS - _LEAD else 0
    return _cut(before, start), _cut(after, start)


def _cut(text: str, start: int) -> str:
    end = start + _MOST_CHARACTERS
    return ("…" if start else "") + text[start:end] + ("…" if len(text) > end else "")


def _shown(value: Value) -> str:
    if isinstance(value, str) and value.isprintable() and value:
        digest = _DIGEST.fullmatch(value)
        return value if digest is None else f"{digest[1]}:{digest[2]}"
    return _quoted(value)


def _quoted(value: Value) -> str:
    return value.value if isinstance(value, Unset) else canonical_json(value)


@dataclass(frozen=True)
class Nearest:
    """A record and what differs from it."""

    cache_key: str
    made_at: str
    made_by: str
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        return f"{self.name}: {summed_up(self.changes)}"

    @property
    def name(self) -> str:
        """``3f2a81c0 (made 2026-11-20 by winml_dag 0.1.0)``."""
        return f"{self.cache_key[:8]} (made {self.made_at.partition('T')[0]} by {self.made_by})"

    def to_json(self) -> JsonObject:
        changes = [change.to_json() for change in self.changes]
        return {"cache_key": self.cache_key, "made_at": self.made_at, "made_by": self.made_by, "changes": changes}


# See :func:`_traits`.
_Traits: TypeAlias = frozenset[tuple[str, str]]


class NearRecords:
    """Finds the nearest records for explanations; reads the records of each stage once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_stage: dict[str, list[tuple[Record, _Traits]]] = {}

    def nearest(
        self, wanted: KeyInputs, inputs: Inputs, last: Record | None, main: str | None = None
    ) -> Nearest | None:
        """The record of the same stage that differs in the fewest key inputs, of those with the same input *main*.

        Ties go to the record with more inputs in common, then to the newest. Returns None when no record is nearer than
        *last*, or when the nearest has too little in common.
        """
        traits = _traits(wanted)
        near = [
            (_distance(theirs, traits), record, theirs)
            for record, theirs in self._of(wanted.stage)
            if main is None or record.key_inputs.inputs.get(main) == wanted.inputs.get(main)
        ]
        if not near:
            return None
        distance, record, theirs = min(near, key=lambda each: each[0])
        if distance[0] > len(theirs & traits):
            return None
        if last is not None and _distance(_traits(last.key_inputs), traits)[0] <= distance[0]:
            return None
        changes = changes_between(record, wanted, inputs)
        # None: its key differs only because the key format has changed.
        return Nearest(record.cache_key, record.made_at, record.made_by, changes) if changes else None

    def _of(self, stage: str) -> list[tuple[Record, _Traits]]:
        if stage not in self._by_stage:
            records = sorted(self._store.records_of(stage, MOST_RECORDS), key=lambda record: record.made_at)
            # Newest first: of equal ones, min() returns the first.
            self._by_stage[stage] = [(record, _traits(record.key_inputs)) for record in reversed(records)]
        return self._by_stage[stage]


def _distance(one: _Traits, other: _Traits) -> tuple[int, int]:
    """How many key inputs differ, and how many of these are artifacts."""
    differing = {name for name, _ in one ^ other}
    return len(differing), sum(name.startswith(_INPUT) for name in differing)


_INPUT = "input "


def _traits(made: KeyInputs) -> _Traits:
    """Each key input as a pair of name and text.

    Comparing two records then is a set operation. That happens thousands of times, and comparing field by field would
    take ten times as long.
    """
    return frozenset(
        [
            ("version", str(made.version)),
            *_paths("config", made.config),
            *((f"{_INPUT}{slot}", digest) for slot, digest in made.inputs.items()),
            *((f"tool {name}", version) for name, version in made.toolchain.items()),
        ]
    )


def _paths(path: str, value: JsonValue) -> list[tuple[str, str]]:
    if not isinstance(value, Mapping):
        return [(path, canonical_json(value))]
    return [leaf for name, inner in value.items() for leaf in _paths(f"{path}.{name}", inner)]
