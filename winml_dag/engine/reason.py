"""Why a stage runs or does not: made where the decision is made, shown alike by ``plan``, ``why``, the log and the
manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from winml_dag.canonical import JsonValue, canonical_json, flatten
from winml_dag.store.artifact import FileEntry
from winml_dag.store.record import Ingredients


@dataclass(frozen=True)
class Reason:
    """``kind`` is for programs, ``changes`` and ``text`` for people.

    Kinds: ``up to date``, ``found``, ``first build``, ``changed``, ``lost``, ``rebuild``, ``waits``, ``blocked``,
    ``stopped``.
    """

    kind: str
    text: str
    changes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


UP_TO_DATE = Reason("up to date", "up to date")
FIRST_BUILD = Reason("first build", "never built before")
REBUILD = Reason("rebuild", "--rebuild was given")


def found(made_at: str) -> Reason:
    return Reason("found", f"found in the cache, made {made_at}" if made_at else "found in the cache")


def changed(old: Ingredients, new: Ingredients) -> Reason:
    """What differs between the last run under this name and this one."""
    changes = tuple(differences(old, new))
    # None that has a name: a newer version of this program has a field that says nothing yet, or another key format.
    return Reason("changed", "; ".join(changes) or "its key is made in another way now", changes)


def lost(files: Iterable[FileEntry]) -> Reason:
    names = tuple(file.name for file in files)
    return Reason("lost", f"missing or damaged in the cache: {', '.join(names)}", names)


def waits(ids: Iterable[str]) -> Reason:
    names = tuple(ids)
    return Reason("waits", f"depends on what {', '.join(names)} will give", names)


def blocked(ids: Iterable[str]) -> Reason:
    names = tuple(ids)
    return Reason("blocked", f"needs {', '.join(names)}, which did not finish", names)


def stopped(ids: Iterable[str]) -> Reason:
    names = tuple(ids)
    return Reason("stopped", f"not started, because {', '.join(names)} failed", names)


def differences(old: Ingredients, new: Ingredients) -> Iterator[str]:
    """One line for each: ``quant.samples: 10 -> 20``, ``input model changed``, ``onnxruntime 1.30.0 -> 1.31.1``."""
    if old.stage != new.stage:
        yield f"stage {old.stage} -> {new.stage}"
    if old.version != new.version:
        yield f"stage version {old.version} -> {new.version}"
    yield from _pairs(dict(flatten(old.config)), dict(flatten(new.config)), "{name}: {old} -> {new}")
    for slot in sorted(old.inputs.keys() | new.inputs.keys()):
        if slot not in new.inputs:
            yield f"input {slot} is gone"
        elif slot not in old.inputs:
            yield f"input {slot} is new"
        elif old.inputs[slot] != new.inputs[slot]:
            yield f"input {slot} changed"
    yield from _pairs(old.toolchain, new.toolchain, "{name} {old} -> {new}")


def _pairs(old: Mapping[str, JsonValue], new: Mapping[str, JsonValue], line: str) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        # Compared as shown, since Python takes 1, 1.0 and True for the same, and a key does not.
        before, after = _shown(name, old), _shown(name, new)
        if before != after:
            yield line.format(name=name, old=before, new=after)


def _shown(name: str, values: Mapping[str, JsonValue]) -> str:
    if name not in values:
        return "not set"
    value = values[name]
    return value if isinstance(value, str) else canonical_json(value)
