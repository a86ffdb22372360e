"""The result of the search for capabilities in a finished build, and what makes the build reject it.

Unlike all other settings and notices of a build, it is only determined after all stages have run. This module is light
on purpose: a build from the plan cache uses it, too.

A build has as many rounds of optimize and analyze as its search may need (:mod:`winml_dag.pipeline.decisions`). All
rounds after the last one that adds something have the same keys as the previous round and cost nothing, so they are not
reported. Only ids are compared, so this also works for plans from the plan cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from winml_dag.canonical import JsonObject, JsonValue, mapping
from winml_dag.engine import events
from winml_dag.engine.events import Observer, PassingOn, Reason, StageResult, Status
from winml_dag.engine.stage import Node
from winml_dag.errors import StageError
from winml_dag.pipeline.buildgraph import BuildSummary
from winml_dag.store.quantities import counted

_IN_ROUNDS = ("optimize", "analyze")
_REWORDED: dict[str, Callable[[Iterable[str]], Reason]] = {"blocked": events.blocked, "stopped": events.stopped}


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

    def with_kept(self, result: StageResult) -> StageResult:
        """Return *result* with a reason that names reported stages only."""
        why = result.reason
        names, roots = (
            tuple(dict.fromkeys(self.like.get(name, name) for name in old)) for old in (why.names, why.roots)
        )
        if names == why.names:
            return result
        if why.kind == "waits":
            why = replace(events.waits(names, why.changes, roots), nearest=why.nearest)
        elif why.kind in _REWORDED:
            why = _REWORDED[why.kind](names)
        return replace(result, reason=why)

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

    reported: tuple[StageResult, ...]
    like_before: tuple[StageResult, ...]
    like: Mapping[str, str]


def folded(results: Iterable[StageResult]) -> Folded:
    """Divide *results*, which are in the order of their graph."""
    rounds = Rounds()
    reported: list[StageResult] = []
    like_before: list[StageResult] = []
    for result in results:
        (like_before if rounds.is_like_before(result) else reported).append(result)
    return Folded(
        tuple(rounds.with_kept(result) for result in reported),
        tuple(like_before),
        rounds.like,
    )


class WithoutRounds(PassingOn):
    """An observer that forwards everything except repeated rounds."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._rounds = Rounds()

    def finished(self, result: StageResult) -> None:
        if not self._rounds.is_like_before(result):
            super().finished(self._rounds.with_kept(result))


# The check of a build's last analysis; see `refusal` in engine/decide.py.
CHECK = "winml_dag.pipeline.search:refuse_unsupported"

# How many operators a sentence names.
_MOST_OPERATORS = 5


@dataclass(frozen=True)
class Searched:
    """The result of the search in one line of a build.

    Attributes:
        line: the prefix of its stages' ids; empty if the build has one line.
        last: the analysis of the model that the build continues with.
        iterations: how many different models were analyzed.
        discovered: the capabilities enabled in that model in addition to the recipe's, sorted by name.
        left: those that would have been added next.
    """

    line: str
    last: StageResult
    iterations: int
    discovered: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def metrics(self) -> Mapping[str, JsonValue]:
        assert self.last.record is not None
        return self.last.record.metrics

    @property
    def target(self) -> str:
        """The target, such as ``QNNExecutionProvider (npu)``."""
        return _target(self.last.node.config)

    def count(self, verdict: str) -> int:
        """Return the number of nodes with *verdict*."""
        return _count(self.metrics, verdict)


def searches(results: Iterable[StageResult]) -> list[Searched]:
    """Return one search for each line that was analyzed; *results* are those of a finished build."""
    lines: dict[str, dict[int, StageResult]] = {}
    for result in results:
        place = round_of(result.node)
        if place is not None and result.node.stage.name == "analyze" and result.record is not None:
            lines.setdefault(place[0].removesuffix("analyze"), {})[place[1]] = result
    found = []
    for line, by_round in lines.items():
        number = max(by_round)
        keys = {result.cache_key for result in by_round.values()}
        known, before = _discovered(by_round[number]), _discovered(by_round.get(number - 1))
        left = tuple(sorted(known - before))
        found.append(Searched(line, by_round[number], len(keys), tuple(sorted(before)), left))
    return found


