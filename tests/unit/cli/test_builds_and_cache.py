"""Effects of a build on its cache besides storing: statistics, and protection of the results it depends on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_builds import build_tiny, save_model

from winml_dag.cli import run
from winml_dag.engine.events import Status
from winml_dag.pipeline import build as module
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.store.gc import Limits, collect
from winml_dag.store.store import Store
from winml_dag.store.usage import Statistics, read_statistics


def test_gc_during_publish_keeps_results_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = module.publish
    collections = []

    def collected_before(*arguments: Any, **options: Any) -> Any:
        collections.append(collect(Store(Path("cache")), Limits(max_bytes=0)))
        return publish(*arguments, **options)

    monkeypatch.setattr(module, "publish", collected_before)
    overrides = Overrides(onnx=save_model(Path("tiny.onnx")), ep="cpu", precision="fp32")
    result = build_tiny(Request(None, overrides, Path("out")))
    assert not result.failed
    (done,) = collections
    assert done is not None
    assert done.records == 0
    assert done.records_in_use == [view.status for view in result.stages].count(Status.RAN) > 0
    assert Path("out/model.onnx").read_text().startswith("finalize model")


@pytest.fixture
def two_stages() -> None:
    """Write a recipe with two independent stages."""
    Path("copying.py").write_text("import sys; open(sys.argv[2], 'wb').write(open(sys.argv[1], 'rb').read())")
    stages = {}
    for name in ("one", "two"):
        Path(f"{name}.txt").write_text(name)
        stages[name] = {
            "command": [sys.executable, "{inputs.script}", "{inputs.of}", "{outputs.made}"],
            "inputs": {"script": "./copying.py", "of": f"./{name}.txt"},
            "outputs": {"made": f"{name}.bin"},
        }
    Path("recipe.yaml").write_text(yaml.safe_dump({"stages": stages}))


def counted() -> Statistics:
    store = Store(Path("cache"))
    return read_statistics(store.folder, store.locks)


@pytest.mark.usefixtures("two_stages")
def test_reused_stages_are_counted_in_cache_statistics() -> None:
    assert run(["build", "-c", "recipe.yaml", "-q"]) == 0
    first = counted()
    assert (first.builds, first.reused, first.ran) == (1, 0, 2)
    assert first.stored_bytes >= len("one") + len("two")
    assert run(["build", "-c", "recipe.yaml", "-q"]) == 0
    second = counted()
    assert (second.builds, second.reused, second.ran) == (2, 2, 2)
    Path("one.txt").write_text("edited")
    assert run(["build", "-c", "recipe.yaml", "-q"]) == 0
    third = counted()
    assert (third.builds, third.reused, third.ran) == (3, 3, 3)
    assert second.seconds_saved < third.seconds_saved < 2 * second.seconds_saved


@pytest.mark.usefixtures("two_stages")
def test_failed_build_is_counted_in_cache_statistics() -> None:
    Path("copying.py").write_text("raise SystemExit(3)")
    assert run(["build", "-c", "recipe.yaml", "-q"]) == 1
    assert (counted().builds, counted().ran) == (1, 0)


@pytest.mark.usefixtures("two_stages")
def test_reproduce_marks_records_as_used() -> None:
    assert run(["build", "-c", "recipe.yaml", "-q"]) == 0
    records = list(Path("cache/records").rglob("*.json"))
    for record in records:
        os.utime(record, (10**9, 10**9))
    assert run(["reproduce", "-c", "recipe.yaml"]) == 0
    assert [record.stat().st_mtime > 10**9 for record in records] == [True, True]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        *((f"--stage-timeout {seconds}", "'--stage-timeout'") for seconds in ("nan", "0", "-1", "soon")),
        ("--memory 16", "'16' is not a size. Write a number and B, KB"),
        ("--memory lots", "'lots' is not a size"),
        ("--memory 0", "no limit is none"),
        ("--scheduler tcp://one:1", "--scheduler is for a cluster. Also give --executor dask."),
        ("--workers 2 --executor local", "--workers is for a cluster."),
        ("--worker-tag npu", "--worker-tag is for a cluster."),
        ("--executor dask --workers 2 --scheduler tcp://one:1", "Give one of them."),
    ],
)
def test_invalid_timeout_or_memory_option_is_refused(options: str, told: str, says) -> None:
    assert told in says("build", "--onnx", "none.onnx", "-o", "out", *options.split(), code=2)
    assert not Path("out").exists()
