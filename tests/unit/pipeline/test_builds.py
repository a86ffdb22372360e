"""Several builds run as one graph: shared stages run once, and no build delays another."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml
from pipeline_samples import save_model

from winml_dag.engine.events import Silent, StageResult, Status
from winml_dag.engine.execute import LocalExecutor
from winml_dag.errors import InputError, StoreError, UsageError
from winml_dag.pipeline.build import build, build_all, count_stages, merged
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.buildresult import BuildResult
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.run import BuildOptions, Driver, Ended
from winml_dag.store.blobs import STAMP_NS
from winml_dag.store.store import Store

OPTIONS = BuildOptions(jobs=2, keep_going=True)


class Builds:
    """A folder with a small model, and builds of it in separate folders, with as few stages as possible."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "cache")
        save_model(folder / "m.onnx", "MatMul", weight=np.ones((4, 4)))

    def plan(self, label: str, precision: str = "fp32", task: str | None = None) -> dict[str, BuildGraph]:
        overrides = Overrides(
            onnx=self.folder / "m.onnx",
            precision=precision,
            task=task,
            optimize=False,
            validate=False,
            analyze=False,
            compile=False,
        )
        request = Request(None, overrides, self.folder / label)
        return {label: plan_request(request, self.store, download=False)}

    def own_stages(self, label: str, program: str) -> dict[str, BuildGraph]:
        """Return a build of one user-defined stage, which works in the recipe's folder."""
        (self.folder / label).mkdir()
        recipe = self.folder / label / "recipe.json"
        command = [sys.executable, "-c", program, "{outputs.out}"]
        recipe.write_text(json.dumps({"stages": {"note": {"command": command, "outputs": {"out": "note.txt"}}}}))
        return {label: plan_request(Request(recipe, Overrides()), self.store, download=False)}


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path)


def statuses(ended: Mapping[str, Ended[BuildResult]]) -> dict[str, list[Status]]:
    return {
        label: [result.status for result in one.results] for label, one in ended.items() if isinstance(one, BuildResult)
    }


def test_shared_stages_run_once_and_each_build_has_its_folder(builds: Builds) -> None:
    planned = builds.plan("one") | builds.plan("two") | builds.plan("half", "fp16")
    counted = count_stages(merged(planned))
    assert (counted.builds, counted.stages, counted.apart) == (3, 3, 4)
    assert counted.by_stage == {"finalize": 2, "quantize": 1}

    told: list[str] = []
    outcomes = build_all(planned, Driver(builds.store, OPTIONS), lambda label, _: told.append(label))
    assert statuses(outcomes) == {
        "one": [Status.RAN],
        "two": [Status.REUSED],
        "half": [Status.RAN, Status.RAN],
    }
    assert sorted(told) == ["half", "one", "two"]
    models = {label: (builds.folder / label / "model.onnx").read_bytes() for label in ("one", "two", "half")}
    assert models["one"] == models["two"] != models["half"]
    for label in models:
        manifest = json.loads((builds.folder / label / "build_manifest.json").read_text(encoding="utf-8"))
        assert manifest["final_artifact"] == "model.onnx"

    # Separately, each finds itself up to date: each is recorded under its own name.
    for label, precision in (("one", "fp32"), ("two", "fp32"), ("half", "fp16")):
        (again,) = build_all(builds.plan(label, precision), Driver(builds.store, OPTIONS)).values()
        assert isinstance(again, BuildResult)
        assert {view.reason for view in again.stages if view.result is not None} == {"up to date"}
        assert not again.changed
    # When they are rebuilt together, what they share runs once, too.
    both = builds.plan("one") | builds.plan("two")
    outcomes = build_all(both, Driver(builds.store, BuildOptions(jobs=2, rebuild=True)))
    assert statuses(outcomes) == {"one": [Status.RAN], "two": [Status.REUSED]}


