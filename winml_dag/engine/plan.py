"""Decide whether each node runs or is reused, and plan a whole graph without running anything."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import takewhile

from winml_dag.engine import events
from winml_dag.engine.events import NOT_KNOWN, Inputs, Reason, StageResult, Status
from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import Node, key_inputs_of
from winml_dag.errors import StageError
from winml_dag.store.artifact import Artifact
from winml_dag.store.records import KeyInputs, Record, cache_key
from winml_dag.store.store import Store

# The store reads this many in one statement.
_AT_ONCE = 500


@dataclass(frozen=True)
class Reuse:
    """The outputs are those of *record*; nothing needs to run."""

    record: Record
    reason: Reason


@dataclass(frozen=True)
class Run:
    """The stage must run. ``basis``: the record of its last run, under this name or this key."""

    key: str
    key_inputs: KeyInputs
    reason: Reason
    basis: Record | None

    @property
    def estimate_seconds(self) -> float | None:
        return None if self.basis is None else self.basis.elapsed_seconds


def decide(
    last: Record | None,
    key_inputs: KeyInputs,
    store: Store,
    *,
    inputs: Inputs = NOT_KNOWN,
    rebuild: bool = False,
) -> Reuse | Run:
    """Reuse the recorded result for *key_inputs*, or return why the stage must run.

    *last* is the previous result, with which the reason compares. With *inputs*, the reason can name files.
    """
    key = cache_key(key_inputs)
    if rebuild:
        # Do not ask the store: each lookup could take a round trip to a remote.
        return Run(key, key_inputs, events.REBUILD, last)
    record = last if last is not None and last.cache_key == key else store.record(key)
    basis = record or last
    if record is None:
        why = events.FIRST_BUILD if last is None else events.changed(last, key_inputs, inputs)
        return Run(key, key_inputs, why, basis)
    if gone := store.missing(record.files()):
        return Run(key, key_inputs, events.lost(gone, has_remotes=store.has_remotes), basis)
    if last is not None and last.cache_key == key:
        return Reuse(record, events.UP_TO_DATE)
    return Reuse(record, events.found(record, in_remote=store.came_from_remote(key)))


def refusal(node: Node, record: Record) -> StageError | None:
    """Why the result in *record* is not acceptable for *node*; None if it is.

    This check is not part of the key: a rejected result stays in the store, and a node with a weaker check can use it.
    """
    if not node.check:
        return None
    module, _, name = node.check.partition(":")
    try:
        getattr(import_module(module), name)(node.config, record.metrics)
    except StageError as error:
        return error
    return None


def remembered_name(scope: str, node: Node) -> str:
    """The name under which a node's result is remembered: the same stage of the same build, independent of its key."""
    return f"{scope}\n{node.id}"


class BuildState:
    """What has been determined about a graph so far: artifacts by name, and the record of each finished node by id.

    The key of a stage is determined as soon as the digests of its inputs are. Digests come from records, so the bytes
    of intermediates need not be on this machine.
    """

    def __init__(self, graph: Graph, sources: Mapping[str, Artifact]) -> None:
        self.graph = graph
        self.artifacts = dict(sources)
        self.records: dict[str, Record] = {}
        # Only of nodes that have not settled: used in a prefetch and again in a decision. Each keeps the hash of its
        # config, which is half of the cost.
        self._key_inputs: dict[str, KeyInputs] = {}

    def key_inputs(self, node: Node) -> KeyInputs | None:
        """None while an input is unknown."""
        inputs = self.inputs(node)
        if len(inputs) < len(node.inputs):
            return None
        digests = {slot: artifact.digest for slot, artifact in inputs.items()}
        found = self._key_inputs.get(node.id)
        if found is None or found.inputs != digests:
            found = self._key_inputs[node.id] = key_inputs_of(node, digests)
        return found

    def inputs(self, node: Node) -> dict[str, Artifact]:
        """The inputs of *node* determined so far, by slot."""
        return {slot: self.artifacts[name] for slot, name in node.inputs.items() if name in self.artifacts}

    def inputs_and_sources(self, node: Node) -> Inputs:
        """The same with the sources, which have the user's names of files."""
        sources = {slot: self.graph.sources[name] for slot, name in node.inputs.items() if name in self.graph.sources}
        return Inputs(self.inputs(node), sources)

    def settle(self, node: Node, record: Record) -> None:
        self.records[node.id] = record
        self._key_inputs.pop(node.id, None)
        for slot, artifact in record.outputs.items():
            self.artifacts[node.output(slot)] = artifact

    def assume(self, node: Node, last: Record | None) -> bool:
        """Assume that outputs declared as likely unchanged are those of *last*, the previous result of *node*.

        Without *last*, assume that such an output equals the input in the slot of that name. Returns whether anything
        was assumed.
        """
        before = self.inputs(node) if last is None else last.outputs
        found = {node.output(slot): before[slot] for slot in node.stage.likely_unchanged if slot in before}
        self.artifacts.update(found)
        return bool(found)

    def forget(self, node: Node) -> None:
        self.records.pop(node.id, None)
        for slot in node.stage.outputs:
            self.artifacts.pop(node.output(slot), None)

    def unknown_needs(self, node: Node) -> tuple[str, ...]:
        """The ids of the nodes whose outputs *node* still waits for."""
        return tuple(maker.id for maker in self.graph.needs(node) if maker.id not in self.records)

    def prefetch(self, nodes: Iterable[Node], store: Store, seen: Container[str] = ()) -> dict[str, Record | None]:
        """Look up the records of those *nodes* whose keys are determined in remotes, all at once.

        Nodes in *seen* are skipped. Returns the record, or None, by the id of each node that was looked up.
        """
        keys = {
            node.id: cache_key(key_inputs)
            for node in nodes
            if node.id not in seen and (key_inputs := self.key_inputs(node)) is not None
        }
        found = store.prefetch_records(list(dict.fromkeys(keys.values()))) if keys else {}
        return {node_id: found.get(key) for node_id, key in keys.items()}


def prefetch(graph: Graph, sources: Mapping[str, Artifact], store: Store) -> None:
    """Look up in remotes every record of *graph* that can be reached without a run.

    This takes about as many round trips as the graph is deep, instead of one per node. It costs nothing without a
    remote.
    """
    if not store.has_remotes:
        return
    state = BuildState(graph, sources)
    nodes: Iterable[Node] = graph.nodes
    seen: set[str] = set()
    while looked_up := state.prefetch(nodes, store, seen):
        seen.update(looked_up)
        settled = [(graph.node(node_id), record) for node_id, record in looked_up.items() if record is not None]
        for node, record in settled:
            state.settle(node, record)
        nodes = [reader for node, _ in settled for reader in graph.readers.get(node.id, ())]


def plan_graph(
    graph: Graph,
    sources: Mapping[str, Artifact],
    store: Store,
    *,
    scope: str,
    rebuild: bool = False,
    explain: bool = False,
) -> tuple[StageResult, ...]:
    """One result for each node, in the graph's order; nothing is run or written.

    A node downstream of one that would run has no key yet. It is listed as ``ran``, with a reason that says what it
    waits for, and may be reused after all if the earlier stage outputs the same bytes as before. Only outputs declared
    as likely unchanged are assumed to be so.

    *explain*: reasons also name the nearest record, and the stages at the root of what a stage waits for. That requires
    a search through the records of each stage, so a build omits it.
    """
    if not rebuild:
        prefetch(graph, sources, store)
    return tuple(_walk(graph, sources, store, scope, rebuild=rebuild, explain=explain))


def dry_run(
    graph: Graph, sources: Mapping[str, Artifact], store: Store, *, scope: str, rebuild: bool = False
) -> tuple[StageResult, ...]:
    """The results of :func:`plan_graph` before the first node that would run; one per node if none would."""
    results = _walk(graph, sources, store, scope, rebuild=rebuild, explain=False)
    return tuple(takewhile(lambda result: result.status is Status.REUSED, results))


