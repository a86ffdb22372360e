"""The next number of nodes to keep: the answer was tried, and so was the neighbouring number that fails."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from winml_dag.pipeline.sweep.search import between, next_counts

# Whether the bounds are met, by number of nodes kept, from 1 on: any course of quality.
COURSES = st.lists(st.booleans(), min_size=1, max_size=60)


def searched(holds: list[bool], method: str) -> dict[int, bool]:
    tried = {0: False}
    while counts := next_counts(tried, len(holds), method):  # type: ignore[arg-type]
        assert not tried.keys() & set(counts)
        tried |= {count: holds[count - 1] for count in counts}
    return tried


@given(COURSES)
def test_what_bisect_finds_holds_and_one_less_does_not(holds: list[bool]) -> None:
    tried = searched(holds, "bisect")
    below, above = between(tried)
    if above is None:
        assert tried[len(holds)] is False
    else:
        assert (tried[above], tried[above - 1], below) == (True, False, above - 1)


@given(st.integers(1, 400), st.data())
def test_where_quality_grows_bisect_finds_the_fewest_with_few_trials(most: int, data: st.DataObject) -> None:
    fewest = data.draw(st.integers(1, most + 1))
    tried = searched([count >= fewest for count in range(1, most + 1)], "bisect")
    assert between(tried)[1] == (fewest if fewest <= most else None)
    assert len(tried) - 1 <= 2 * math.ceil(math.log2(min(fewest, most) + 1)) + 1


@given(COURSES)
def test_all_tries_every_number_at_once(holds: list[bool]) -> None:
    assert next_counts({0: False}, len(holds), "all") == tuple(range(1, len(holds) + 1))
    tried = searched(holds, "all")
    smallest = next((place for place, each in enumerate(holds, 1) if each), None)
    assert between(tried)[1] == smallest