def test_unplannable_or_unplaceable_build_does_not_stop_others(builds: Builds) -> None:
    (builds.folder / "taken").mkdir()
    (builds.folder / "taken" / "model.onnx").write_text("mine")
    planned = {"lost": InputError("There is no such model.")} | builds.plan("taken") | builds.plan("whole")
    ended = build_all(planned, Driver(builds.store, OPTIONS))
    assert {label: type(one) for label, one in ended.items()} == {
        "lost": InputError,
        "taken": UsageError,
        "whole": BuildResult,
    }
    assert (builds.folder / "taken" / "model.onnx").read_text() == "mine"
    assert (builds.folder / "whole" / "model.onnx").is_file()


def test_corrupt_blob_found_on_placement_is_rebuilt(builds: Builds) -> None:
    build_all(builds.plan("one"), Driver(builds.store, OPTIONS))
    rotten = [
        path
        for path in (builds.folder / "cache" / "blobs").rglob("*")
        if path.is_file() and path.read_bytes() == (builds.folder / "one" / "model.onnx").read_bytes()
    ]
    assert rotten
    for path in rotten:
        path.chmod(0o600)
        path.write_bytes(bytes(path.stat().st_size))
        os.utime(path, ns=(STAMP_NS, STAMP_NS))
    ended = build_all(builds.plan("two") | builds.plan("three"), Driver(builds.store, OPTIONS))
    assert all(isinstance(one, BuildResult) and not one.failed for one in ended.values())
    for label in ("two", "three"):
        assert (builds.folder / label / "model.onnx").read_bytes() == (builds.folder / "one/model.onnx").read_bytes()


def test_builds_with_own_stages_use_their_own_folders(builds: Builds) -> None:
    writes = "import sys; open(sys.argv[1], 'w').write('done')"
    programs = {"first": writes, "broken": "raise SystemExit(3)", "last": writes}
    planned = {label: graph for name in programs for label, graph in builds.own_stages(name, programs[name]).items()}
    ended = build_all(planned, Driver(builds.store, OPTIONS))
    assert [isinstance(one, BuildResult) and one.failed for one in ended.values()] == [False, True, False]
    assert (builds.folder / "first" / "note.txt").read_text() == "done"
    assert (builds.folder / "last" / "note.txt").read_text() == "done"
    assert not (builds.folder / "broken" / "note.txt").exists()


class Settling(Store):
    """Counts the waits for uploads."""

    settled = 0

    def settle(self) -> None:
        self.settled += 1
        super().settle()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settling]:
    monkeypatch.chdir(tmp_path)
    store = Settling(tmp_path / "cache")
    yield store
    store.close()


def own_stage(script: str, store: Store) -> BuildGraph:
    """Plan one stage that runs *script* and then writes a file."""
    whole = f"import sys; {script}; open(sys.argv[1], 'w').write('done')"
    stage = {"command": [sys.executable, "-c", whole, "{outputs.out}"], "outputs": {"out": "made.txt"}}
    Path("recipe.yaml").write_text(yaml.safe_dump({"stages": {"one": stage}}))
    return plan_request(Request(Path("recipe.yaml"), Overrides(), Path("out")), store, download=False)


def test_server_of_workers_starts_ahead_only_for_builds_of_models(store: Settling) -> None:
    own_stage("pass", store)
    model, own = Request(Path("model.json"), Overrides()), Request(Path("recipe.yaml"), Overrides())
    driver = Driver(store)
    with driver.while_planning([own]) as ready:
        assert ready is driver
    with driver.while_planning([own, model]) as ready:
        assert isinstance(ready.executor, LocalExecutor)


def test_uploads_complete_after_success_and_stage_failure(store: Settling) -> None:
    assert not build(own_stage("pass", store), Driver(store)).failed
    assert store.settled == 1
    assert build(own_stage("sys.exit(1)", store), Driver(store)).failed
    assert store.settled == 2


def test_uploads_complete_when_output_cannot_be_placed(store: Settling) -> None:
    in_the_way = own_stage("open('out', 'w').close()", store)
    with pytest.raises(StoreError):
        build(in_the_way, Driver(store))
    assert store.settled == 1
    assert store.records.all()


def test_uploads_are_not_awaited_after_interrupt(store: Settling) -> None:
    class Impatient(Silent):
        def finished(self, result: StageResult) -> None:  # noqa: ARG002
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(own_stage("pass", store), Driver(store, observer=Impatient()))
    assert store.settled == 0
