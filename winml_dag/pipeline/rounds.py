"""The rounds of optimize and analyze; those that repeat an earlier round are not reported.

A build has as many rounds as its search for capabilities may need (:mod:`winml_dag.pipeline.autoconf`). All rounds
after the last one that adds something have the same keys as the previous round and cost nothing, so listing them is
useless. Only ids are compared, so this also works for plans from the plan cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from winml_dag.engine import reason
from winml_dag.engine.events import Observer, PassingOn, StageResult, Status
from winml_dag.engine.reason import Reason
from winml_dag.engine.stage import Node

_IN_ROUNDS = ("optimize", "analyze")
_TOLD_AGAIN: dict[str, Callable[[Iterable[str]], Reason]] = {"blocked": reason.blocked, "stopped": reason.stopped}


def round_of(node: Node) -> tuple[str, int] | None:
    """Return the line of rounds that *node* is in (its id without the number) and the number; None for other stages."""
    line, _, number = node.id.rpartition(".")
    in_rounds = node.stage.name in _IN_ROUNDS and node.folder is None and number.isdigit()
    return (line, int(number)) if in_rounds else None


class Rounds:
    """Decides which rounds repeat an earlier one, from results in the order of their graph."""

    def __init__(self) -> None:
        # `like`: the repeated stage by the id of its repetition; `_last`: the last new stage by line; `_by_key`: all by
        # key.
        self.like: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._by_key: dict[tuple[str, str], str] = {}

    def is_like_before(self, result: StageResult) -> bool:
        """Whether the stage of *result* repeats an earlier round, or is a possible later round with an unknown result.

        A failure never counts as a repetition.
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
        """Return *why* with the names of repetitions replaced by those of reported stages."""
        names = tuple(dict.fromkeys(self.like.get(name, name) for name in why.names))
        if names == why.names:
            return why
        if why.kind == "waits":
            roots = tuple(dict.fromkeys(self.like.get(name, name) for name in why.roots))
            return replace(reason.waits(names, why.changes, roots), nearest=why.nearest)
        return _TOLD_AGAIN[why.kind](names) if why.kind in _TOLD_AGAIN else why

    def _before(self, result: StageResult, line: str, number: int) -> str | None:
        if number == 0 or result.status is Status.FAILED:
            return None
        if result.cache_key:
            return self._by_key.get((line, result.cache_key))
        # An analyze after a new optimize will run, whatever its result.
        stem = line.removesuffix("analyze")
        new = stem != line and self._last.get(f"{stem}optimize") == f"{stem}optimize.{number}"
        return None if new else self._last.get(line)


@dataclass(frozen=True)
class Folded:
    """Results, divided into those to report and repetitions; ``like`` maps ids of repetitions to repeated ids."""

    told: tuple[StageResult, ...]
    like_before: tuple[StageResult, ...]
    like: Mapping[str, str]


def folded(results: Iterable[StageResult]) -> Folded:
    """Divide *results*, which are in the order of their graph."""
    rounds = Rounds()
    told: list[StageResult] = []
    like_before: list[StageResult] = []
    for result in results:
        (like_before if rounds.is_like_before(result) else told).append(result)
    return Folded(
        tuple(replace(result, reason=rounds.told(result.reason)) for result in told), tuple(like_before), rounds.like
    )


class WithoutRounds(PassingOn):
    """An observer that forwards everything except repeated rounds."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._rounds = Rounds()

    def finished(self, result: StageResult) -> None:
        if not self._rounds.is_like_before(result):
            super().finished(replace(result, reason=self._rounds.told(result.reason)))
