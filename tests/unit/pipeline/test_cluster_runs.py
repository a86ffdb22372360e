"""The assignment of runs on a dask cluster, and the handling of lost workers, wrong inputs and wrong answers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from cluster_samples import Bench, Machine, SampleWorkplace, bench, remote_node
from distributed import Reschedule
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.engine.events import Status
from winml_dag.engine.graph import Graph
from winml_dag.engine.resources import Allocation, Capacity, ResourceRequest
from winml_dag.engine.run import Damaged
from winml_dag.engine.stage import Node, Source, SourceFile
from winml_dag.errors import Interrupted, UsageError
from winml_dag.pipeline.cluster.cluster import ClusterOptions, open_cluster
from winml_dag.pipeline.cluster.report import Installed, Report, Requirement, Worker
from winml_dag.pipeline.cluster.runs import Inputs
from winml_dag.pipeline.cluster.worker import Order
from winml_dag.pipeline.cluster.workers import ClusterAdmission
from winml_dag.pipeline.request import RemoteOptions
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.records import Record
from winml_dag.store.remote.settings import RemoteSettings, TierSettings
from winml_dag.store.store import Store

from engine_samples import TEXT, node, properties  # isort: skip - cluster_samples adds its path


def test_stages_run_on_matching_workers_and_user_stages_locally(tmp_path: Path) -> None:
    with bench(tmp_path, Machine("one"), Machine("two", "2")) as machines:
        found = machines.run(
            [remote_node("a"), remote_node("b", "a.out", tool="2"), node("mine", "b.out"), remote_node("c", "mine.out")]
        )
        assert {result.status for result in found.values()} == {Status.RAN}
        assert machines.calls == [("one", "a"), ("two", "b"), ("one", "c")]
        record = found["c"].record
        assert record is not None
        assert record.made_by == "a worker"
        again = machines.run([remote_node("a"), remote_node("b", "a.out", tool="2")], name="again")
        assert {result.status for result in again.values()} == {Status.REUSED}


def test_inputs_are_stored_before_dispatch_and_passwords_are_not_sent(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("words")
    sent: list[Order] = []

    def look(workplace: SampleWorkplace, order: Order, _: Any) -> None:
        sent.append(order)
        assert not Store(workplace.folder).missing(order.inputs["in0"].files)

    settings = RemoteSettings((TierSettings("https://ours:hidden@host/cache", namespace="main"),))
    with bench(tmp_path, Machine("one")) as machines, machines.cluster(settings) as cluster:
        machines.before = look
        source = Source("words", TEXT, (SourceFile("words.txt", tmp_path / "words.txt"),))
        assert machines.run_on(cluster, [remote_node("a", "words")], [source])["a"].status is Status.RAN
    assert sent[0].remotes == (TierSettings("https://host/cache", namespace="main"),)


class OfferingStore(Store):
    """A store with a remote, as far as sharing of inputs needs it."""

    told: list[str]

    def offer(self, record: Record) -> None:
        self.told.append(f"offer {','.join(file.name for file in record.files())}")

    def settle(self) -> None:
        self.told.append("settle")

    def fetch_ahead(self, files: Iterable[FileEntry]) -> None:
        self.told.append(f"bring {','.join(file.name for file in self.remote_only(files))}")

    def remote_only(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        return [file for file in files if file.name == "far"]


def test_local_inputs_are_fetched_and_uploaded_before_dispatch(tmp_path: Path) -> None:
    store = OfferingStore(tmp_path / "store", function="sha256")
    store.told = []
    near, away = (Artifact((FileEntry(name, f"sha256:{name[0].encode().hex() * 32}", 1),)) for name in ("near", "far"))
    reader = remote_node("a", "b.out", "c.out")
    inputs = Inputs(Graph((reader,), {}, {}), store, tmp_path)
    read = {"in0": near, "in1": away}
    inputs.share(reader, read, fetch=True, upload=False)
    assert store.told == ["bring far"]
    store.told.clear()
    inputs.share(reader, read, fetch=True, upload=True)
    assert store.told == ["bring far", "offer near", "settle"]
    store.told.clear()
    inputs.share(reader, read, fetch=False, upload=True)
    assert store.told == []


def vanish(workplace: SampleWorkplace, _: Order, running: Any) -> None:
    workplace.vanish()
    running.stopped.wait()
    raise Interrupted("Stopped.")


@pytest.mark.parametrize("ends", ["by itself", "without a word", "since its packages have changed"])
def test_run_of_lost_worker_is_retried_on_another(tmp_path: Path, ends: str) -> None:
    def leave_once(workplace: SampleWorkplace, order: Order, running: Any) -> None:
        if len(machines.calls) > 1:
            return
        if ends == "without a word":
            vanish(workplace, order, running)
        if ends == "since its packages have changed":
            workplace.leave()
            raise Reschedule
        workplace.dask.loop.add_callback(workplace.dask.close)
        running.stopped.wait()
        raise Interrupted("Stopped.")

    with bench(tmp_path, Machine("one"), Machine("two")) as machines:
        machines.before = leave_once
        assert machines.run([remote_node("a"), remote_node("b", "a.out")])["b"].status is Status.RAN
    first, *others = (name for name, _ in machines.calls)
    assert len(others) == 2
    assert first not in others


def test_repeated_worker_loss_fails_the_stage(tmp_path: Path) -> None:
    with bench(tmp_path, *map(Machine, "123"), allowed_failures=1) as machines:
        machines.before = vanish
        found = machines.run([remote_node("a")])["a"]
    assert found.status is Status.FAILED
    assert found.error.startswith("2 workers were lost while they ran it, tcp://")
    assert len(machines.calls) == 2


def test_stage_without_matching_worker_is_refused_with_difference(tmp_path: Path) -> None:
    with bench(tmp_path, Machine("one"), Machine("two", "2"), Machine("three", "2")) as machines:
        machines.before = vanish
        addresses = ", ".join(sorted(map(machines.address, ("two", "three"))))
        told = f"No worker can run it: {addresses} has tool 2, not 1."
        assert machines.run([remote_node("a")])["a"].error == told, "the last worker was lost"
        assert machines.run([remote_node("a")], name="again")["a"].error == told
        assert machines.calls == [("one", "a")]


def test_invalid_worker_answer_fails_without_rebuild(tmp_path: Path) -> None:
    def damaged(_: SampleWorkplace, order: Order, __: Any) -> Damaged | None:
        return None if order.node.id == "a" else Damaged(order.inputs["in0"].files[0])

    with bench(tmp_path, Machine("one")) as machines:
        machines.before = damaged
        found = machines.run([remote_node("a"), remote_node("b", "a.out")])
        assert found["b"].status is Status.FAILED
        assert found["b"].error == f"{machines.address('one')} cannot get a-out.txt, which is here."
        assert [name for _, name in machines.calls] == ["a", "b"]
        machines.before = lambda *_: found["a"]
        assert "something else" in machines.run([remote_node("c")], name="other")["c"].error


def test_new_worker_gets_work_immediately(tmp_path: Path) -> None:
    both = threading.Event()

    def meet(workplace: SampleWorkplace, _: Order, __: Any) -> None:
        if workplace.machine.name == "late":
            both.set()
        elif not both.is_set():
            threading.Thread(target=machines.start, args=(Machine("late"),)).start()
            assert both.wait(60), "nobody asked the new worker while the old one was at work"

    with bench(tmp_path, Machine("one")) as machines:
        machines.before = meet
        found = machines.run([remote_node("a"), remote_node("b")])
    assert {result.status for result in found.values()} == {Status.RAN}


@pytest.mark.parametrize("what", ["memory", "device"])
def test_concurrent_builds_share_capacity_limits(tmp_path: Path, what: str) -> None:
    """Two builds have one stage each, and the capacity allows only one at a time."""
    lock, running, most = threading.Lock(), Counter[str](), Counter[str]()
    both = threading.Barrier(2)

    def count(*_: object) -> None:
        with lock:
            running["now"] += 1
            most["ever"] = max(most["ever"], running["now"])
        # Until the other one waits for this one or runs in parallel.
        while len(machines.calls) == 1 and not is_awaited():
            threading.Event().wait(0.01)
        with lock:
            running["now"] -= 1

    def is_awaited() -> bool:
        pending = machines.spec.scheduler.extensions["semaphores"].metrics["pending"]
        return any(pending.values()) or any(each.dask.state.constrained for each in machines.workplaces)

    def build(name: str, cluster: Any) -> None:
        both.wait()
        need = {"memory_bytes": 600 << 20} if what == "memory" else {"pools": ("npu",)}
        found = machines.run_on(cluster, [remote_node(name, **need)], name=name)  # type: ignore[arg-type]
        assert found[name].status is Status.RAN

    there = [Machine("one", places=2)] if what == "memory" else [Machine("one"), Machine("two")]
    with bench(tmp_path, *there) as machines, machines.cluster() as first, machines.cluster() as second:
        machines.before = count
        builds = [threading.Thread(target=build, args=pair) for pair in (("a", first), ("b", second))]
        for each in builds:
            each.start()
        for each in builds:
            each.join()
    assert sorted(name for _, name in machines.calls) == ["a", "b"]
    assert most["ever"] == 1


def test_unusable_cluster_is_refused_with_reason(tmp_path: Path) -> None:
    def open_it(machines: Bench, store: Path, *tags: str) -> str:
        options = ClusterOptions(machines.spec.scheduler_address, 1, tags, 1, None)
        with (
            pytest.raises(UsageError) as refused,
            open_cluster(options, store, RemoteOptions(), lambda _: None),
        ):
            pass
        return str(refused.value)

    with bench(tmp_path) as machines:
        assert "There is no worker at" in open_it(machines, machines.store)
        machines.start(Machine("one"))
        assert f"{machines.address('one')} has no tag npu" in open_it(machines, machines.store, "npu")
        assert "through a remote" in open_it(machines, tmp_path / "another store")


class Pool:
    """Workers that only report their resources."""

    def __init__(self, machines: list[Machine]) -> None:
        self.workers = [_worker(machine) for machine in machines]

    def __iter__(self) -> Any:
        return iter(self.workers)

    def fitness(self, need: Requirement) -> dict[Worker, str]:
        return {worker: worker.differs(need) for worker in self.workers}


def _worker(machine: Machine) -> Worker:
    installed = Installed(distributions={"tool": machine.tool}, tools={"xxh3-128": {}, "sha256": {}}, pools=())
    report = Report(
        version="1",
        places=machine.places,
        memory_bytes=machine.memory_bytes,
        tags=(),
        host=machine.name[0],
        store="",
        environments={"": installed},
    )
    return Worker(machine.name, report, "xxh3-128", shares_store=True)


MACHINES = st.builds(
    Machine,
    st.sampled_from(["a1", "a2", "b1", "b2"]),
    st.sampled_from(["1", "2"]),
    st.integers(1, 3),
    st.sampled_from([10 << 20, 1 << 30]),
)
RUNS = st.lists(st.tuples(st.sampled_from(["1", "2"]), st.sampled_from([(), ("npu",)])), max_size=12)


@properties
@given(machines=st.lists(MACHINES, max_size=4, unique_by=lambda each: each.name), runs=RUNS, data=st.data())
def test_admission_respects_worker_slots_and_finishes_all_runs(
    machines: list[Machine], runs: list[tuple[str, tuple[str, ...]]], data: st.DataObject
) -> None:
    admission = ClusterAdmission(Capacity(1, 1 << 30), Pool(machines))  # type: ignore[arg-type]
    handed: list[tuple[Allocation, Node]] = []
    for tool, pools in runs:
        each = remote_node("a", tool=tool)
        need = admission.capacity.taken(admission.placed(ResourceRequest(5 << 20, pools), each))
        while not admission.fits(need):
            assert handed, "it waits for nobody"
            held, _ = handed.pop(data.draw(st.integers(0, len(handed) - 1)))
            admission.give_back(held)
        handed.append((admission.take(need), each))
        assert len(handed) <= max(1, sum(machine.places for machine in machines))
        able = [machine for machine in machines if machine.tool == tool]
        if able and not pools:
            alike = [held for held, other in handed if other.toolchain["tool"] == tool and not held.request.pools]
            assert len(alike) <= sum(machine.places for machine in able)
        if able and pools:
            assert sum(bool(allocation.request.pools) for allocation, _ in handed) <= len(
                {each.name[0] for each in machines}
            )
