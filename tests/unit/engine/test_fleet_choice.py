"""Which worker of a fleet gets a run: the least busy one that may have it, found without a look at all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from engine_samples import stage
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.engine.admission import Capacity, Need
from winml_dag.engine.cluster.fleet import Fleet, PlacedNeed, SeatTicket
from winml_dag.engine.stage import Node

GB = 1 << 30
NODE = Node(
    "work", replace(stage("work"), work="winml_dag.stages.work:work", config="winml_dag.stages.work:Config"), {}, {}
)


@dataclass(frozen=True)
class Machine:
    number: int
    places: int = 1
    memory_bytes: int = 16 * GB
    can: bool = True

    @property
    def address(self) -> str:
        return f"tcp://{self.number}"

    @property
    def host(self) -> str:
        return self.address

    def differs(self, node: Node) -> str:  # noqa: ARG002 - all nodes here are alike
        return "" if self.can else "it has no such device"


def fleet_of(machines: Sequence[Machine]) -> Fleet:
    fleet = Fleet(Capacity(1, GB))
    fleet.staff(machines)
    return fleet


def need_of(fleet: Fleet, memory_bytes: int) -> PlacedNeed:
    need = fleet.placed(Need(memory_bytes), NODE)
    assert isinstance(need, PlacedNeed)
    return need


machines = st.lists(
    st.builds(
        lambda places, memory, can: (places, memory * GB, can),
        st.integers(1, 3),
        st.sampled_from([1, 2, 4, 8]),  # what a run needs is rounded to 1/256 of these: so whole GB stay as they are
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
).map(lambda told: [Machine(number, *each) for number, each in enumerate(told)])


@given(machines, st.lists(st.one_of(st.integers(1, 8), st.none()), max_size=40), st.randoms(use_true_random=False))
def test_a_run_gets_the_least_busy_worker_that_has_room_for_it(
    machines: list[Machine], steps: list[int | None], chance
) -> None:
    """A number is a run that needs so many GB, None one that ends."""
    fleet = fleet_of(machines)
    runs: dict[SeatTicket, tuple[int, int]] = {}
    for step in steps:
        if step is None:
            if runs:
                ticket = chance.choice(list(runs))
                del runs[ticket]
                fleet.give_back(ticket)
            continue
        need = need_of(fleet, step * GB)
        most = max((machine.memory_bytes for machine in machines if machine.can), default=0)
        able = [machine for machine in machines if machine.can and machine.memory_bytes >= min(step * GB, most)]
        taken = {
            machine.number: [gb for number, gb in runs.values() if number == machine.number] for machine in machines
        }
        free = [
            machine
            for machine in able
            if not taken[machine.number]
            or (
                len(taken[machine.number]) < machine.places
                and sum(taken[machine.number]) + step <= machine.memory_bytes // GB
            )
        ]
        assert fleet.fits(need) == (bool(free) or not able)
        if free:
            ticket = fleet.take(need)
            assert isinstance(ticket, SeatTicket)
            assert ticket.seat is not None
            worker = ticket.seat.worker
            assert isinstance(worker, Machine)
            least = min(len(taken[machine.number]) / machine.places for machine in free)
            assert worker in free
            assert len(taken[worker.number]) / worker.places == least
            runs[ticket] = worker.number, step


def test_whether_any_place_is_free_is_told_when_the_last_is_taken_and_when_one_comes_back() -> None:
    fleet = fleet_of([Machine(0), Machine(1)])
    here = fleet.take(PlacedNeed())
    tickets = [fleet.take(need_of(fleet, 0)) for _ in range(2)]
    assert fleet.is_full
    fleet.give_back(tickets[0])
    assert not fleet.is_full
    fleet.give_back(here)
    fleet.staff([])
    fleet.give_back(tickets[1])
    assert not fleet.is_full
    assert not fleet.workers


@pytest.mark.parametrize("free", [1, 50])
def test_a_run_is_placed_with_as_little_to_do_among_many_workers_as_among_few(free: int) -> None:
    def steps(workers: int) -> int:
        fleet = fleet_of([Machine(number) for number in range(workers)])
        need = need_of(fleet, GB)
        tickets = [fleet.take(need) for _ in range(workers)]
        for ticket in tickets[-free:]:
            fleet.give_back(ticket)

        def place() -> None:
            assert not fleet.is_full
            assert fleet.fits(need)
            fleet.give_back(fleet.take(need))

        return calls_of(place)

    assert steps(1000) <= 2 * steps(100)


def calls_of(work: Callable[[], None]) -> int:
    """How many functions are called, and generators gone on with."""
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:  # noqa: ARG001
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls
