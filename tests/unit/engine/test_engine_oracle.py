"""Whatever is edited, lost or fails between builds: a build equals a clean build, and runs only what is not cached."""

from __future__ import annotations

import shutil
import tempfile
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from engine_samples import Bench, Ran, node, read, salt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from memory_store import MEMORY, NotedStore

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import Status
from winml_dag.engine.stage import Node, Workspace
from winml_dag.errors import StageError
from winml_dag.store.artifact import FileEntry
from winml_dag.store.digest import digest_bytes, digest_file

SOURCES = ("weights", "data")
SLOTS = ("left", "right")
MOST_STEPS = 8


def output(stage: str, salt: int, inputs: list[str], slot: str) -> str:
    """Return one of three texts: so few that different inputs often give the same bytes, which spares
    downstream work.
    """
    return "xyz"[zlib.crc32(f"{stage} {salt} {inputs} {slot}".encode()) % 3]


@dataclass(frozen=True)
class Step:
    """A node to build: ``stage`` is one of few, so that some nodes are the same work under two names."""

    id: str
    stage: str
    salt: int
    inputs: tuple[str, ...]

    def node(self) -> Node:
        return node(self.id, *self.inputs, of=self.stage, salt=self.salt, outputs=SLOTS)

    def needs(self) -> set[str]:
        return {name.partition(".")[0] for name in self.inputs} - set(SOURCES)


@dataclass(frozen=True)
class Work:
    """A unit of work by everything it depends on: what a key must distinguish."""

    stage: str
    salt: int
    inputs: tuple[str, ...]

    def outputs(self) -> dict[str, str]:
        return {slot: output(self.stage, self.salt, list(self.inputs), slot) for slot in SLOTS}

    def digests(self) -> list[str]:
        return [digest_bytes(text.encode()) for text in self.outputs().values()]


def nth(names: Iterable[str], number: int) -> list[str]:
    """Return one of *names*, or none. Drawn by number, since the names may depend on timing."""
    ordered = sorted(names)
    return ordered[number % len(ordered) :][:1] if ordered else []


@dataclass(frozen=True)
class Before:
    """The store at the start of a run: work with a record and intact outputs, and whether anything was damaged."""

    spared: frozenset[Work]
    rotten: bool


class Builds(RuleBasedStateMachine):
    """Any number of builds in a row, of a changing graph, with a store that loses things."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.store = NotedStore()
        self.bench = Bench(self.folder, self.store)
        self.texts = dict.fromkeys(SOURCES, "a")
        self.steps: list[Step] = []
        self.numbers = 0
        self.earlier: list[tuple[dict[str, str], list[Step]]] = []
        self.worked: list[Work] = []
        self.keys: dict[Work, str] = {}
        self.lock = threading.Lock()

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @initialize(data=st.data(), count=st.integers(1, 6))
    def draw_graph(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            self.add_node(data)

    # Kinds of change are drawn within one rule: otherwise only one step in seven would be a run.

    @rule(data=st.data(), kind=st.sampled_from(["add", "remove", "rewire", "setting", "source", "swap", "revert"]))
    def edit(self, data: st.DataObject, kind: str) -> None:
        place = data.draw(st.integers(0, len(self.steps) - 1))
        match kind:
            case "add" if len(self.steps) < MOST_STEPS:
                self.add_node(data)
            case "remove" if len(self.steps) > 1:
                self.remove_node(place)
            case "rewire":
                self.steps[place] = replace(self.steps[place], inputs=self.draw_inputs(data, place))
            case "setting":
                self.steps[place] = replace(self.steps[place], salt=data.draw(st.integers(0, 2)))
            case "source":
                self.texts[data.draw(st.sampled_from(SOURCES))] = data.draw(st.sampled_from("abc"))
            case "swap":
                self.texts = dict(zip(SOURCES, reversed(self.texts.values()), strict=True))
            case "revert" if self.earlier:
                texts, steps = data.draw(st.sampled_from(self.earlier))
                self.texts, self.steps = dict(texts), list(steps)

    def add_node(self, data: st.DataObject) -> None:
        stage, number = data.draw(st.sampled_from(["one", "two"])), data.draw(st.integers(0, 1))
        self.steps.append(Step(f"n{self.numbers}", stage, number, self.draw_inputs(data, len(self.steps))))
        self.numbers += 1

    def remove_node(self, place: int) -> None:
        """Its readers have one input fewer."""
        gone = self.steps.pop(place).id
        self.steps = [
            replace(step, inputs=tuple(name for name in step.inputs if name.partition(".")[0] != gone))
            for step in self.steps
        ]

    def draw_inputs(self, data: st.DataObject, place: int) -> tuple[str, ...]:
        """Draw from the sources and the nodes before *place*."""
        names = [*SOURCES, *(f"{step.id}.{slot}" for step in self.steps[:place] for slot in SLOTS)]
        return tuple(data.draw(st.lists(st.sampled_from(names), max_size=3)))

    @rule(number=st.integers(0, 20), kind=st.sampled_from(["blob", "rot", "record", "rows", "index"]))
    def lose(self, number: int, kind: str) -> None:
        match kind:
            case "blob" | "rot":
                for digest in nth((blob.digest for blob in self.store.blobs.all()), number):
                    file = FileEntry("text", digest, 1)
                    (self.store.rot if kind == "rot" else self.store.lose)(file)
            case "record":
                for key in nth(self.store.records.keys(), number):
                    self.store.records.remove(key)
            case "rows":
                self.store.index.remove("record", nth(self.store.records.keys(), number))
                self.store.index.remove("latest", self.store.index.names("latest"))
            case "index":
                self.store.close()
                shutil.rmtree(self.store.folder / "index", ignore_errors=True)

    @rule(jobs=st.integers(1, 3), rebuild=st.booleans(), scope=st.sampled_from(["here", "there"]))
    def build(self, jobs: int, rebuild: bool, scope: str) -> None:
        ran = self.run_graph(jobs=jobs, rebuild=rebuild, scope=scope)
        assert set(ran.of(Status.RAN)) | set(ran.of(Status.REUSED)) == ran.results.keys()
        again = self.run_graph(jobs=jobs, scope=scope)
        assert again.calls == []
        assert {str(result.reason) for result in again.results.values()} == {"up to date"}
        self.earlier.append((dict(self.texts), list(self.steps)))

    @rule(data=st.data(), jobs=st.integers(1, 3), keep_going=st.booleans(), too_late=st.booleans())
    def build_with_failures(self, data: st.DataObject, jobs: int, keep_going: bool, too_late: bool) -> None:
        bad = data.draw(st.sets(st.sampled_from([step.id for step in self.steps]), min_size=1))
        # A completed stage may run again, and fail, when a reader finds a damaged file that others have read.
        rotten = self.look().rotten
        ran = self.run_graph(bad, too_late=too_late, jobs=jobs, keep_going=keep_going)
        failed, skipped = set(ran.of(Status.FAILED)), set(ran.of(Status.SKIPPED))
        assert failed == set(ran.calls) & bad
        for step in self.steps:
            if step.needs() & (failed | skipped):
                assert step.id in skipped or (rotten and step.id in ran.calls)
            elif keep_going:
                assert step.id not in skipped

    def run_graph(
        self,
        bad: Iterable[str] = (),
        *,
        too_late: bool = False,
        jobs: int,
        keep_going: bool = False,
        rebuild: bool = False,
        scope: str = "here",
    ) -> Ran:
        """Run once, with the nodes *bad* failing: at once, or if *too_late* after writing their outputs."""

        def do(node: Node, workspace: Workspace) -> JsonObject:
            if node.id in bad and not too_late:
                raise StageError(f"{node.id} is bad")
            work = Work(node.stage.name, salt(node), tuple(read(workspace)))
            for slot, text in work.outputs().items():
                (workspace.outputs[slot] / "text").write_text(text)
            if node.id in bad:
                raise StageError(f"{node.id} is bad")
            with self.lock:
                self.worked.append(work)
            return {}

        self.worked.clear()
        before = self.look()
        sources = [self.bench.source(name, text) for name, text in self.texts.items()]
        nodes = [step.node() for step in self.steps]
        ran = self.bench.run(nodes, sources, work=do, jobs=jobs, keep_going=keep_going, rebuild=rebuild, scope=scope)
        self.check_outputs(ran)
        self.check_keys(ran)
        if not rebuild:
            assert not before.spared & set(self.worked), "work was done again whose result was there"
            assert before.rotten or len(self.worked) == len(set(self.worked)), "the same work was done twice"
        return ran

    def look(self) -> Before:
        intact = {blob.digest: digest_file(blob.path) == blob.digest for blob in self.store.blobs.all()}
        keys = set(self.store.records.keys())
        spared = {
            work
            for work, key in self.keys.items()
            if key in keys and all(intact.get(digest) for digest in work.digests())
        }
        return Before(frozenset(spared), not all(intact.values()))

    def works(self) -> dict[str, Work]:
        """Return the work of each step in a clean build: the oracle."""
        texts, works = dict(self.texts), {}
        for step in self.steps:
            work = Work(step.stage, step.salt, tuple(texts[name] for name in step.inputs))
            texts |= {f"{step.id}.{slot}": text for slot, text in work.outputs().items()}
            works[step.id] = work
        return works

    def check_outputs(self, ran: Ran) -> None:
        for node_id, work in self.works().items():
            if ran.results[node_id].record is not None:
                # Compare digests: damage to bytes that nobody reads is detected when they are fetched.
                found = [ran.file(node_id, slot).digest for slot in SLOTS]
                assert found == work.digests()

    def check_keys(self, ran: Ran) -> None:
        """Equal work has equal keys, whatever its name and position; different work has different ones."""
        for node_id, work in self.works().items():
            key = ran.results[node_id].cache_key
            if key is not None:
                assert self.keys.setdefault(work, key) == key
        assert len(set(self.keys.values())) == len(self.keys)


TestBuilds = pytest.mark.slow(Builds.TestCase)
TestBuilds.settings = settings(max_examples=30, stateful_step_count=20)
