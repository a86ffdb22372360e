"""Dry run of several builds as one graph: what would run, and how long that would take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from winml_dag.engine.eta import CostModel, expected_work, seconds_left
from winml_dag.engine.events import Status
from winml_dag.engine.merge import Merged
from winml_dag.engine.plan import prefetch, remembered_name
from winml_dag.engine.resources import Capacity
from winml_dag.errors import WinmlDagError
from winml_dag.pipeline.build import Census, census_of, first_rounds, merged, plan
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.buildresult import BuildResult, StageView
from winml_dag.pipeline.plan_cache import Planned
from winml_dag.store.store import Store


@dataclass(frozen=True)
class Foreseen:
    """The result of a dry run.

    Attributes:
        results: those of builds that can be planned, by label; ``errors``: why others cannot.
        statuses: the number of stages of the merged graph by status.
        seconds: the estimated duration; ``never_timed``: the number of stages to run for which no similar record
            exists.
    """

    results: Mapping[str, BuildResult]
    errors: Mapping[str, WinmlDagError]
    census: Census
    statuses: Mapping[Status, int]
    seconds: float
    never_timed: int

    @property
    def to_run(self) -> int:
        return self.statuses.get(Status.RAN, 0)


def look_ahead(planned: Sequence[Planned], store: Store, capacity: Capacity, *, rebuild: bool) -> Foreseen:
    """Dry-run *planned*, whose labels are unique, with *capacity*. Nothing runs or is written."""
    graphs = {each.label: each.graph for each in planned if isinstance(each.graph, BuildGraph)}
    common = merged(planned)
    if not rebuild:
        prefetch(common.graph, common.sources, store)
    results = {label: plan(graph, store, rebuild=rebuild) for label, graph in graphs.items()}
    views = _views(common, tuple(results.values()))
    firsts = [views[node.id] for node in first_rounds(common) if node.id in views]
    to_run = frozenset(node_id for node_id, view in views.items() if view.status is Status.RAN)
    return Foreseen(
        results=results,
        errors={each.label: each.graph for each in planned if isinstance(each.graph, WinmlDagError)},
        census=census_of(common),
        statuses=Counter(view.status for view in firsts),
        seconds=_seconds(common, tuple(graphs.values()), to_run, store, capacity) if to_run else 0.0,
        never_timed=_never_timed(firsts, store),
    )


def _views(common: Merged, results: Sequence[BuildResult]) -> dict[str, StageView]:
    """Return the status of each stage of the merged graph, from the first build that has it."""
    found: dict[str, StageView] = {}
    for result, ids in zip(results, common.ids, strict=True):
        for view in (*result.stages, *result.like_before):
            if view.result is not None:
                found.setdefault(ids[view.id], view)
    return found


def _seconds(
    common: Merged, graphs: Sequence[BuildGraph], to_run: frozenset[str], store: Store, capacity: Capacity
) -> float:
    """Return the estimated time to run the nodes *to_run*."""
    names = {
        node_id: remembered_name(graphs[place].summary.scope, graphs[place].graph.node(own))
        for node_id, ((place, own), *_) in common.readers().items()
    }
    work = expected_work(common.graph, names, store.latest(names.values()), CostModel(store, capacity))
    return seconds_left(common.graph, {node_id: work.seconds[node_id] for node_id in to_run}, capacity.places)


def _never_timed(views: Sequence[StageView], store: Store) -> int:
    """Return how many of the *views* to run have no recorded duration, nor has any other run of their stage."""
    unknown = Counter(view.stage for view in views if view.status is Status.RAN and view.elapsed_seconds is None)
    return sum(number for stage, number in unknown.items() if not store.records_of(stage, 1))
