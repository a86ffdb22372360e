"""Searches for nodes to keep: what they try, when they continue with float, where they end; recipes of trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.pipeline.sweep.result import CellResult, CellStatus
from winml_dag.pipeline.sweep.search import (
    FLOAT,
    SIXTEEN,
    Keeping,
    PrecisionSearch,
    Ranked,
    between,
    next_counts,
    search_together,
    with_kept,
)
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
        self.rounds: list[list[str]] = []  # what is kept, as in the names of cells
        self.kept: dict[str, int] = {}

    def __call__(self, cells: Sequence[Cell]) -> list[CellResult]:
        self.rounds.append([cell.name.partition("+")[2] for cell in cells])
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


def test_float_is_tried_when_16_bits_for_all_nodes_fail() -> None:
    one, trials = PrecisionSearch(CELL, in_float(3), Ranked(NODES, BOTH)), Trials()
    search = Search()
    made = search_together([one], search, trials)
    assert [name for round_ in trials.rounds for name in round_] == [
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
def test_search_limits_are_applied_and_reported(search: Search, tried: list[str], why: str) -> None:
    one, trials = PrecisionSearch(CELL, in_float(3), Ranked(NODES, BOTH)), Trials()
    search_together([one], search, trials)
    assert [name for round_ in trials.rounds for name in round_] == tried
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
    assert trials.rounds == [[f"{count}in16"] for count in (1, 2, 4, 8, 6, 5)]
    assert [one.result(Search()).fewest for one in searches] == [2, 6]


def test_unrankable_cell_is_not_searched() -> None:
    one, trials = PrecisionSearch(CELL, in_float(1), "it is of several components"), Trials()
    assert search_together([one], Search(), trials) == {}
    assert one.result(Search()).why == "nothing was searched: it is of several components"


# Whether the bounds are met, by number of nodes kept, from 1 on: any course of quality.
COURSES = st.lists(st.booleans(), min_size=1, max_size=60)


def searched(holds: list[bool], method: str) -> dict[int, bool]:
    tried = {0: False}
    while counts := next_counts(tried, len(holds), method):  # type: ignore[arg-type]
        assert not tried.keys() & set(counts)
        tried |= {count: holds[count - 1] for count in counts}
    return tried


@given(COURSES)
def test_bisect_result_holds_and_one_fewer_does_not(holds: list[bool]) -> None:
    tried = searched(holds, "bisect")
    below, above = between(tried)
    if above is None:
        assert tried[len(holds)] is False
    else:
        assert (tried[above], tried[above - 1], below) == (True, False, above - 1)


@given(st.integers(1, 400), st.data())
def test_bisect_finds_the_fewest_in_logarithmic_trials(most: int, data: st.DataObject) -> None:
    fewest = data.draw(st.integers(1, most + 1))
    tried = searched([count >= fewest for count in range(1, most + 1)], "bisect")
    assert between(tried)[1] == (fewest if fewest <= most else None)
    assert len(tried) - 1 <= 2 * math.ceil(math.log2(min(fewest, most) + 1)) + 1


@given(COURSES)
def test_strategy_all_tries_every_count_at_once(holds: list[bool]) -> None:
    assert next_counts({0: False}, len(holds), "all") == tuple(range(1, len(holds) + 1))
    tried = searched(holds, "all")
    smallest = next((place for place, each in enumerate(holds, 1) if each), None)
    assert between(tried)[1] == smallest


def trial(recipe: dict[str, Any], keeping: Keeping, *nodes: str) -> Any:
    loaded = LoadedRecipe(Path("sweep.yaml"), Recipe.model_validate(recipe), "yaml")
    return with_kept(loaded, nodes, keeping).recipe.to_dict()


@pytest.mark.parametrize(
    ("recipe", "changed"),
    [
        (
            {"model": "a.onnx", "precision": "w8a8"},
            {"quant": {"node_overrides": {"x": {"activation_type": "uint16"}, "y/*": {"activation_type": "uint16"}}}},
        ),
        (
            {"quant": {"samples": 4, "node_overrides": {"x": {"weight_type": "int8"}, "z": {"weight_type": "int8"}}}},
            {
                "quant": {
                    "samples": 4,
                    "node_overrides": {
                        "x": {"weight_type": "int8", "activation_type": "uint16"},
                        "z": {"weight_type": "int8"},
                        "y/*": {"activation_type": "uint16"},
                    },
                }
            },
        ),
        (
            {"compile": {"quant_config": {"samples": 4}}},
            {
                "compile": {
                    "quant_config": {
                        "samples": 4,
                        "node_overrides": {"x": {"activation_type": "uint16"}, "y/*": {"activation_type": "uint16"}},
                    }
                }
            },
        ),
    ],
    ids=["precision alone", "overrides of its own", "the quantization of compile"],
)
def test_nodes_in_16_bits_are_merged_into_recipe(recipe: dict[str, Any], changed: dict[str, Any]) -> None:
    assert trial(recipe, BOTH[0], "x", "y/*") == {**recipe, **changed}


def test_float_nodes_are_added_to_exclusions() -> None:
    found = trial({"quant": {"nodes_to_exclude": ["head", "x"], "mode": "dynamic"}}, BOTH[1], "x", "y")
    assert found == {"quant": {"nodes_to_exclude": ["head", "x", "y"], "mode": "dynamic"}}


def test_float_search_leaves_one_node_quantized() -> None:
    ranked = Ranked(tuple("abcde"), ())
    assert [ranked.most(keeping, Search()) for keeping in BOTH] == [5, 4]
