"""Search for mixed precision: if a low-precision cell misses a bound on quality, keep its worst nodes in a higher one.

As few nodes are kept as possible. The stage sensitivity, which reads the same inputs as quantize, ranks them. Every
trial is a cell: it shares all stages before quantize with the cell it started from, and repeating the search finds all
stages in the cache.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from winml_dag.canonical import JsonValue
from winml_dag.engine.stage import Skip
from winml_dag.errors import StoreError, WinmlDagError
from winml_dag.pipeline.assess.measurement import Measurement, MeasurementGraph, MeasurementJob
from winml_dag.pipeline.plan import Build
from winml_dag.pipeline.run import Driver, Ended
from winml_dag.pipeline.sweep.result import CellResult, SearchResult
from winml_dag.recipe.goal import Search
from winml_dag.recipe.load import LoadedRecipe
from winml_dag.recipe.precision import SIXTEEN_BITS
from winml_dag.recipe.schema import Quant
from winml_dag.stages.artifact_types import SENSITIVITY_FILE
from winml_dag.stages.sensitivity import RELIEF, SensitivityConfig
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.request import Request
    from winml_dag.recipe.sweep import Cell
    from winml_dag.store.store import Store


SIXTEEN = "16 bits"
FLOAT = "float"
_FIELDS = {SIXTEEN: "node_overrides", FLOAT: "nodes_to_exclude"}


@dataclass(frozen=True)
class Keeping:
    """The precision of kept nodes (:data:`SIXTEEN`, :data:`FLOAT`), and the integer type used for 16 bits."""

    kept: str
    wide: str = ""

    @property
    def suffix(self) -> str:
        """The suffix of a cell's name, after the number of kept nodes."""
        return "in16" if self.kept == SIXTEEN else "in32"

    @property
    def field(self) -> str:
        """The field of ``quant`` that lists the nodes."""
        return _FIELDS[self.kept]

    @property
    def words(self) -> str:
        return RELIEF[self.field]


def keepings_of(build: Build, search: Search) -> tuple[Keeping, ...] | str:
    """Return the precisions in which *search* may keep nodes of *build*, first choice first.

    If nodes cannot be searched, returns the reason as a sentence. 16 bits come first where the provider mixes widths: a
    node in float changes how its neighbours are quantized. They apply to activations only, so where weights are the
    problem, only float helps.
    """
    if build.parts or build.summary.origin == "stages":
        return "it is of several components or of stages of its own, and nodes are ranked of one model alone"
    if build.declared is not None:
        return "its recipe has custom stages between built-in ones"
    quantize, validate = build.configs["quantize"], build.configs["validate"]
    if isinstance(quantize, Skip):
        return f"nothing is quantized: {quantize.reason}"
    if isinstance(validate, Skip):
        return f"nodes are ranked on the samples of validate: {validate.reason}"
    first = quantize[0]
    wide = SIXTEEN_BITS.get(str(first.quant.activation_type), "")
    has_room = first.quant.mode == "static" and bool(wide) and first.target is not None and first.target.mixes_widths
    if search.keep == "16-bit" and not has_room:
        return "search.keep is 16-bit, and nodes with 16 bits cannot stand among these"
    sixteen = (Keeping(SIXTEEN, wide),) if has_room and search.keep != "float" else ()
    return (*sixteen, Keeping(FLOAT)) if search.keep != "16-bit" else sixteen


def with_kept(loaded: LoadedRecipe, nodes: Sequence[str], keeping: Keeping) -> LoadedRecipe:
    """Return the recipe *loaded* with *nodes* kept as in *keeping*, in addition to those that it already keeps."""
    recipe = loaded.recipe
    compiled = recipe.compile
    nested = compiled.quant_config if recipe.quant is None and compiled is not None else None
    quant = nested or recipe.quant or Quant()
    kept: JsonValue
    if keeping.kept == FLOAT:
        kept = list(dict.fromkeys([*(quant.nodes_to_exclude or ()), *nodes]))
    else:
        own = {name: types.model_dump(mode="json", exclude_none=True) for name, types in quant.node_overrides.items()}
        kept = {**own, **{name: {**own.get(name, {}), "activation_type": keeping.wide} for name in nodes}}
    changed = Quant.from_dict({**quant.to_dict(), keeping.field: kept})
    update: dict[str, object] = {"quant": changed}
    if nested is not None and compiled is not None:
        update = {"compile": compiled.model_copy(update={"quant_config": changed})}
    return replace(loaded, recipe=recipe.model_copy(update=update))


