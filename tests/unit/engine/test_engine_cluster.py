"""Who runs what on a cluster, and what becomes of a run whose worker, input or answer is not what it should be."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from cluster_samples import TOOLS, Cluster, Machine, far
from engine_samples import TEXT, node, properties
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.engine import reason
from winml_dag.engine.admission import Capacity, Need, Ticket
from winml_dag.engine.cluster.fleet import Fleet, SeatTicket
from winml_dag.engine.cluster.inputs import Inputs
from winml_dag.engine.cluster.order import Answer, Order
from winml_dag.engine.decide import Run
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.graph import Graph
from winml_dag.engine.progress import Watch
from winml_dag.engine.run import Displaced
from winml_dag.engine.stage import Node, Source, SourceFile
from winml_dag.errors import StageError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.local import LocalStore
from winml_dag.store.record import Record

OTHER = {"tool": "2"}


def test_a_stage_runs_where_its_toolchain_is_made_and_one_of_the_users_runs_here(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [Machine("one"), Machine("two", OTHER)])
    found = cluster.run([far("a"), far("b", "a.out", tool="2"), node("mine", "b.out"), far("c", "mine.out")])
    assert {result.status for result in found.values()} == {Status.RAN}
    assert cluster.calls == [("one", "a"), ("two", "b"), ("one", "c")]
    record = found["c"].record
    assert record is not None
    assert record.made_by == "a worker"
    again = cluster.run([far("a"), far("b", "a.out", tool="2")], name="again")
    assert {result.status for result in again.values()} == {Status.REUSED}


def test_the_users_files_are_in_the_store_before_anybody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("words")
    seen: list[bool] = []

    def look(_: str, order: Order) -> None:
        store = LocalStore(tmp_path / "store")
        seen.append(not store.missing(order.inputs["in0"].files))

    cluster = Cluster(tmp_path, [Machine("one")], look)
    source = Source("words", TEXT, (SourceFile("words.txt", tmp_path / "words.txt"),))
    assert cluster.run([far("a", "words")], [source])["a"].status is Status.RAN
    assert seen == [True]


class OfferingStore(LocalStore):
    """A store with something behind it, as far as who shares inputs sees it."""

    told: list[str]

    def offer(self, record: Record) -> None:
        self.told.append(f"offer {','.join(file.name for file in record.files())}")

    def settle(self, told: object = None) -> None:  # noqa: ARG002
        self.told.append("settle")

    def bring(self, files: Iterable[FileEntry]) -> None:
        self.told.append(f"bring {','.join(file.name for file in self.far(files))}")

    def far(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        return [file for file in files if file.name == "far"]


def test_what_lies_here_alone_has_gone_to_the_others_before_anybody_is_asked(tmp_path: Path) -> None:
    store = OfferingStore(tmp_path / "store", function="sha256")
    store.told = []
    near, away = (Artifact((FileEntry(name, f"sha256:{name[0].encode().hex() * 32}", 1),)) for name in ("near", "far"))
    reader = far("a", "b.out", "c.out")
    inputs = Inputs(Graph((reader,), {}, {}), store, tmp_path, "here")
    read = {"in0": near, "in1": away}
    inputs.share(reader, read, far=False)
    assert store.told == ["bring far"]
    store.told.clear()
    inputs.share(reader, read, far=True)
    assert store.told == ["offer near", "settle"]
    inputs.share(reader, read, far=True)
    assert store.told == ["offer near", "settle"]


def test_what_a_lost_worker_did_is_done_by_another(tmp_path: Path) -> None:
    lost: list[str] = []

    def lose_first(address: str, _: Order) -> bool | None:
        lost.append(address)
        if len(lost) > 1:
            return None
        cluster.fleet.staff([machine for machine in cluster.machines if machine.address != address])
        return True

    cluster = Cluster(tmp_path, [Machine("one"), Machine("two")], lose_first)
    assert cluster.run([far("a"), far("b", "a.out")])["b"].status is Status.RAN
    assert len(cluster.calls) == 3
    assert {address for address, _ in cluster.calls[1:]} == {"two" if lost[0] == "one" else "one"}


def test_a_stage_that_workers_are_lost_with_again_and_again_fails(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [Machine("one")], lambda *_: True)
    found = cluster.run([far("a")])["a"]
    assert found.status is Status.FAILED
    assert "3 workers were lost" in found.error
    assert len(cluster.calls) == 3


def test_without_a_worker_that_makes_its_toolchain_a_stage_is_refused_with_what_differs(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [Machine("one", OTHER), Machine("two", OTHER)])
    found = cluster.run([far("a")])["a"]
    assert "one, two has tool 2, not 1" in found.error
    assert cluster.calls == []
    assert "there is no worker" in Cluster(tmp_path, []).run([far("a")], name="none")["a"].error


def test_a_worker_that_cannot_get_what_is_here_is_told_of_and_nothing_is_made_again(tmp_path: Path) -> None:
    def damaged(_: str, order: Order) -> Answer | None:
        if order.node.id == "a":
            return None
        return Answer("damaged", file=order.inputs["in0"].files[0], told=("https://far is slow.",))

    cluster = Cluster(tmp_path, [Machine("one")], damaged)
    found = cluster.run([far("a"), far("b", "a.out")])
    assert found["b"].status is Status.FAILED
    assert "one cannot get a-out.txt, which is here. It says: https://far is slow." in found["b"].error
    assert [name for _, name in cluster.calls] == ["a", "b"]


def test_a_worker_that_goes_just_when_it_gets_a_run_refuses_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [Machine("one")])
    result = cluster.run([far("a")])["a"]
    assert result.record is not None
    assert cluster.runs is not None
    decision = Run("0" * 64, result.record.ingredients, reason.REBUILD, None)
    cluster.fleet.last_taken = SeatTicket(Need())
    assert isinstance(cluster.runs.start(far("a"), decision, {}, Watch()), Displaced)
    cluster.fleet.staff([])
    assert isinstance(cluster.runs.start(far("a"), decision, {}, Watch()), StageResult)


def test_the_result_of_something_else_is_not_taken(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [Machine("one")])
    record = cluster.run([far("a")])["a"].record
    cluster.before = lambda *_: Answer("done", record=record)
    assert "something else" in cluster.run([far("b")], name="other")["b"].error


def test_a_worker_that_comes_gets_work_at_once(tmp_path: Path) -> None:
    both = threading.Event()

    def meet(address: str, _: Order) -> None:
        if address == "late":
            both.set()
            return
        cluster.fleet.staff([*cluster.machines, Machine("late")])
        assert cluster.runs is not None
        cluster.runs.nudge()
        assert both.wait(30), "nobody asked the new worker while the old one was at work"

    cluster = Cluster(tmp_path, [Machine("one")], meet)
    found = cluster.run([far("a"), far("b")])
    assert {result.status for result in found.values()} == {Status.RAN}


WORKERS = st.builds(
    Machine,
    st.sampled_from(["one", "two", "three", "four"]),
    st.sampled_from([TOOLS, OTHER]),
    st.integers(1, 3),
    st.sampled_from([10 << 20, 1 << 30]),
    st.sampled_from(["here", "there"]),
)
RUNS = st.lists(
    st.tuples(
        st.sampled_from(["1", "2"]), st.sampled_from([0, 5 << 20, 9 << 20, 500 << 20]), st.sampled_from([(), ("npu",)])
    ),
    max_size=12,
)


@properties
@given(workers=st.lists(WORKERS, max_size=4, unique_by=lambda each: each.address), runs=RUNS, data=st.data())
def test_no_worker_takes_more_than_it_has_and_all_runs_come_to_an_end(
    workers: list[Machine], runs: list[tuple[str, int, tuple[str, ...]]], data: st.DataObject
) -> None:
    fleet = Fleet(Capacity(1, 1 << 30))
    fleet.staff(workers)
    waiting = [(far("a", tool=tool), Need(memory, pools)) for tool, memory, pools in runs]
    needs = [fleet.capacity.taken(fleet.placed(need, each)) for each, need in waiting]
    tickets: list[tuple[Ticket, Node]] = []
    for (each, _), need in zip(waiting, needs, strict=True):
        while not fleet.fits(need):
            assert tickets, "it waits for nobody"
            ticket, _ = tickets.pop(data.draw(st.integers(0, len(tickets) - 1)))
            fleet.give_back(ticket)
        tickets.append((fleet.take(need), each))
        _check(workers, tickets)


def _check(workers: list[Machine], tickets: list[tuple[Ticket, Node]]) -> None:
    seated = [(ticket, each) for ticket, each in tickets if isinstance(ticket, SeatTicket) and ticket.seat is not None]
    nowhere = [each for ticket, each in tickets if isinstance(ticket, SeatTicket) and ticket.seat is None]
    assert not any(worker.tools == each.toolchain for worker in workers for each in nowhere)
    for worker in workers:
        here = [(ticket, each) for ticket, each in seated if ticket.seat.worker == worker]
        assert all(each.toolchain == worker.tools for _, each in here)
        assert len(here) <= worker.places
        assert len(here) == 1 or sum(ticket.need.memory_bytes for ticket, _ in here) <= worker.memory_bytes
    for host in ("here", "there"):
        pools = [pool for ticket, _ in seated if ticket.seat.worker.host == host for pool in ticket.need.pools]
        assert len(pools) <= 1


ORDER = Order("id", "topic", far("a", "b.out"), {"in0": Artifact((FileEntry("b", "sha256:" + "0" * 64, 1),))}, "k",
              1.0, 0, rebuild=False, function="sha256")  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["stage"].update(work="os:system"),
        lambda value: value["stage"].update(config="subprocess:Popen"),
        lambda value: value["node"].update(command={"arguments": ["rm"], "environment": {}}),
        lambda value: value["node"].update(folder="/home"),
        lambda value: value["node"].update(surroundings={"python": "/bin/sh"}),
        lambda value: value["inputs"].update(in0=[{"name": "../b", "digest": "sha256:" + "0" * 64, "size": 1}]),
        lambda value: value.update(protocol=0),
        lambda value: value.update(inputs=7),
        lambda value: value.pop("node"),
    ],
)
def test_an_order_for_anything_but_a_stage_of_ours_is_refused(change: object) -> None:
    assert callable(change)
    value = json.loads(ORDER.to_text())
    change(value)
    with pytest.raises(StageError):
        Order.from_text(json.dumps(value))


def test_orders_and_answers_come_as_they_went() -> None:
    assert Order.from_text(ORDER.to_text()) == ORDER
    answer = Answer("failed", error="It broke.", tail=("a", "b"), metrics={"x": 1}, told=("slow",))
    assert Answer.from_text(answer.to_text()) == answer
    for text in ("", "[]", "{}", "\x80", json.dumps({"protocol": 1, "ending": "done"})):
        with pytest.raises(StageError):
            Answer.from_text(text)