def _discovered(result: StageResult | None) -> frozenset[str]:
    found = None if result is None or result.record is None else result.record.metrics.get("discovered")
    return frozenset(map(str, found)) if isinstance(found, list | tuple | Mapping) else frozenset()


def completed(summary: BuildSummary, results: Iterable[StageResult]) -> BuildSummary:
    """Complete *summary* after the build has run: add discovered capabilities to its settings, and notices."""
    done = list(results)
    found = searches(done)
    # compile itself reports accurately what it left on the CPU.
    compiled = {result.node.id.removesuffix("compile") for result in done if result.node.stage.name == "compile"}
    settings = summary.settings
    for one in found:
        if one.discovered:
            settings = _with_capabilities(settings, one)
    sentences = [sentence for one in found for sentence in _sentences(one, is_compiled=one.line in compiled)]
    return replace(summary, settings=settings, notices=(*summary.notices, *sentences))


def _with_capabilities(settings: JsonObject, searched: Searched) -> JsonObject:
    """Return settings that give the same bytes with ``auto`` off and one optimize stage.

    This works because every round of a search, too, applies all capabilities together to the exported model.
    """
    component = searched.line.removesuffix(".")
    components = mapping(settings.get("components"))
    own = mapping(components.get(component)) if component else settings
    own = {**own, "optim": {**mapping(own.get("optim")), **dict.fromkeys(searched.discovered, True)}}
    return {**settings, "components": {**components, component: own}} if component else own


def _sentences(searched: Searched, *, is_compiled: bool) -> Iterator[str]:
    where = f"{searched.line.removesuffix('.')}: " if searched.line else ""
    target = searched.target
    fallen = 0 if is_compiled else searched.count("partial")
    if fallen:
        named = _operators(searched.metrics.get("partial"))
        yield f"{where}{target} leaves {counted(fallen, 'node')} to the CPU{named}."
    if unsupported := searched.count("unsupported"):
        named = _operators(searched.metrics.get("unsupported"))
        yield f"{where}{target} cannot run {counted(unsupported, 'node')}{named}: the model may not load there."
    if searched.left:
        yield (
            f"{where}The search for capabilities of optimize was ended by max_optim_iterations: "
            f"{', '.join(searched.left)} would have come next."
        )


def refuse_unsupported(config: JsonObject, metrics: JsonObject) -> None:
    """Raise StageError when an analysis with this *config* and these *metrics* has found nodes that do not run."""
    unsupported = _count(metrics, "unsupported")
    if unsupported:
        named = _operators(metrics.get("unsupported"), with_nodes=True)
        raise StageError(
            f"{_target(config)} cannot run {counted(unsupported, 'node')} of the model{named}.",
            advice="The result of the analysis says why for each. Change the model or choose another target; "
            "with --allow-unsupported-nodes it is built all the same.",
        )


def _count(metrics: JsonObject, verdict: str) -> int:
    found = mapping(metrics.get("nodes")).get(verdict)
    return found if isinstance(found, int) else 0


def _operators(value: JsonValue, *, with_nodes: bool = False) -> str:
    """Return ``: Erf (3), ai.custom/Foo (1) and 2 other operators``; *with_nodes* adds node names and reasons."""
    if not isinstance(value, list | tuple) or not value:
        return ""
    operators = [one for one in value if isinstance(one, Mapping)]
    named = [_with_nodes(one) if with_nodes else f"{_name(one)} ({one['count']})" for one in operators]
    more = len(named) - _MOST_OPERATORS
    others = f" and {counted(more, 'other operator')}" if more > 0 else ""
    return f": {('; ' if with_nodes else ', ').join(named[:_MOST_OPERATORS])}{others}"


def _with_nodes(operator: Mapping[str, JsonValue]) -> str:
    """Return ``Erf (3 nodes: /a, /b, ...; no table has it)``."""
    nodes, count = operator["nodes"], operator["count"]
    assert isinstance(nodes, list | tuple)
    assert isinstance(count, int)
    names = ", ".join([*map(str, nodes), *(["..."] if count > len(nodes) else [])])
    return f"{_name(operator)} ({counted(count, 'node')}: {names}; {operator['reason']})"


def _name(operator: Mapping[str, JsonValue]) -> str:
    return str(operator["operator"]).removeprefix("OP/").removeprefix("ai.onnx/")


def _target(config: JsonObject) -> str:
    target = mapping(config.get("target"))
    return f"{target['execution_provider']} ({target['device']})"
