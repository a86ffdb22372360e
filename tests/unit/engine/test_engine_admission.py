"""Parallel runs never exceed the capacity, and large ones do not starve."""

from __future__ import annotations

from dataclasses import dataclass

from engine_samples import properties
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.engine.resources import UNLIMITED, Admission, Allocation, Capacity, ReadyQueue, ResourceRequest

MB = 10**6


@dataclass
class Played:
    """Runs simulated in steps of one: start and end of each by name."""

    began: dict[str, int]
    ended: dict[str, int]

    def together(self, name: str) -> set[str]:
        """Return what ran in parallel with *name* at any time."""
        return {
            other
            for other in self.began
            if other != name and self.began[other] < self.ended[name] and self.began[name] < self.ended[other]
        }


def play(capacity: Capacity, runs: dict[str, tuple[ResourceRequest, int]]) -> Played:
    """Simulate *runs*, all ready from the start and prioritized in their order; each takes that many steps."""
    admission = Admission(capacity)
    dispatch: ReadyQueue[str] = ReadyQueue(admission, {}, {})
    for name, (need, _) in runs.items():
        dispatch.add(name, need, name)
    played, now, running = Played({}, {}), 0, dict[str, Allocation]()
    while len(dispatch) or running:
        while (found := dispatch.next(0.0)) is not None:
            name, need = found
            played.began[name], played.ended[name] = now, now + runs[name][1]
            running[name] = admission.take(need)
        assert running, "something can always begin when nothing runs"
        now = min(played.ended[name] for name in running)
        for name in [name for name in running if played.ended[name] == now]:
            admission.give_back(running.pop(name))
    return played


def of(memory: int) -> ResourceRequest:
    return ResourceRequest(memory * MB)


def test_large_run_waits_only_for_earlier_runs() -> None:
    """Without a reservation two of the small ones would always run, and it would start after the last of them."""
    small = {f"small {number}": (of(150), 3 + number % 2) for number in range(20)}
    runs = {"first": (of(150), 3), "second": (of(150), 4), "big": (of(200), 5), **small}
    played = play(Capacity(3, 300 * MB), runs)
    assert played.began["big"] == 4
    assert not played.together("big")


def test_small_runs_continue_beside_a_waiting_large_run() -> None:
    small = {f"small {number}": (of(20), 2) for number in range(6)}
    played = play(Capacity(2, 300 * MB), {"first": (of(200), 10), "big": (of(250), 10), **small})
    assert played.together("first") == {f"small {number}" for number in range(5)}
    assert played.began["big"] == 10


def test_memory_is_ignored_without_a_limit() -> None:
    assert (
        Capacity(2).taken(ResourceRequest(10 * MB))
        == Capacity(2, UNLIMITED).taken(ResourceRequest(20 * MB))
        == ResourceRequest()
    )


needs = st.builds(
    ResourceRequest,
    st.integers(0, 400 * MB),
    st.sampled_from([(), ("npu",), ("gpu",), ("npu", "gpu")]),
    st.booleans(),
)


@properties
@given(
    st.integers(1, 4),
    st.one_of(st.just(UNLIMITED), st.integers(1, 300 * MB)),
    st.lists(st.tuples(needs, st.integers(1, 9)), max_size=12),
)
def test_every_run_is_admitted_within_capacity(
    places: int, memory: int, wanted: list[tuple[ResourceRequest, int]]
) -> None:
    runs = {f"run {number}": each for number, each in enumerate(wanted)}
    played = play(Capacity(places, memory), runs)
    assert played.ended.keys() == runs.keys()
    for now in played.began.values():
        here = [runs[name][0] for name in runs if played.began[name] <= now < played.ended[name]]
        if len(here) == 1:
            continue
        assert len(here) <= places
        assert not any(need.alone for need in here)
        assert places == 1 or sum(need.memory_bytes for need in here) <= memory
        devices = [pool for need in here for pool in need.pools]
        assert len(devices) == len(set(devices))
