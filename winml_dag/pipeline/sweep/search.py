"""The search for mixed precision: where a cell of low precision misses a bound on quality, its worst nodes are kept in
a higher one, as few as it takes.

Which nodes are worst is told by the stage sensitivity, which sees what quantize sees. Every trial is a cell: it shares
all stages before quantize with the cell that it began with, and a second search finds all of its stages in the cache.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import StoreError, WinmlDagError
from winml_dag.pipeline.measurement import MeasurementGraph
from winml_dag.pipeline.sweep.counts import between, next_counts
from winml_dag.pipeline.sweep.kept import Keeping, keeping_of, with_kept
from winml_dag.pipeline.sweep.measuring import Running, run_together
from winml_dag.pipeline.sweep.result import CellResult, SearchResult
from winml_dag.recipe.goal import Search
from winml_dag.stages.sensitivity import REPORT_FILE
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.engine.events import StageResult
    from winml_dag.pipeline.request import Request
    from winml_dag.recipe.sweep import Cell
    from winml_dag.store.local import LocalStore


@dataclass(frozen=True)
class Ranked:
    """The nodes of a cell, worst first, and in what they can be kept."""

    nodes: tuple[str, ...]
    keeping: Keeping


@dataclass
class Hunt:
    """One search that is going on. ``holds``: whether a trial keeps the bounds on quality.

    Attributes:
        tried: by how many nodes are kept, whether the bounds hold; 0 is ``cell``.
        ranked: or why its nodes cannot be ranked.
    """

    cell: Cell
    holds: Callable[[CellResult], bool]
    ranked: Ranked | str = ""
    tried: dict[int, bool] = field(default_factory=lambda: {0: False})

    def wanted(self, search: Search) -> tuple[int, ...]:
        """The numbers of nodes to try next."""
        if isinstance(self.ranked, str):
            return ()
        counts = next_counts(self.tried, self._most(self.ranked, search), search.method)
        return counts if search.most_trials is None else counts[: max(0, search.most_trials - self._trials)]

    def result(self, search: Search) -> SearchResult:
        """What it came to."""
        if isinstance(self.ranked, str):
            return SearchResult(self.cell.name, "", 0, dict(self.tried), why=f"nothing was searched: {self.ranked}")
        keeping, nodes = self.ranked.keeping, self.ranked.nodes
        found = SearchResult(self.cell.name, keeping.kept, len(nodes), dict(sorted(self.tried.items())))
        below, above = between(self.tried)
        trials = f"({counted(self._trials, 'trial')})"
        if above is None:
            ended = "" if below >= self._most(self.ranked, search) else ", which is where search.most_trials ended it"
            return replace(
                found,
                why=f"with the worst {below} of {len(nodes)} nodes {keeping.words} they do not hold{ended} {trials}",
            )
        held = replace(found, nodes=nodes[:above], trial=trial_name(self.cell.name, above))
        which = f"with the worst {above} of {len(nodes)} nodes {keeping.words} they hold"
        if above - below > 1:
            return replace(held, why=f"{which}, and with {below} not; search.most_trials ended it {trials}")
        return replace(held, fewest=above, why=f"{which}, and with {below} not {trials}")

    @property
    def _trials(self) -> int:
        return len(self.tried) - 1

    @staticmethod
    def _most(ranked: Ranked, search: Search) -> int:
        possible = ranked.keeping.most(len(ranked.nodes))
        return possible if search.nodes_at_most is None else min(possible, search.nodes_at_most)


def trial_name(cell: str, count: int) -> str:
    """What the trial of *cell*, or its folder, is called in which the worst *count* nodes are kept."""
    return f"{cell}+{count}"


def trial_cell(cell: Cell, ranked: Ranked, count: int) -> Cell:
    assert cell.recipe is not None
    return replace(
        cell,
        name=trial_name(cell.name, count),
        folder=trial_name(cell.folder, count),
        recipe=with_kept(cell.recipe, ranked.nodes[:count], ranked.keeping),
    )


def hunt_together(
    hunts: Sequence[Hunt],
    search: Search,
    carry_out: Callable[[Sequence[Cell]], Sequence[CellResult]],
) -> Mapping[str, tuple[Cell, CellResult]]:
    """Carry all *hunts* on to their end, a round of trials of all at a time; every trial that was made, by name.

    Raises:
        KeyboardInterrupt: after children have been ended.
    """
    made: dict[str, tuple[Cell, CellResult]] = {}
    while True:
        asked = [(hunt, count) for hunt in hunts for count in hunt.wanted(search)]
        if not asked:
            return made
        # Several goals may search one cell.
        new = {name: hunt for hunt, count in asked if (name := trial_name(hunt.cell.name, count)) not in made}
        cells = [_cell(hunt, count) for hunt, count in asked]
        cells = list({cell.name: cell for cell in cells if cell.name in new}.values())
        for cell, result in zip(cells, carry_out(cells), strict=True):
            made[cell.name] = (cell, replace(result, trial_of=new[cell.name].cell.name))
        for hunt, count in asked:
            hunt.tried[count] = hunt.holds(made[trial_name(hunt.cell.name, count)][1])


def _cell(hunt: Hunt, count: int) -> Cell:
    assert isinstance(hunt.ranked, Ranked)
    return trial_cell(hunt.cell, hunt.ranked, count)


def rank_cells(
    cells: Mapping[str, Cell], request: Callable[[Cell], Request], search: Search, running: Running
) -> Mapping[str, Ranked | str]:
    """By the name of each of *cells*, its nodes by what quantizing them costs, or why they cannot be ranked.

    Raises:
        KeyboardInterrupt: after children have been ended.
    """
    planned = {name: _planned(request(cell), search, running.store) for name, cell in cells.items()}
    graphs = {name: one[0] for name, one in planned.items() if not isinstance(one, str)}
    results = run_together(graphs, running, jobs=running.jobs)
    return {
        name: one if isinstance(one, str) else _ranked(results[name], one[1], running.store)
        for name, one in planned.items()
    }


def _planned(request: Request, search: Search, store: LocalStore) -> tuple[MeasurementGraph, Keeping] | str:
    """The graph of the build that *request* means up to where quantize would come, and the stage that ranks there."""
    # Imported here: a search is rare.
    from winml_dag.pipeline.plan import plan_build
    from winml_dag.pipeline.resolve import build_of
    from winml_dag.pipeline.sections import sensitivity_config
    from winml_dag.pipeline.variant import Build, Skip

    try:
        build = build_of(request, store.folder, download=False)
        keeping = keeping_of(build, search)
        if isinstance(keeping, str):
            return keeping
        if keeping.field in (request.overrides.quant_settings or {}):
            return f"quant.{keeping.field} was given on the command line, and takes the place of what is searched for"
        assert isinstance(build, Build)
        assert not isinstance(build.quantize, Skip)
        assert not isinstance(build.validate, Skip)
        ranks = Skip("nodes are ranked, and nothing is built")
        config = sensitivity_config(build.quantize[0], build.validate)
        only = replace(
            build,
            sensitivity=config,
            quantize=ranks,
            compile=ranks,
            validate=ranks,
            finalize=ranks,
            sdk=None,
            save_ranges=None,
        )
        graph = plan_build(only, store.fingerprints)
    except WinmlDagError as error:
        return str(error)
    return MeasurementGraph(graph.graph, graph.sources, build.summary.scope), keeping


def _ranked(results: Sequence[StageResult], keeping: Keeping, store: LocalStore) -> Ranked | str:
    if failed := next((result for result in results if result.record is None), None):
        return f"{failed.node.id} failed: {failed.error}" if failed.error else f"{failed.node.id}: {failed.reason}"
    record = next(result.record for result in results if result.node.stage.name == "sensitivity")
    assert record is not None
    try:
        with tempfile.TemporaryDirectory(prefix="winml-dag-ranking-", ignore_cleanup_errors=True) as name:
            store.fetch(record.outputs["report"], Path(name))
            report = json.loads((Path(name) / REPORT_FILE).read_text(encoding="utf-8"))
            return Ranked(tuple(str(node["node"]) for node in report["nodes"]), keeping)
    except (StoreError, OSError, ValueError, KeyError, TypeError) as error:
        return f"the ranking of its nodes cannot be read from the cache: {error}"
