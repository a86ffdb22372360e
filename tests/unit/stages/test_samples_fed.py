"""Timed samples: the time to produce them, separate from their use."""

from __future__ import annotations

import numpy as np
import pytest

from winml_dag.stages.samples import samples as module
from winml_dag.stages.samples.samples import Fed, Feed, Samples


def test_the_time_of_making_samples_is_told_apart_from_that_of_using_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def clock() -> float:
        return now

    def make(number: int) -> Feed:
        nonlocal now
        now += 10
        return {"x": np.array([number])}

    monkeypatch.setattr(module.time, "perf_counter", clock)
    fed = Fed(Samples.one_by_one("npz", 3, make))
    for _ in range(2):
        for _ in fed.samples:
            now += 1000
    assert fed.seconds == 2 * 3 * 10


def test_the_digest_is_that_of_the_arrays_of_one_pass() -> None:
    fed, same, other = (
        Fed(Samples.one_by_one(kind, 2, lambda number, add=add: {"x": np.array([number + add])}))
        for kind, add in (("npz", 0), ("npy", 0), ("npz", 1))
    )
    assert len([feed for one in (fed, fed, same, other) for feed in one.samples]) == 8
    assert fed.digest == same.digest != other.digest