def _walk(
    graph: Graph, sources: Mapping[str, Artifact], store: Store, scope: str, *, rebuild: bool, explain: bool
) -> Iterator[StageResult]:
    state = BuildState(graph, sources)
    explained = _Explanations(state, store) if explain else None
    assumed: dict[str, tuple[str, ...]] = {}
    # In batches: nodes far downstream of the first one that runs are not looked up.
    for start in range(0, len(graph.nodes), _AT_ONCE):
        some = graph.nodes[start : start + _AT_ONCE]
        lasts = store.latest([remembered_name(scope, node) for node in some])
        for node in some:
            last = lasts.get(remembered_name(scope, node))
            result = _planned(node, state, store, last, rebuild)
            makers = [name for maker in graph.needs(node) for name in assumed.get(maker.id, ())]
            assumes = tuple(dict.fromkeys(makers)) if result.cache_key else ()
            why = result.reason if explained is None else explained.of(node, result.reason, last)
            yield replace(result, assumes=assumes, reason=why) if assumes or explained else result
            may_be_as_before = result.status is Status.RAN and result.cache_key and node.stage.likely_unchanged
            goes_on = may_be_as_before and state.assume(node, last)
            assumed[node.id] = (*assumes, node.id) if goes_on else assumes


def _planned(node: Node, state: BuildState, store: Store, last: Record | None, rebuild: bool) -> StageResult:
    key_inputs = state.key_inputs(node)
    if key_inputs is None:
        estimate = None if last is None else last.elapsed_seconds
        why = events.REBUILD if rebuild else events.waits(state.unknown_needs(node))
        return StageResult(node, Status.RAN, why, elapsed_seconds=estimate)
    decision = decide(last, key_inputs, store, inputs=state.inputs_and_sources(node), rebuild=rebuild)
    if isinstance(decision, Reuse):
        state.settle(node, decision.record)
        if (refused := refusal(node, decision.record)) is not None:
            return StageResult.refused(node, decision.reason, decision.record, refused)
        return StageResult(node, Status.REUSED, decision.reason, decision.record.cache_key, decision.record)
    return StageResult(node, Status.RAN, decision.reason, decision.key, elapsed_seconds=decision.estimate_seconds)


class _Explanations:
    """Additional explanations of decisions that a build omits."""

    def __init__(self, state: BuildState, store: Store) -> None:
        # Imported here, as below: a build explains nothing further.
        from winml_dag.engine.diff import NearRecords

        self._state = state
        self._near = NearRecords(store)
        # By the id of a waiting stage: the stages that run for their own reason.
        self._roots: dict[str, tuple[str, ...]] = {}

    def of(self, node: Node, why: Reason, last: Record | None) -> Reason:
        """*why* with additional explanations; *last* is the previous result of *node*."""
        inputs = self._state.inputs_and_sources(node)
        if why.kind == "waits":
            roots = [root for name in why.names for root in self._roots.get(name, (name,))]
            self._roots[node.id] = tuple(dict.fromkeys(roots))
            from winml_dag.engine.diff import changes_between

            changes = () if last is None else changes_between(last, _as_far_as_known(node, last, inputs), inputs)
            return events.waits(why.names, changes, self._roots[node.id])
        key_inputs = self._state.key_inputs(node)
        if why.kind not in ("first build", "changed") or key_inputs is None:
            return why
        # The first input is what a stage works on, such as the model.
        nearest = self._near.nearest(key_inputs, inputs, last, next(iter(node.inputs), None))
        if nearest is None:
            return why
        return events.never_like_this(nearest) if last is None else replace(why, nearest=nearest)


def _as_far_as_known(node: Node, last: Record, inputs: Inputs) -> KeyInputs:
    """The key inputs of *node*, with those of *last* for inputs that are still unknown."""
    digests = {slot: artifact.digest for slot, artifact in inputs.artifacts.items()}
    as_before = {slot: digest for slot, digest in last.key_inputs.inputs.items() if slot in node.inputs}
    return key_inputs_of(node, {**as_before, **digests})
