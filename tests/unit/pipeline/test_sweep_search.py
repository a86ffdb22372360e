"""Concurrent searches: what they try, when they continue with float, and where they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from winml_dag.pipeline.sweep.result import CellResult, CellStatus
from winml_dag.pipeline.sweep.search import FLOAT, SIXTEEN, Keeping, PrecisionSearch, Ranked, search_together
from winml_dag.recipe.goal import Search
from winml_dag.recipe.load import LoadedRecipe
from winml_dag.recipe.schema import Recipe
from winml_dag.recipe.sweep import Cell

RECIPE = Recipe.model_validate({"model": "a.onnx", "precision": "w8a8"})
CELL = Cell("a/w8a8", {}, "a/w8a8", Path("sweep.yaml"), LoadedRecipe(Path("sweep.yaml"), RECIPE, "yaml"))
NODES = tuple(f"node{place}" for place in range(20))
BOTH = (Keeping(SIXTEEN, "uint16"), Keeping(FLOAT))


class Trials:
    """Carries out trials by recording them."""

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []
        self.kept: dict[str, int] = {}

    def __call__(self, cells: Sequence[Cell]) -> list[CellResult]:
        self.rounds.append([cell.name for cell in cells])
        for cell in cells:
            assert cell.recipe is not None
            quant: Any = cell.recipe.recipe.quant
            self.kept[cell.name] = len(quant.node_overrides) + len(quant.nodes_to_exclude or ())
        return [CellResult(cell.name, cell.values, cell.folder, CellStatus.BUILT) for cell in cells]


def in_float(least: int) -> Callable[[CellResult], bool]:
    """Return a bound that is met with *least* nodes in float, and never with 16 bits."""
    return lambda result: (
        result.name.endswith("in32") and int(result.name.partition("+")[2].removesuffix("in32")) >= least
    )


def test_float_is_tried_where_not_even_all_nodes_in_16_bits_do() -> None:
    one, trials = PrecisionSearch(CELL, in_float(3), Ranked(NODES, BOTH)), Trials()
    search = Search()
    made = search_together([one], search, trials)
    assert [name.partition("+")[2] for round_ in trials.rounds for name in round_] == [
        *("1in16", "2in16", "4in16", "8in16", "16in16", "20in16"),
        *("1in32", "2in32", "4in32", "3in32"),
    ]
    found = one.result(search)
    assert (found.kept, found.fewest, found.nodes, found.trial) == (FLOAT, 3, NODES[:3], "a/w8a8+3in32")
    assert found.why == "with the worst 3 of 20 nodes in float they hold, with 2 not (10 trials)"
    assert {result.trial_of for _, result in made.values()} == {"a/w8a8"}
    # Every trial keeps as many nodes as its name says.
    assert all(int(name.partition("+")[2].partition("in")[0]) == count for name, count in trials.kept.items())


@pytest.mark.parametrize(
    ("search", "tried", "why"),
    [
        (
            Search(most_trials=3),
            ["1in16", "2in16", "4in16"],
            "with the worst 4 of 20 nodes in 16 bits they do not hold; search.most_trials ended the search (3 trials)",
        ),
        (
            Search(most_trials=6),
            ["1in16", "2in16", "4in16", "8in16", "16in16", "20in16"],
            "with the worst 20 of 20 nodes in 16 bits they do not hold (6 trials)",
        ),
        (
            Search(nodes_at_most=2),
            ["1in16", "2in16", "1in32", "2in32"],
            "with the worst 2 of 20 nodes in float they do not hold (4 trials)",
        ),
    ],
    ids=["in the midst", "at the end of 16 bits", "few nodes"],
)
def test_limits_end_a_search_and_that_is_said(search: Search, tried: list[str], why: str) -> None:
    one, trials = PrecisionSearch(CELL, in_float(3), Ranked(NODES, BOTH)), Trials()
    search_together([one], search, trials)
    assert [name.partition("+")[2] for round_ in trials.rounds for name in round_] == tried
    found = one.result(search)
    assert (found.fewest, found.trial, found.why) == (None, None, why)


def test_searches_share_rounds_and_trials() -> None:
    """For two goals with different bounds on one cell."""
    sixteen = Ranked(NODES, BOTH[:1])
    counts = {f"a/w8a8+{count}in16": count for count in range(1, 21)}
    searches = [
        PrecisionSearch(CELL, lambda result, least=least: counts[result.name] >= least, sixteen) for least in (2, 6)
    ]
    trials = Trials()
    search_together(searches, Search(), trials)
    assert [[name.partition("+")[2] for name in round_] for round_ in trials.rounds] == [
        ["1in16"],
        ["2in16"],
        ["4in16"],
        ["8in16"],
        ["6in16"],
        ["5in16"],
    ]
    assert [one.result(Search()).fewest for one in searches] == [2, 6]


def test_what_cannot_be_ranked_is_not_searched() -> None:
    one, trials = PrecisionSearch(CELL, in_float(1), "it is of several components"), Trials()
    assert search_together([one], Search(), trials) == {}
    assert one.result(Search()).why == "nothing was searched: it is of several components"
