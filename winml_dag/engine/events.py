"""What a run reports while it is in progress, and the result of each stage at the end.

A reason is created with the decision; ``plan``, ``why``, the log and the manifest all show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from winml_dag.canonical import JsonObject
from winml_dag.engine.exchange import Progress
from winml_dag.engine.stage import Node, Source
from winml_dag.errors import MeasuredError, StageError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.records import KeyInputs, Record

if TYPE_CHECKING:
    from winml_dag.engine.diff import Change, Nearest

# The progress of a stage's work; None while it reports nothing.
ReadProgress: TypeAlias = Callable[[], Progress | None]


class Status(StrEnum):
    """The outcome of a stage; in a plan, the predicted one."""

    RAN = "ran"
    REUSED = "reused"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class StageResult:
    """One stage of a run or of a plan.

    ``cache_key`` is None while an input is unknown. ``record`` is set if the stage ran or was reused.
    ``elapsed_seconds`` is the time spent in this run (0 for a reuse); in a plan it is the estimate, or None without
    one.

    ``error``, ``advice``, ``log``, ``tail`` and ``metrics`` (what was measured until then) describe a failure. A failed
    stage that has a ``record`` did its work, but the result does not satisfy this build; ``kept`` is a copy of the file
    that shows why.

    ``progress``: the last progress reported, if any. ``assumes``: in a plan, the stages whose outputs are assumed to be
    unchanged.
    """

    node: Node
    status: Status
    reason: Reason
    cache_key: str | None = None
    record: Record | None = None
    elapsed_seconds: float | None = 0.0
    error: str = ""
    advice: str = ""
    log: Path | None = None
    tail: tuple[str, ...] = ()
    progress: Progress | None = None
    metrics: JsonObject = field(default_factory=dict)
    kept: Path | None = None
    assumes: tuple[str, ...] = ()

    @classmethod
    def refused(
        cls, node: Node, reason: Reason, record: Record, error: StageError, elapsed_seconds: float | None = 0.0
    ) -> StageResult:
        """A result that is recorded in *record* but not acceptable for *node*."""
        return cls(
            node,
            Status.FAILED,
            reason,
            record.cache_key,
            record,
            elapsed_seconds,
            error=error.message,
            advice=error.advice,
        )

    def seen_from(self, node: Node, *, made_here: bool) -> StageResult:
        """Return it as the result of *node*, one of several that it is the result of.

        A stage that ran once for several graphs counts as run by the first one; the others found its result, as they
        would have in sequence. Its time counts for the first one, too, even if it failed.
        """
        if not made_here and self.status is Status.FAILED:
            return replace(self, node=node, elapsed_seconds=0.0)
        if made_here or self.status is not Status.RAN or self.record is None:
            return replace(self, node=node)
        return StageResult(node, Status.REUSED, found(self.record), self.cache_key, self.record)

    def as_error(self) -> MeasuredError:
        """Return the error to raise for a stage that failed."""
        return MeasuredError(f"{self.node.id} failed: {self.error}", advice=self.advice, metrics=self.metrics)


class Observer(Protocol):
    """Receives callbacks from the scheduler's thread, in the order of events.

    *progress* returns the current progress, or None while nothing is reported. It may be called from any thread, as
    often as needed.
    """

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None: ...

    def finished(self, result: StageResult) -> None: ...


class Silent:
    """An observer that does nothing."""

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None: ...

    def finished(self, result: StageResult) -> None: ...


class PassingOn:
    """An observer that forwards all callbacks to *observer*; a base class for those that add to them or omit some."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None:
        self._observer.started(node, reason, estimate_seconds, progress)

    def finished(self, result: StageResult) -> None:
        self._observer.finished(result)


@dataclass(frozen=True)
class Reason:
    """Why a stage runs or not. ``kind``, ``changes`` and ``names`` are for programs, ``text`` is for people.

    Kinds: ``up to date``, ``found``, ``found in a remote``, ``first build``, ``changed``, ``lost``, ``rebuild``,
    ``waits``, ``blocked``, ``stopped``.

    Attributes:
        changes: what differs from the last run under this name; for a waiting stage: what differs so far.
        names: the files that are lost, or the stages to which the reason refers.
        roots: for a waiting stage: the stages that run for their own reason.
        nearest: a record under another name that is nearer than the last one under this name. ``roots`` and ``nearest``
            are determined only where reasons are explained, not in a build.
    """

    kind: str
    text: str
    changes: tuple[Change, ...] = ()
    names: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    nearest: Nearest | None = None

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> JsonObject:
        """The text is ``reason``; other fields are present if they are not empty."""
        changes = {"changes": [change.to_json() for change in self.changes]} if self.changes else {}
        names = {"names": list(self.names)} if self.names else {}
        roots = {"roots": list(self.roots)} if self.roots else {}
        nearest = {} if self.nearest is None else {"nearest": self.nearest.to_json()}
        return {"reason": self.text, "kind": self.kind, **changes, **names, **roots, **nearest}


UP_TO_DATE = Reason("up to date", "up to date")
FIRST_BUILD = Reason("first build", "never built before")
REBUILD = Reason("rebuild", "--rebuild was given")


def found(record: Record, *, in_remote: bool = False) -> Reason:
    """*in_remote*: whether *record* was fetched from a remote in this run."""
    when = f", made {record.made_at}" if record.made_at else ""
    by, maker = "", record.origin.get("maker")
    if isinstance(maker, Mapping):  # only of a record from elsewhere
        who = [text for name in ("builder", "run", "host") if isinstance(text := maker.get(name), str) and text]
        by = f" by {', '.join(who)}"
    kind, where = ("found in a remote", "the remote") if in_remote else ("found", "the cache")
    return Reason(kind, f"found in {where}{when}{by}")


@dataclass(frozen=True)
class Inputs:
    """What a stage would read: the artifact of each slot, and the source of each slot that no stage makes."""

    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)


NOT_KNOWN = Inputs()


def changed(last: Record, new: KeyInputs, inputs: Inputs) -> Reason:
    """What differs between the last run under this name and this one, which reads *inputs*."""
    # Imported here, as below: nothing has changed in a first build, or one that reuses everything.
    from winml_dag.engine.diff import changes_between, summed_up

    changes = changes_between(last, new, inputs)
    # Nothing with a name: a newer version of this program has a new field that is still unset, or another key format.
    return Reason("changed", summed_up(changes) or "its key is computed differently now", changes)


def never_like_this(nearest: Nearest) -> Reason:
    """A first build under this name, while something similar was built under another name."""
    return Reason("first build", f"never built like this; nearest is {nearest}", nearest=nearest)


def lost(files: Iterable[FileEntry], *, has_remotes: bool = False) -> Reason:
    names = tuple(file.name for file in files)
    where = "the cache, and in no remote that answers" if has_remotes else "the cache"
    return Reason("lost", f"missing or damaged in {where}: {', '.join(names)}", names=names)


def waits(ids: Iterable[str], changes: tuple[Change, ...] = (), roots: tuple[str, ...] = ()) -> Reason:
    names = tuple(ids)
    text = f"depends on the output of {', '.join(names)}"
    if changes:
        from winml_dag.engine.diff import summed_up

        text += f"; {summed_up(changes)}"
    return Reason("waits", text, changes, names, roots)


def blocked(ids: Iterable[str]) -> Reason:
    names = tuple(ids)
    return Reason("blocked", f"needs {', '.join(names)}, which did not finish", names=names)


def stopped(ids: Iterable[str]) -> Reason:
    names = tuple(ids)
    return Reason("stopped", f"not started, because {', '.join(names)} failed", names=names)
