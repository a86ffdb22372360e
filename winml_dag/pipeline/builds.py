"""Several builds carried out as one graph: what they share runs once, and each is put in place as soon as it is done.

Every build keeps what it has alone: its folder, manifest, note and result. Only the running is done together, so that a
build that is asked for alone later finds all up to date.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from winml_dag.engine import reason
from winml_dag.engine.events import Observer, PassingOn, ReadProgress, Silent, StageResult, Status
from winml_dag.engine.merge import Merged, Part, merge
from winml_dag.engine.plan import foresee, prefetch, remembered_name
from winml_dag.engine.reason import Reason
from winml_dag.engine.stage import Node
from winml_dag.errors import WinmlDagError
from winml_dag.pipeline.accounts import settle_accounts
from winml_dag.pipeline.build import BuildOptions, build, put_in_place, refuse_at_once
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.graphrun import reuse_all, run_graph
from winml_dag.pipeline.outputs import prepare_folder
from winml_dag.pipeline.rounds import round_of
from winml_dag.pipeline.visible import needed_files
from winml_dag.store.local import LocalStore
from winml_dag.store.store import BlobDamaged

if TYPE_CHECKING:
    from winml_dag.engine.eta import Eta
    from winml_dag.engine.execute import Executor
    from winml_dag.pipeline.buildresult import BuildResult


@dataclass(frozen=True)
class Planned:
    """A build among others: how it is called, and its graph, or why there is none."""

    label: str
    graph: BuildGraph | WinmlDagError


@dataclass(frozen=True)
class Outcome:
    """What became of a build among others. ``error``: why it was not carried out, or not put in place; a stage that
    failed is in ``result``. Neither is there of one that was not begun because another had failed.
    """

    label: str
    result: BuildResult | None = None
    error: WinmlDagError | None = None

    @property
    def failed(self) -> bool:
        return self.result is None or self.result.failed or self.stopped

    @property
    def stopped(self) -> bool:
        """Whether stages of it were kept from running because another build had failed."""
        if self.result is None:
            return self.error is None
        if self.result.failed:
            return False
        # One that nobody wanted has no result.
        return any(view.status is Status.SKIPPED and view.result is not None for view in self.result.stages)

    @property
    def changed(self) -> bool:
        """Whether anything ran or was put in place."""
        result = self.result
        return result is not None and (
            result.materialised.changed or any(view.status is Status.RAN for view in result.stages)
        )


@dataclass(frozen=True)
class Census:
    """How many stages several builds have: one by one, and as one graph, there also by the name of the stage."""

    builds: int
    apart: int
    by_stage: Mapping[str, int]

    @property
    def stages(self) -> int:
        return sum(self.by_stage.values())


def merged(planned: Sequence[Planned]) -> Merged:
    """The graph of all builds that have one; the ids in it are those of each build behind its label."""
    graphs = [(each.label, each.graph) for each in planned if isinstance(each.graph, BuildGraph)]
    return merge([Part(label, graph.graph, graph.sources) for label, graph in graphs])


def census(planned: Sequence[Planned]) -> Census:
    """How much work *planned* are together."""
    return census_of(merged(planned))


def census_of(together: Merged) -> Census:
    """How much work *together* is. Which stages turn out to have the same inputs is not known before; of the rounds of
    optimize and analyze only the first is counted, since most are like it.
    """
    firsts = {node.id: node.stage.name for node in first_rounds(together)}
    by_stage = Counter(firsts.values())
    apart = sum(node_id in firsts for ids in together.ids for node_id in ids.values())
    return Census(len(together.ids), apart, dict(sorted(by_stage.items())))


def first_rounds(together: Merged) -> Iterator[Node]:
    """The nodes of *together* without further rounds of optimize and analyze."""
    return (node for node in together.graph.nodes if (round_of(node) or ("", 0))[1] == 0)


def build_all(
    planned: Sequence[Planned],
    store: LocalStore,
    options: BuildOptions,
    *,
    observer: Observer | None = None,
    executor: Executor | None = None,
    done: Callable[[Outcome], None] = lambda _: None,
    foretold: Callable[[Eta], None] | None = None,
) -> tuple[Outcome, ...]:
    """Bring the output folders of all *planned*, whose labels differ, up to date; *done* is told of each at its end.
    *foretold* is given what tells how long it will take, if anything runs.

    A build that fails keeps no other from going on, as long as *options* say so.

    Raises:
        KeyboardInterrupt: after children have been ended; what was put in place by then stays.
    """
    outcomes = _Builds(planned, store, options, observer or Silent(), executor, done, foretold).run()
    store.settle()
    return outcomes


@dataclass(frozen=True)
class _Sure:
    """A build of which nothing has to run. ``began``: when it was looked at, of ``time.monotonic``."""

    place: int
    graph: BuildGraph
    began: float
    results: tuple[StageResult, ...]


@dataclass
class _Running:
    """A build whose stages run among those of others. ``waits``: nodes of the common graph that have no result yet."""

    place: int
    label: str
    graph: BuildGraph
    began: float
    waits: set[str]
    results: dict[str, StageResult] = field(default_factory=dict)


class _Builds:
    """One run of several builds."""

    def __init__(
        self,
        planned: Sequence[Planned],
        store: LocalStore,
        options: BuildOptions,
        observer: Observer,
        executor: Executor | None,
        done: Callable[[Outcome], None],
        foretold: Callable[[Eta], None] | None,
    ) -> None:
        self._planned = planned
        self._store = store
        self._options = options
        self._observer = observer
        self._executor = executor
        self._done = done
        self._foretold = foretold
        self._outcomes: dict[int, Outcome] = {}
        # Those that are carried out alone, after the others.
        self._alone: list[int] = []
        self._accounts: dict[int, tuple[BuildGraph, tuple[StageResult, ...]]] = {}

    def run(self) -> tuple[Outcome, ...]:
        together: list[int] = []
        sure: list[_Sure] = []
        if self._store.asks_behind and not self._options.rebuild:
            whole = merged(self._planned)
            prefetch(whole.graph, whole.sources, self._store)
        for place, each in enumerate(self._planned):
            if isinstance(each.graph, WinmlDagError):
                self._finish(place, Outcome(each.label, error=each.graph))
            elif each.graph.folder is not None:
                # Its stages work in a folder of their own, and one run works in one.
                self._alone.append(place)
            elif isinstance(foreseen := self._foreseen(place, each.graph), _Sure):
                sure.append(foreseen)
            elif foreseen:
                together.append(place)
        self._bring(sure)
        for one in sure:
            self._settle_at_once(one)
        if together:
            self._run_together(together)
        # After the run, while which nothing of what it made would make room.
        for place, (graph, results) in self._accounts.items():
            note = settle_accounts(graph, results, self._store)
            if note and (result := self._outcomes[place].result):
                self._outcomes[place] = replace(self._outcomes[place], result=replace(result, cache_note=note))
        for place in self._alone:
            if self._options.keep_going or not any(outcome.failed for outcome in self._outcomes.values()):
                self._build_alone(place)
            else:
                self._finish(place, Outcome(self._planned[place].label))
        return tuple(self._outcomes[place] for place in range(len(self._planned)))

    def _foreseen(self, place: int, graph: BuildGraph) -> _Sure | bool:
        """All of a build, when it is reused; else whether there is something to run: not when it is refused."""
        began = time.monotonic()
        try:
            refuse_at_once(graph, self._store, self._options)
            scope = graph.summary.scope
            foreseen = foresee(graph.graph, graph.sources, self._store, scope=scope, rebuild=self._options.rebuild)
            if len(foreseen) == len(graph.graph.nodes):
                return _Sure(place, graph, began, foreseen)
            prepare_folder(graph.summary.output_dir)
        except WinmlDagError as error:
            self._finish(place, Outcome(self._planned[place].label, error=error))
            return False
        return True

    def _bring(self, sure: Sequence[_Sure]) -> None:
        """Have what goes into folders that are not there yet on this machine, side by side for all builds."""
        if self._store.asks_behind:
            fresh = [one for one in sure if not one.graph.summary.output_dir.exists()]
            results = [(one.graph, {result.node.id: result for result in one.results}) for one in fresh]
            self._store.bring([file for graph, by_id in results for file in needed_files(graph, by_id)])

    def _settle_at_once(self, one: _Sure) -> None:
        try:
            label = self._planned[one.place].label
            reuse_all(one.results, self._store, one.graph.summary.scope, _Labelled(self._observer, label))
            self._put(one.place, one.graph, one.results, one.began)
        except WinmlDagError as error:
            self._finish(one.place, Outcome(self._planned[one.place].label, error=error))

    def _run_together(self, places: Sequence[int]) -> None:
        from winml_dag.engine.schedule import RunOptions

        graphs = {place: graph for place in places if isinstance(graph := self._planned[place].graph, BuildGraph)}
        common = merged([self._planned[place] for place in graphs])
        began = time.monotonic()
        running = [
            _Running(place, self._planned[place].label, graph, began, set(ids.values()))
            for (place, graph), ids in zip(graphs.items(), common.ids, strict=True)
        ]
        remembered = {
            node_id: [remembered_name(running[at].graph.summary.scope, _own(running[at], own)) for at, own in readers]
            for node_id, readers in common.readers().items()
        }
        with self._store.scratch.open() as scratch:
            run_graph(
                common.graph,
                common.sources,
                (),
                self._store,
                scratch,
                RunOptions(
                    "",
                    self._options.jobs,
                    self._options.keep_going,
                    self._options.rebuild,
                    remembered,
                    common.order,
                    self._options.memory_bytes,
                ),
                observer=_Shared(self._observer, common, running, self._put_finished),
                executor=self._executor,
                timeout_seconds=self._options.stage_timeout_seconds,
                access=self._options.access,
                cluster=self._options.cluster,
                foretold=self._foretold,
            )

    def _put_finished(self, running: _Running) -> None:
        results = tuple(running.results[node.id] for node in running.graph.graph.nodes)
        self._put(running.place, running.graph, results, running.began)

    def _put(self, place: int, graph: BuildGraph, results: tuple[StageResult, ...], began: float) -> None:
        label = self._planned[place].label
        try:
            result = put_in_place(graph, None, results, self._store, self._options, began)
            self._accounts[place] = (graph, results)
            self._finish(place, Outcome(label, result))
        except BlobDamaged:
            # It is in quarantine now, so the stage that made it will be found wanting.
            self._alone.append(place)
        except WinmlDagError as error:
            self._finish(place, Outcome(label, error=error))

    def _build_alone(self, place: int) -> None:
        each = self._planned[place]
        assert isinstance(each.graph, BuildGraph)
        observer = _Labelled(self._observer, each.label)
        try:
            result = build(each.graph, self._store, self._options, observer=observer, executor=self._executor)
            self._finish(place, Outcome(each.label, result))
        except WinmlDagError as error:
            self._finish(place, Outcome(each.label, error=error))

    def _finish(self, place: int, outcome: Outcome) -> None:
        self._outcomes[place] = outcome
        self._done(outcome)


def _own(running: _Running, node_id: str) -> Node:
    return running.graph.graph.node(node_id)


class _Shared(PassingOn):
    """Tells *observer* of the common graph, and *finished* of each build when the last of its stages has a result."""

    def __init__(
        self, observer: Observer, common: Merged, running: Sequence[_Running], finished: Callable[[_Running], None]
    ) -> None:
        super().__init__(observer)
        self._readers = common.readers()
        self._running = running
        self._build_finished = finished
        self._begun: set[int] = set()

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None:
        for at, _ in self._readers[node.id]:
            if at not in self._begun:
                self._begun.add(at)
                self._running[at].began = time.monotonic()
        super().started(node, reason, estimate_seconds, progress)

    def finished(self, result: StageResult) -> None:
        super().finished(result)
        node_id = result.node.id
        # One that has been put in place is not looked at again, when a stage is decided anew for another that reads it.
        waiting = [(self._running[at], own) for at, own in self._readers[node_id] if self._running[at].waits]
        for number, (running, own) in enumerate(waiting):
            running.results[own] = _as_seen_from(_own(running, own), result, made_here=number == 0)
        for running, _ in waiting:
            if node_id in running.waits:
                running.waits.remove(node_id)
                if not running.waits:
                    self._build_finished(running)


def _as_seen_from(node: Node, result: StageResult, *, made_here: bool) -> StageResult:
    """*result* as that of *node* of one build. What ran once for several is told of as run by the first: the others
    found it, as they would have done one after the other; and its time is the first one's, also when it failed.
    """
    if not made_here and result.status is Status.FAILED:
        return replace(result, node=node, elapsed_seconds=0.0)
    if made_here or result.status is not Status.RAN or result.record is None:
        return replace(result, node=node)
    why = reason.found(result.record)
    return StageResult(node, Status.REUSED, why, result.cache_key, result.record)


class _Labelled(PassingOn):
    """Tells *observer* of a build that is carried out alone, as one of several."""

    def __init__(self, observer: Observer, label: str) -> None:
        super().__init__(observer)
        self._label = label

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None:
        super().started(self._labelled(node), reason, estimate_seconds, progress)

    def finished(self, result: StageResult) -> None:
        super().finished(replace(result, node=self._labelled(result.node)))

    def _labelled(self, node: Node) -> Node:
        return replace(node, id=f"{self._label}/{node.id}")
