"""Subsets of a sweep's cells: by filters, and by shards."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_samples import made_up

from winml_dag.errors import UsageError
from winml_dag.recipe.sweep import Cell, Shard, Sweep, filtered, in_shard, parse_shard, shards, sweep_of_files

AXES = {"model": ("bert", "resnet", "resnext"), "precision": ("fp32", "w8a8", "w8a16"), "quant.samples": ("10", "50")}
SWEEP = made_up(AXES, left_out=["bert/fp32/10"])


def names(cells: tuple[Cell, ...]) -> list[str]:
    return [cell.name for cell in cells]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("model=bert", 6),
        ("model=bert, res*", 18),
        ("model=res*", 12),
        ("precision!=fp32", 12),
        ("precision!=w8*", 6),
        ("quant.samples=50", 9),
        ("bert/w8a8/10", 1),
        ("bert/w8a8/10,resnet/*", 7),
        ("*/fp32/*", 6),
    ],
)
def test_a_filter_takes_labels_patterns_and_names(text: str, number: int) -> None:
    taken = filtered(SWEEP, [text])
    assert len(taken) == number
    assert list(taken) == [cell for cell in SWEEP.cells if cell in taken], "left out or not"


@settings(max_examples=40, deadline=None)
@given(
    axis=st.sampled_from(sorted(AXES)),
    labels=st.data(),
)
def test_filters_narrow_and_a_refusal_is_the_rest(axis: str, labels: st.DataObject) -> None:
    chosen = labels.draw(st.lists(st.sampled_from(AXES[axis]), min_size=1, max_size=len(AXES[axis]) - 1, unique=True))
    taken, rest = filtered(SWEEP, [f"{axis}={','.join(chosen)}"]), filtered(SWEEP, [f"{axis}!={','.join(chosen)}"])
    assert sorted(names(taken) + names(rest)) == sorted(names(SWEEP.cells))
    assert {cell.values[axis] for cell in taken} == set(chosen)
    # Each separately, in any order: the intersection.
    other = labels.draw(st.sampled_from(["model=bert", "precision!=fp32", "*/10"]))
    both = [name for name in names(taken) if name in names(filtered(SWEEP, [other]))]
    first = f"{axis}={','.join(chosen)}"
    if both:
        assert names(filtered(SWEEP, [first, other])) == names(filtered(SWEEP, [other, first])) == both
    else:
        with pytest.raises(UsageError, match="leaves none of the 18 cells"):
            filtered(SWEEP, [first, other])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle=bert", "there is no axis 'modle'; did you mean 'model'?"),
        ("model=bret", "'bret' is not a value of model; did you mean 'bert'?"),
        ("model=", "'' is not a value of model"),
        ("brt/w8a8/10", "there is no cell 'brt/w8a8/10'; did you mean 'bert/w8a8/10'?"),
        ("bert", "there is no cell 'bert'"),
    ],
)
def test_a_filter_with_a_slip_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        filtered(SWEEP, [text])
    assert message in str(caught.value)


def test_recipes_of_their_own_are_chosen_by_the_names_of_their_files(tmp_path: Path) -> None:
    for name in ("a=1", "b, c", "b"):
        (tmp_path / f"{name}.json").write_text("{}", encoding="utf-8")
    sweep = sweep_of_files([tmp_path])
    assert names(filtered(sweep, ["a=1"])) == ["a=1"]
    assert names(filtered(sweep, ["b, c"])) == ["b, c"]
    assert names(filtered(sweep, ["a*,b"])) == ["a=1", "b"]


@settings(max_examples=50, deadline=None)
@given(
    models=st.integers(1, 7),
    rest=st.integers(1, 9),
    count=st.integers(1, 12),
    seed=st.randoms(use_true_random=False),
)
def test_every_cell_is_in_one_shard_and_no_shard_is_much_larger_than_its_share(
    models: int, rest: int, count: int, seed: random.Random
) -> None:
    axes = {"model": [f"m{place}" for place in range(models)], "x": [f"x{place}" for place in range(rest)]}
    cells = made_up(axes).cells
    parts = shards(cells, count)
    assert len(parts) == count
    assert sorted(names(tuple(chain.from_iterable(parts)))) == sorted(names(cells))
    assert max(map(len, parts)) <= 1.5 * len(cells) / count + 1
    # Whatever the order in which a system lists files, every machine gets the same shards.
    shuffled = seed.sample(cells, len(cells))
    assert [set(names(part)) for part in shards(shuffled, count)] == [set(names(part)) for part in parts]
    # No more exports are split than there are shard boundaries.
    divided = sum(len({cell.values["model"] for cell in part}) for part in parts) - models
    assert divided <= count - 1


def test_cells_with_one_export_stay_together_when_that_is_nearly_even() -> None:
    cells = made_up({"model": [f"m{place:02}" for place in range(50)], "x": "abcdef"}).cells
    parts = shards(cells, 8)
    assert sum(len({cell.values["model"] for cell in part}) for part in parts) == 50
    assert {len(part) for part in parts} <= {36, 42}


def test_a_shard_keeps_the_order_and_the_first_tells_of_what_is_left_out() -> None:
    found = [in_shard(SWEEP.cells, Shard(number, 3)) for number in (1, 2, 3)]
    assert sorted(names(tuple(chain.from_iterable(found)))) == sorted(names(SWEEP.cells))
    assert all(list(part) == [cell for cell in SWEEP.cells if cell in part] for part in found)
    assert [name for name in names(found[0]) if name == "bert/fp32/10"]


def test_recipes_of_their_own_stay_together_by_what_they_export(tmp_path: Path) -> None:
    for place, model in enumerate("abab"):
        recipe: Mapping[str, object] = {"model": model, "quant": {"samples": place + 1}}
        (tmp_path / f"{place}.json").write_text(json.dumps(recipe), encoding="utf-8")
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    sweep: Sweep = sweep_of_files([tmp_path])
    assert [names(part) for part in shards(sweep.cells, 2)] == [["0", "2"], ["1", "3", "broken"]]


@pytest.mark.parametrize("text", ["9/8", "0/8", "1/0", "-1/2", "1", "a/b", "1/2/3", "", "1/99999"])
def test_there_are_only_shards_that_there_are(text: str) -> None:
    assert str(parse_shard("3/8")) == "3/8"
    with pytest.raises(UsageError):
        parse_shard(text)
