"""Uploads of a build are completed whatever its result, unless it is interrupted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from winml_dag.engine.events import Silent, StageResult
from winml_dag.errors import StoreError
from winml_dag.pipeline.build import build
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.run import Driver
from winml_dag.store.store import Store


class Settling(Store):
    """Counts the waits."""

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


def planned(script: str, store: Store) -> BuildGraph:
    """Plan one stage that runs *script* and then writes a file."""
    whole = f"import sys; {script}; open(sys.argv[1], 'w').write('done')"
    stage = {"command": [sys.executable, "-c", whole, "{outputs.out}"], "outputs": {"out": "made.txt"}}
    Path("recipe.yaml").write_text(yaml.safe_dump({"stages": {"one": stage}}))
    return plan_request(Request(Path("recipe.yaml"), Overrides(), Path("out")), store, download=False)


def test_of_a_build_and_of_one_whose_stage_fails(store: Settling) -> None:
    assert not build(planned("pass", store), Driver(store)).failed
    assert store.settled == 1
    assert build(planned("sys.exit(1)", store), Driver(store)).failed
    assert store.settled == 2


def test_of_a_build_whose_files_cannot_be_put_in_place(store: Settling) -> None:
    in_the_way = planned("open('out', 'w').close()", store)
    with pytest.raises(StoreError):
        build(in_the_way, Driver(store))
    assert store.settled == 1
    assert store.records.all()


def test_not_of_one_that_is_interrupted(store: Settling) -> None:
    class Impatient(Silent):
        def finished(self, result: StageResult) -> None:  # noqa: ARG002
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(planned("pass", store), Driver(store, observer=Impatient()))
    assert store.settled == 0
