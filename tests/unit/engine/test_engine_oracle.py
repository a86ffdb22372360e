"""Whatever is edited, lost or fails between builds: a build gives what building everything anew would give."""

from __future__ import annotations

import shutil
import tempfile
import threading
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from engine_samples import Bench, Ran, StatStore, node, read, salt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import Status
from winml_dag.engine.stage import Node, Workspace
from winml_dag.errors import StageError
from winml_dag.store.digest import digest_bytes
from winml_dag.store.record import Record

SOURCES = ("weights", "data")
SLOTS = ("left", "right")


def output(stage: str, salt: int, inputs: list[str], slot: str) -> str:
    """One of three texts: so few that different inputs often give the same bytes, and the work behind is spared."""
    return "xyz"[zlib.crc32(f"{stage} {salt} {inputs} {slot}".encode()) % 3]


@dataclass(frozen=True)
class Step:
    """A node to be: ``stage`` is one of few, so that some nodes are the same work under two names."""

    id: str
    stage: str
    salt: int
    inputs: tuple[str, ...]

    def node(self) -> Node:
        return node(self.id, *self.inputs, of=self.stage, salt=self.salt, outputs=SLOTS)

    def needs(self) -> set[str]:
        return {name.partition(".")[0] for name in self.inputs} - set(SOURCES)


class ForgetfulStore(StatStore):
    """A store whose records can be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: set[str] = set()

    def record(self, key: str) -> Record | None:
        return super().record(key) if key in self.keys else None

    def publish(self, record: Record, folders: Mapping[str, Path], log: Path | None = None) -> Record:
        self.keys.add(record.cache_key)
        return super().publish(record, folders, log)


def nth(names: Iterable[str], number: int) -> list[str]:
    """One of *names*, or none. Drawn by number, since which names there are may depend on what ran beside what."""
    ordered = sorted(names)
    return ordered[number % len(ordered) :][:1] if ordered else []


class Builds(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = ForgetfulStore()
        self.bench = Bench(self.folder, self.store)
        self.texts = dict.fromkeys(SOURCES, "a")
        self.steps: list[Step] = []
        self.worked: list[str] = []
        self.kept: set[str] = set()
        self.lock = threading.Lock()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(data=st.data(), count=st.integers(1, 7))
    def draw_graph(self, data: st.DataObject, count: int) -> None:
        for number in range(count):
            self.steps.append(
                Step(
                    f"n{number}",
                    data.draw(st.sampled_from(["one", "two"])),
                    data.draw(st.integers(0, 1)),
                    self.draw_inputs(data, number),
                )
            )

    def draw_inputs(self, data: st.DataObject, number: int) -> tuple[str, ...]:
        names = [*SOURCES, *(f"n{before}.{slot}" for before in range(number) for slot in SLOTS)]
        return tuple(data.draw(st.lists(st.sampled_from(names), max_size=3)))

    @rule(name=st.sampled_from(SOURCES), text=st.sampled_from("abc"))
    def edit_source(self, name: str, text: str) -> None:
        self.texts[name] = text

    @rule(number=st.integers(0, 6), salt=st.integers(0, 2))
    def edit_setting(self, number: int, salt: int) -> None:
        number %= len(self.steps)
        self.steps[number] = replace(self.steps[number], salt=salt)

    @rule(data=st.data(), number=st.integers(0, 6))
    def rewire(self, data: st.DataObject, number: int) -> None:
        number %= len(self.steps)
        self.steps[number] = replace(self.steps[number], inputs=self.draw_inputs(data, number))

    @rule(number=st.integers(0, 20), rots=st.booleans())
    def lose_blob(self, number: int, rots: bool) -> None:
        for digest in nth(self.store.blobs, number):
            if rots:
                self.store.blobs[digest] = b"\x00" * len(self.store.blobs[digest])
            else:
                del self.store.blobs[digest]
            self.kept.clear()

    @rule(number=st.integers(0, 20))
    def lose_record(self, number: int) -> None:
        for key in nth(self.store.keys, number):
            self.store.keys.remove(key)
            self.kept.clear()

    @rule(jobs=st.integers(1, 3), rebuild=st.booleans(), scope=st.sampled_from(["here", "there"]))
    def build(self, jobs: int, rebuild: bool, scope: str) -> None:
        ran = self.run_graph(jobs=jobs, rebuild=rebuild, scope=scope)
        assert set(ran.of(Status.RAN)) | set(ran.of(Status.REUSED)) == ran.results.keys()
        again = self.run_graph(jobs=jobs, scope=scope)
        assert again.calls == []
        assert {str(result.reason) for result in again.results.values()} == {"up to date"}

    @rule(data=st.data(), jobs=st.integers(1, 3), keep_going=st.booleans())
    def build_with_failures(self, data: st.DataObject, jobs: int, keep_going: bool) -> None:
        bad = data.draw(st.sets(st.sampled_from([step.id for step in self.steps]), min_size=1))
        ran = self.run_graph(bad, jobs=jobs, keep_going=keep_going)
        failed, skipped = set(ran.of(Status.FAILED)), set(ran.of(Status.SKIPPED))
        assert failed == set(ran.calls) & bad
        for step in self.steps:
            if step.needs() & (failed | skipped):
                assert step.id in skipped
            elif keep_going:
                assert step.id not in skipped

    def run_graph(
        self,
        bad: set[str] = frozenset(),  # type: ignore[assignment]
        *,
        jobs: int,
        keep_going: bool = False,
        rebuild: bool = False,
        scope: str = "here",
    ) -> Ran:
        def work(node: Node, workspace: Workspace) -> JsonObject:
            if node.id in bad:
                raise StageError(f"{node.id} is bad")
            inputs = read(workspace)
            with self.lock:
                self.worked.append(f"{node.stage.name} {salt(node)} {inputs}")
            for slot, folder in workspace.outputs.items():
                (folder / "text").write_text(output(node.stage.name, salt(node), inputs, slot))
            return {}

        self.worked.clear()
        sources = [self.bench.source(name, text) for name, text in self.texts.items()]
        nodes = [step.node() for step in self.steps]
        ran = self.bench.run(nodes, sources, work=work, jobs=jobs, keep_going=keep_going, rebuild=rebuild, scope=scope)
        self.check_outputs(ran)
        if not rebuild:
            assert len(self.worked) == len(set(self.worked)), "the same work was done twice"
            assert not self.kept & set(self.worked), "work was done again whose result was there"
        self.kept |= set(self.worked)
        return ran

    def check_outputs(self, ran: Ran) -> None:
        expected = dict(self.texts)
        for step in self.steps:
            inputs = [expected[name] for name in step.inputs]
            for slot in SLOTS:
                expected[f"{step.id}.{slot}"] = output(step.stage, step.salt, inputs, slot)
                if ran.results[step.id].record is not None:
                    # The digest: rot in bytes that nobody reads is for whoever fetches them to find.
                    assert ran.file(step.id, slot).digest == digest_bytes(expected[f"{step.id}.{slot}"].encode())


TestBuilds = Builds.TestCase
TestBuilds.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
