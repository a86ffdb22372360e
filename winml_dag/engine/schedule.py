"""The scheduler: decides every node as soon as its inputs are determined, and runs it as soon as a slot is free.

This is the main loop of a build. First it decides everything that can be decided: reuses settle at once and may make
further nodes decidable. Then it fills the slots with what must run. Then it waits for the next run to end, and starts
over.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from winml_dag.engine import events
from winml_dag.engine.eta import CostModel, Eta, chains, expected_work
from winml_dag.engine.events import Observer, Reason, Silent, StageResult, Status
from winml_dag.engine.exchange import Watch
from winml_dag.engine.graph import Graph
from winml_dag.engine.plan import BuildState, Reuse, Run, decide, refusal, remembered_name
from winml_dag.engine.resources import Admission, Allocation, Capacity, ReadyQueue
from winml_dag.engine.run import Damaged, RunOutcome, Runs
from winml_dag.engine.stage import Node, Stage
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.records import Record, cache_key
from winml_dag.store.store import Store

# If a stage's output is damaged again each time it is rebuilt, the disk is broken; it is not a lost blob.
_MOST_REMAKES = 3
# With thousands of results, writing each one to the store would take longer than many of them.
_SECONDS_BETWEEN_WRITES = 0.5


@dataclass(frozen=True)
class RunOptions:
    """How to run a graph; ``scope`` distinguishes builds in what is remembered of them.

    ``remembered``: by id, the names under which results of nodes shared by several builds are remembered instead.
    ``order``: by id, the priority of ready nodes, least first; without it, they run in the order in which they become
    ready. A chain that is long enough to determine the total time takes precedence over the order. ``memory_bytes``:
    what all concurrent runs may take; None: the memory of this machine, less a reserve.
    """

    scope: str
    jobs: int = 1
    keep_going: bool = False
    rebuild: bool = False
    remembered: Mapping[str, Sequence[str]] = field(default_factory=dict)
    order: Mapping[str, int] = field(default_factory=dict)
    memory_bytes: int | None = None

    def names(self, node: Node) -> Sequence[str]:
        """The names under which the result of *node* is remembered. Reasons compare with the entry of the first."""
        return self.remembered.get(node.id) or (remembered_name(self.scope, node),)


class Scheduler:
    """One run through one graph."""

    def __init__(
        self,
        graph: Graph,
        sources: Mapping[str, Artifact],
        store: Store,
        runs: Runs,
        options: RunOptions,
        observer: Observer | None = None,
        *,
        planned_results: Iterable[StageResult] = (),
        on_eta: Callable[[Eta], None] | None = None,
        admission: Admission | None = None,
    ) -> None:
        """Set up a run.

        *planned_results*: reuses that were decided a moment ago, with the same sources. *on_eta* receives the estimate
        of the remaining time, from the first run on. *admission*: the capacity of the machines of *runs*; without it,
        that of this machine, according to *options*.
        """
        self._graph = graph
        self._state = BuildState(graph, sources)
        self._store = store
        self._runs = runs
        self._options = options
        self._observer = observer or Silent()
        self._undecided = {node.id for node in graph.nodes}
        self._planned_results = {result.node.id: result for result in planned_results if result.status is Status.REUSED}
        # Nodes to decide. A node with unknown inputs is dropped and comes back when a maker of them settles, so each
        # node is checked as often as it has inputs, and the cost of a run is linear in the graph.
        self._candidates = deque(graph.nodes)
        self._admission = admission or Admission(Capacity.of_this_machine(options.jobs, options.memory_bytes))
        self._costs = CostModel(store, self._admission.capacity)
        self._to_run: ReadyQueue[tuple[Node, Run]] = ReadyQueue(self._admission, options.order, {})
        # By name, the record that was remembered last, and those not yet written to the store.
        self._lasts: dict[str, Record] = {}
        self._fresh: dict[str, str] = {}
        self._remembered_at = monotonic()
        self._on_eta = on_eta
        self._eta: Eta | None = None
        # By id, what each run holds.
        self._underway: dict[str, Allocation] = {}
        # Keys that are being made, each with the other nodes that need it.
        self._at_work: dict[str, list[Node]] = {}
        # Keys made by this run: --rebuild requires no more.
        self._made: set[str] = set()
        self._results: dict[str, StageResult] = {}
        # Keys whose use has not been written to the store yet.
        self._reused: list[str] = []
        self._remakes: Counter[str] = Counter()
        # By id, when the run of a node started and when it was last scheduled for a remake, as increasing numbers.
        self._moments = itertools.count()
        self._begun_at: dict[str, int] = {}
        self._remade_at: dict[str, int] = {}
        self._stopping = False

    def run(self) -> tuple[StageResult, ...]:
        """Run the whole graph; returns one result for each node, in the graph's order.

        Raises:
            BlobDamaged: for a blob that a stage outside of this graph output.
            KeyboardInterrupt: after all running stages have been killed; what had finished before is recorded.
        """
        names = {node.id: self._options.names(node)[0] for node in self._graph.nodes}
        self._lasts.update(self._store.latest(names.values()))
        self._estimate(names)
        try:
            with self._runs:
                self._loop()
        finally:
            self._store.remember(self._fresh)
        return tuple(self._results[node.id] for node in self._graph.nodes)

    def _estimate(self, names: Mapping[str, str]) -> None:
        """Determine the long chains. With one slot that matters only for the estimate of the remaining time."""
        if self._admission.capacity.slots == 1 and self._on_eta is None:
            return
        work = expected_work(self._graph, names, self._lasts, self._costs)
        self._to_run = ReadyQueue(self._admission, self._options.order, chains(self._graph, work.seconds))
        self._eta = Eta(work, self._admission, self._runs.now)

    def _loop(self) -> None:
        self._decide_ready()
        if self._on_eta is not None and self._eta is not None:
            self._on_eta(self._eta)
        while self._to_run or self._underway:
            self._fill_slots()
            if self._underway:
                self._await_ends()
        self._close()

    def _fill_slots(self) -> None:
        while True:
            left = 0.0 if self._eta is None else self._eta.work_left_seconds
            found = self._to_run.next(left)
            if found is None:
                return
            (node, decision), request = found
            if (same := self._at_work.get(decision.key)) is not None:
                # That node is decided again, and found, when this run has ended.
                same.append(node)
                continue
            self._at_work[decision.key] = []
            self._start(node, decision, self._admission.take(request))

    def _start(self, node: Node, decision: Run, allocation: Allocation) -> None:
        inputs = {slot: self._state.artifacts[name] for slot, name in node.inputs.items()}
        watch = Watch()
        self._begun_at[node.id] = next(self._moments)
        if self._eta is not None:
            self._eta.began(node.id)
        self._observer.started(node, decision.reason, decision.estimate_seconds, watch.read)
        self._runs.start(node, decision, inputs, watch)
        self._underway[node.id] = allocation

    def _await_ends(self) -> None:
        for ended in self._runs.wait():
            self._admission.give_back(self._underway.pop(ended.node.id))
            self._take(ended.node, ended.decision, ended.outcome)
        # For all ended runs at once: records on other machines are requested in one round trip.
        self._decide_ready()

    def _decide_ready(self) -> None:
        """Decide every node whose inputs are determined; each reuse may make further ones decidable."""
        wave = 0
        while self._candidates and not self._stopping:
            if not wave:
                wave = len(self._candidates)
                self._look_up(self._candidates)
            wave -= 1
            node = self._candidates.popleft()
            if (sure := self._planned_results.pop(node.id, None)) is not None and sure.record is not None:
                self._undecided.discard(node.id)
                self._settle_reuse(node, Reuse(sure.record, sure.reason))
                continue
            key_inputs = self._state.key_inputs(node) if node.id in self._undecided else None
            if key_inputs is None:
                continue
            self._undecided.discard(node.id)
            name = self._options.names(node)[0]
            inputs = self._state.inputs_and_sources(node)
            last = self._lasts.get(name)
            decision = decide(last, key_inputs, self._store, inputs=inputs, rebuild=self._options.rebuild)
            if isinstance(decision, Run) and decision.key in self._made:
                decision = decide(last, key_inputs, self._store, inputs=inputs)
            if isinstance(decision, Reuse):
                self._settle_reuse(node, decision)
            else:
                self._want(node, decision)
        self._store.used(self._reused)
        self._reused.clear()
        if monotonic() - self._remembered_at > _SECONDS_BETWEEN_WRITES:
            self._store.remember(self._fresh)
            self._fresh.clear()
            self._remembered_at = monotonic()

    def _look_up(self, candidates: Iterable[Node]) -> None:
        """Look up records that may be on other machines in one batch, before they are needed one by one."""
        if self._store.has_remotes and not self._options.rebuild:
            wanted = (
                node for node in candidates if node.id in self._undecided and node.id not in self._planned_results
            )
            self._state.prefetch(wanted, self._store)

    def _reassess(self, stage: Stage) -> None:
        """Determine again what waiting runs of *stage* need."""
        waiting = [(node, run) for node, run in self._to_run.items() if node.stage.name == stage.name]
        self._to_run.remove(node.id for node, _ in waiting)
        for node, run in waiting:
            self._want(node, run)

    def _want(self, node: Node, decision: Run) -> None:
        read = sum(self._state.artifacts[name].size for name in node.inputs.values())
        request = self._admission.placed(self._costs.request(node, decision.basis, read), node)
        self._to_run.add(node.id, request, (node, decision))

    def _take(self, node: Node, decision: Run, outcome: RunOutcome) -> None:
        # Nodes that need the same key: if this run failed, the next of them tries it.
        self._undecide(self._at_work.pop(decision.key, ()))
        if isinstance(outcome, StageResult) and outcome.status is Status.FAILED:
            self._finish(outcome)
        elif self._inputs_moved(node, decision.key):
            self._reopen([node])
        elif isinstance(outcome, Damaged):
            self._remake(node, outcome.file)
        elif isinstance(outcome, Reuse):
            self._settle_reuse(node, outcome)
        else:
            assert outcome.record is not None
            self._made.add(decision.key)
            if self._costs.learn(node, outcome.record):
                self._reassess(node.stage)
            self._remember(self._options.names(node), outcome.record)
            if not self._refuse(node, outcome.reason, outcome.record, outcome.elapsed_seconds):
                self._settle(node, outcome.record)
                self._finish(outcome)

    def _remember(self, names: Iterable[str], record: Record) -> None:
        for name in names:
            self._lasts[name], self._fresh[name] = record, record.cache_key

    def _undecide(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self._undecided.add(node.id)
            self._candidates.append(node)

    def _refuse(self, node: Node, why: Reason, record: Record, elapsed_seconds: float | None = 0.0) -> bool:
        """Whether *record* is not acceptable for *node*, which then has failed."""
        error = refusal(node, record)
        if error is not None:
            self._finish(StageResult.refused(node, why, record, error, elapsed_seconds))
        return error is not None

    def _settle_reuse(self, node: Node, decision: Reuse) -> None:
        self._reused.append(decision.record.cache_key)
        names = self._options.names(node)
        # If it is up to date, the first name already has this record.
        self._remember(names[decision.reason is events.UP_TO_DATE :], decision.record)
        if self._refuse(node, decision.reason, decision.record):
            return
        self._settle(node, decision.record)
        # A node that ran in this run and is later found again (its reader met a damaged blob elsewhere) counts as run.
        before = self._results.get(node.id)
        if before is None or before.record is None or before.cache_key != decision.record.cache_key:
            self._finish(StageResult(node, Status.REUSED, decision.reason, decision.record.cache_key, decision.record))

    def _settle(self, node: Node, record: Record) -> None:
        self._state.settle(node, record)
        self._candidates.extend(self._graph.readers.get(node.id, ()))

    def _finish(self, result: StageResult) -> None:
        self._results[result.node.id] = result
        if self._eta is not None:
            ended = self._eta.failed if result.status is Status.FAILED else self._eta.ended
            ended(result.node.id)
        if result.status is Status.FAILED and not self._options.keep_going:
            self._stopping = True
            self._to_run.clear()
        self._observer.finished(result)

    def _inputs_moved(self, node: Node, key: str) -> bool:
        """Whether an input was rebuilt with other content while *node* ran, so that its result is not valid here."""
        if not self._remakes:
            return False
        key_inputs = self._state.key_inputs(node)
        return key_inputs is None or cache_key(key_inputs) != key

    def _remake(self, node: Node, file: FileEntry) -> None:
        """A blob that *node* reads is damaged: decide its maker, and everything that depends on it, again."""
        maker = self._maker_of(node, file)
        if self._remade_at.get(maker.id, -1) > self._begun_at[node.id]:
            # Found missing before it was remade for another reader. Any number of blobs can vanish at once together
            # with the remote that has them, so only losses after a remake are counted.
            self._reopen([node])
            return
        self._remakes[maker.id] += 1
        if self._remakes[maker.id] > _MOST_REMAKES:
            self._finish(
                StageResult(
                    node,
                    Status.FAILED,
                    events.lost([file]),
                    error=f"Its input {file.name} is damaged in the cache again each time it is made.",
                    advice="Check the disk, or choose another cache folder with --cache-dir.",
                )
            )
            return
        makers = {maker.id, *self._makers_of_lost(node)}
        self._remade_at.update(dict.fromkeys(makers, next(self._moments)))
        # Running nodes are checked when they end; failed ones are not retried within one run.
        settled = self._underway.keys() | set(self._failed())
        behind = set().union(*map(self._graph.downstream, makers))
        reopened = ({node.id} | makers | behind) - settled
        self._to_run.remove(reopened)
        # They also stop waiting for an equal run: its end would decide, and run, them a second time.
        for waiting in self._at_work.values():
            waiting[:] = [other for other in waiting if other.id not in reopened]
        self._reopen([other for other in self._graph.nodes if other.id in reopened])

    def _reopen(self, nodes: Iterable[Node]) -> None:
        """Decide *nodes* again.

        A node that ran in this run keeps its result: finding it again later does not make it reused.
        """
        for node in nodes:
            self._state.forget(node)
            if node.id in self._results and self._results[node.id].status is Status.REUSED:
                del self._results[node.id]
            self._undecide([node])

    def _makers_of_lost(self, node: Node) -> Iterator[str]:
        """The ids of the makers of all inputs of *node* that the store already reports as missing."""
        for name in node.inputs.values():
            if name in self._graph.makers and self._store.missing(self._state.artifacts[name].files):
                yield self._graph.makers[name].id

    def _maker_of(self, node: Node, file: FileEntry) -> Node:
        # Sources are never fetched, so a source that happens to have the same bytes is not the damaged one.
        made = (name for name in node.inputs.values() if name in self._graph.makers)
        for name in made:
            if file in self._state.artifacts[name].files:
                return self._graph.makers[name]
        raise BlobDamaged(file, "damaged")  # of a stage that is not in this partition of the graph

    def _failed(self) -> list[str]:
        return [node_id for node_id, result in self._results.items() if result.status is Status.FAILED]

    def _close(self) -> None:
        """Record why each node that was not decided, or decided but not started, was skipped."""
        failed = self._failed()
        for node in self._graph.nodes:
            if node.id not in self._results:
                needs = tuple(maker.id for maker in self._graph.needs(node) if maker.id not in self._state.records)
                why = events.blocked(needs) if needs else events.stopped(failed)
                self._finish(StageResult(node, Status.SKIPPED, why))