# How many of the worst nodes to keep next: a pure function of the results so far.
#
# Quality need not grow with every node that is kept. So the result is a number that holds while one less does not, both
# tried. If quality does grow, it is the smallest such number; otherwise it may not be.


def next_counts(tried: Mapping[int, bool], most: int, method: Literal["bisect", "all"]) -> tuple[int, ...]:
    """Return the counts from 1 to *most* to try next; none when the result is determined.

    *tried*: whether the bounds hold, by the counts tried so far, including 0. ``bisect`` doubles the count until one
    holds, since few nodes are usually enough, and then halves the interval: about twice the logarithm of the answer in
    all.
    """
    if method == "all":
        return tuple(count for count in range(1, most + 1) if count not in tried)
    below, above = between(tried)
    if above is None:
        return () if below >= most else (min(max(1, 2 * below), most),)
    return () if above - below <= 1 else ((below + above) // 2,)


def between(tried: Mapping[int, bool]) -> tuple[int, int | None]:
    """Return the smallest count that holds, None without one, after the largest count below it that does not."""
    above = min((count for count, holds in tried.items() if holds), default=None)
    below = max((count for count, holds in tried.items() if not holds and (above is None or count < above)), default=0)
    return below, above


@dataclass(frozen=True)
class Ranked:
    """The nodes of a cell, worst first, and the precisions in which they can be kept, first choice first."""

    nodes: tuple[str, ...]
    keepings: tuple[Keeping, ...]

    def most(self, keeping: Keeping, search: Search) -> int:
        """Return how many nodes may be kept as in *keeping*: of float ones, at least one must remain to quantize."""
        possible = len(self.nodes) - (keeping.kept == FLOAT)
        return possible if search.nodes_at_most is None else min(possible, search.nodes_at_most)


@dataclass
class PrecisionSearch:
    """A search in progress. ``holds``: whether a trial meets the bounds on quality.

    Attributes:
        ranked: the ranked nodes, or why they cannot be ranked.
        tried: for each precision that was tried, whether the bounds hold by the number of kept nodes; 0 is the cell
            itself.
    """

    cell: Cell
    holds: Callable[[CellResult], bool]
    ranked: Ranked | str = ""
    tried: list[dict[int, bool]] = field(default_factory=lambda: [{0: False}])

    @property
    def keeping(self) -> Keeping:
        """The precision being tried."""
        assert isinstance(self.ranked, Ranked)
        return self.ranked.keepings[len(self.tried) - 1]

    def wanted(self, search: Search) -> tuple[int, ...]:
        """Return the numbers of nodes to try next, kept as in :attr:`keeping`."""
        left = None if search.most_trials is None else search.most_trials - self._trials
        if isinstance(self.ranked, str) or left == 0:
            return ()
        counts = self._next(self.ranked, search)
        if not counts and between(self.tried[-1])[1] is None and len(self.tried) < len(self.ranked.keepings):
            self.tried.append({0: False})
            counts = self._next(self.ranked, search)
        return counts[:left]

    def trial(self, count: int) -> Cell:
        """Return the cell in which the worst *count* nodes are kept."""
        assert isinstance(self.ranked, Ranked)
        assert self.cell.recipe is not None
        return replace(
            self.cell,
            name=self._named(self.cell.name, count),
            folder=self._named(self.cell.folder, count),
            recipe=with_kept(self.cell.recipe, self.ranked.nodes[:count], self.keeping),
        )

    def result(self, search: Search) -> SearchResult:
        """Return the result of the search."""
        if isinstance(self.ranked, str):
            return SearchResult(self.cell.name, "", 0, {0: False}, why=f"nothing was searched: {self.ranked}")
        nodes, tried, keeping = self.ranked.nodes, self.tried[-1], self.keeping
        found = SearchResult(self.cell.name, keeping.kept, len(nodes), dict(sorted(tried.items())))
        below, above = between(tried)
        trials = f"({counted(self._trials, 'trial')})"
        limited = "; search.most_trials ended the search"
        worst = f"of {len(nodes)} nodes {keeping.words}"
        if above is None:
            ended = "" if below >= self.ranked.most(keeping, search) else limited
            return replace(found, why=f"with the worst {below} {worst} they do not hold{ended} {trials}")
        held = replace(found, nodes=nodes[:above], trial=self._named(self.cell.name, above))
        which = f"with the worst {above} {worst} they hold, with {below} not"
        if above - below > 1:
            return replace(held, why=f"{which}{limited} {trials}")
        return replace(held, fewest=above, why=f"{which} {trials}")

    def _next(self, ranked: Ranked, search: Search) -> tuple[int, ...]:
        return next_counts(self.tried[-1], ranked.most(self.keeping, search), search.method)

    def _named(self, whole: str, count: int) -> str:
        return f"{whole}+{count}{self.keeping.suffix}"

    @property
    def _trials(self) -> int:
        return sum(len(tried) - 1 for tried in self.tried)


def search_together(
    searches: Sequence[PrecisionSearch],
    search: Search,
    carry_out: Callable[[Sequence[Cell]], Sequence[CellResult]],
) -> Mapping[str, tuple[Cell, CellResult]]:
    """Run all *searches* to their end, one round of trials of all at a time; returns every trial by name."""
    made: dict[str, tuple[Cell, CellResult]] = {}
    while True:
        trials = [(one, count, one.trial(count)) for one in searches for count in one.wanted(search)]
        if not trials:
            return made
        # Several goals may search the same cell.
        new = {cell.name: (one, cell) for one, _, cell in trials if cell.name not in made}
        results = carry_out([cell for _, cell in new.values()])
        for (one, cell), result in zip(new.values(), results, strict=True):
            made[cell.name] = (cell, replace(result, trial_of=one.cell.name))
        for one, count, cell in trials:
            one.tried[-1][count] = one.holds(made[cell.name][1])


def rank_cells(
    cells: Mapping[str, Cell], request: Callable[[Cell], Request], search: Search, driver: Driver
) -> Mapping[str, Ranked | str]:
    """Rank the nodes of each of *cells* by the quality that quantizing them costs; returns rankings, or why not."""
    planned = {name: _planned(request(cell), search, driver.store) for name, cell in cells.items()}
    graphs = {name: one[0] for name, one in planned.items() if not isinstance(one, str)}
    # Stages before the ranking belong to the cells, which --rebuild has already rebuilt.
    driver = replace(driver, options=replace(driver.options, rebuild=False))
    results = driver.run({name: MeasurementJob(graph, driver.store) for name, graph in graphs.items()})
    return {
        name: one if isinstance(one, str) else _ranked(results[name], one[1], driver.store)
        for name, one in planned.items()
    }


def _planned(request: Request, search: Search, store: Store) -> tuple[MeasurementGraph, tuple[Keeping, ...]] | str:
    """Return the graph of *request*'s build up to quantize, with the ranking stage instead of quantize."""
    # Imported here: searches are rare.
    from winml_dag.pipeline.plan import plan_build
    from winml_dag.pipeline.resolve import build_of

    try:
        build = build_of(request, store.folder, download=False)
        keepings = keepings_of(build, search)
        if isinstance(keepings, str):
            return keepings
        given = request.overrides.section("quant")
        if taken := next((keeping.field for keeping in keepings if keeping.field in given), None):
            return f"quant.{taken} was given on the command line, and would replace what is searched for"
        ranks = dict.fromkeys(
            ("quantize", "compile", "validate", "finalize"), Skip("nodes are ranked, and nothing is built")
        )
        config = SensitivityConfig.of(build.configs["quantize"][0], build.configs["validate"])
        only = replace(build.with_configs(**ranks), sensitivity=config, sdk=None, save_ranges=None)
        graph = plan_build(only, store.fingerprints)
    except WinmlDagError as error:
        return str(error)
    return MeasurementGraph(graph.graph, graph.sources, build.summary.scope), keepings


def _ranked(ended: Ended[Measurement], keepings: tuple[Keeping, ...], store: Store) -> Ranked | str:
    if isinstance(ended, WinmlDagError):
        return str(ended)
    assert ended is not None
    results = ended.results
    if failed := next((result for result in results if result.record is None), None):
        return f"{failed.node.id} failed: {failed.error}" if failed.error else f"{failed.node.id}: {failed.reason}"
    record = next(result.record for result in results if result.node.stage.name == "sensitivity")
    assert record is not None
    try:
        with tempfile.TemporaryDirectory(prefix="winml-dag-ranking-", ignore_cleanup_errors=True) as name:
            store.fetch(record.outputs["report"], Path(name))
            report = json.loads((Path(name) / SENSITIVITY_FILE).read_text(encoding="utf-8"))
            return Ranked(tuple(str(node["node"]) for node in report["nodes"]), keepings)
    except (StoreError, OSError, ValueError, KeyError, TypeError) as error:
        return f"the ranking of its nodes cannot be read from the cache: {error}"
