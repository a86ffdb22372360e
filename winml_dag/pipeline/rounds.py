"""The rounds of optimize and analyze, and which of them are like the one before: those are not told of.

A build has as many rounds as its search for capabilities may take (:mod:`winml_dag.pipeline.autoconf`). After the last
one that adds something, all have the keys of the round before and cost nothing; a list of them says nothing either.
Ids are all that is looked at, so that this holds for plans that were recalled, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from winml_dag.engine import events
from winml_dag.engine.events import Observer, PassingOn, Reason, StageResult, Status
from winml_dag.engine.stage import Node

_IN_ROUNDS = ("optimize", "analyze")
_TOLD_AGAIN: dict[str, Callable[[Iterable[str]], Reason]] = {"blocked": events.blocked, "stopped": events.stopped}


def round_of(node: Node) -> tuple[str, int] | None:
    """The line of rounds that *node* is in, by its id without a number, and the number; None for all other stages."""
    line, _, number = node.id.rpartition(".")
    in_rounds = node.stage.name in _IN_ROUNDS and node.folder is None and number.isdigit()
    return (line, int(number)) if in_rounds else None


class Rounds:
    """Tells of results, one after the other and in the order of their graph, which rounds say nothing new."""

    def __init__(self) -> None:
        # By id of a stage that is like one before, the id of that one; by line, the last that is not, and all by key.
        self.like: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._by_key: dict[tuple[str, str], str] = {}

    def is_like_before(self, result: StageResult) -> bool:
        """Whether the stage of *result* has the result of an earlier round, or is one of those that may follow and of
        which nothing is known. A failure is never like anything.
        """
        found = round_of(result.node)
        if found is None:
            return False
        line, number = found
        before = self._before(result, line, number)
        if before is not None:
            self.like[result.node.id] = before
            return True
        self._last[line] = result.node.id
        if result.cache_key:
            self._by_key.setdefault((line, result.cache_key), result.node.id)
        return False

    def told(self, why: Reason) -> Reason:
        """*why* with the names of stages that are told of."""
        names = tuple(dict.fromkeys(self.like.get(name, name) for name in why.names))
        if names == why.names:
            return why
        if why.kind == "waits":
            roots = tuple(dict.fromkeys(self.like.get(name, name) for name in why.roots))
            return replace(events.waits(names, why.changes, roots), nearest=why.nearest)
        return _TOLD_AGAIN[why.kind](names) if why.kind in _TOLD_AGAIN else why

    def _before(self, result: StageResult, line: str, number: int) -> str | None:
        if number == 0 or result.status is Status.FAILED:
            return None
        if result.cache_key:
            return self._by_key.get((line, result.cache_key))
        # An analyze whose own optimize is new will run, whatever comes of it.
        stem = line.removesuffix("analyze")
        new = stem != line and self._last.get(f"{stem}optimize") == f"{stem}optimize.{number}"
        return None if new else self._last.get(line)


@dataclass(frozen=True)
class Folded:
    """Results parted: those to tell of, and rounds that are like one before, whose ids are in ``like`` with those of
    the ones that they are like.
    """

    told: tuple[StageResult, ...]
    like_before: tuple[StageResult, ...]
    like: Mapping[str, str]


def folded(results: Iterable[StageResult]) -> Folded:
    """*results*, in the order of their graph, parted."""
    rounds = Rounds()
    told: list[StageResult] = []
    like_before: list[StageResult] = []
    for result in results:
        (like_before if rounds.is_like_before(result) else told).append(result)
    return Folded(
        tuple(replace(result, reason=rounds.told(result.reason)) for result in told), tuple(like_before), rounds.like
    )


class WithoutRounds(PassingOn):
    """An observer that hands on to another what is no round like the one before."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._rounds = Rounds()

    def finished(self, result: StageResult) -> None:
        if not self._rounds.is_like_before(result):
            super().finished(replace(result, reason=self._rounds.told(result.reason)))
