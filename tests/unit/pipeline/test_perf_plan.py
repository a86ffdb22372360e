"""The key inputs of a measurement, and what is rejected before anything is measured."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipeline_samples import save_model

from winml_dag.engine.plan import BuildState
from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.assess.builtmodel import find_built_model
from winml_dag.pipeline.assess.measurement import AssessmentRequest, Measurement, carry_out
from winml_dag.pipeline.assess.perf import PerfPlan, plan_perf
from winml_dag.pipeline.host import Host, this_host
from winml_dag.pipeline.run import BuildOptions
from winml_dag.recipe.schema import Perf
from winml_dag.store.records import cache_key
from winml_dag.store.store import Store

HOST = Host("linux x86_64", "A Processor", logical_cores=8, usable_cores=8, memory_gib=16, accelerators=("a GPU 1.0",))


def save(path: Path, *, first: int | str = 2, second: int | str = 3, weight: float = 1.0) -> Path:
    return save_model(path, "Mul", (first, second), np.full(3, weight))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def plan(path: Path, store: Store, host: Host = HOST, **request: Any) -> PerfPlan:
    perf, draws = request.pop("perf", {}), request.pop("draws", False)
    asked = AssessmentRequest(Perf(**perf), path.parent, **request)
    return plan_perf(find_built_model(path), asked, store, host, draws=draws)


def key(planned: PerfPlan) -> str:
    graph = planned.measurement.graph
    key_inputs = BuildState(graph, planned.measurement.sources).key_inputs(graph.nodes[0])
    assert key_inputs is not None
    return cache_key(key_inputs)


def test_host_and_every_setting_are_in_the_key(tmp_path: Path, store: Store) -> None:
    model = save(tmp_path / "model.onnx", first="batch")
    usual = key(plan(model, store))
    assert key(plan(model, store, replace(HOST))) == usual
    hosts = (
        *({"system": "win32 arm64"}, {"processor": "Another"}),
        *({"logical_cores": 4}, {"usable_cores": 1}, {"memory_gib": 32}),
    )
    settings = (
        *({"warmup": 1}, {"iterations": 5}, {"duration": 1.0}, {"threads": 1}),
        *({"batch_size": 4}, {"seed": 1}, {"loads": 1}),
    )
    others = [key(plan(model, store, replace(HOST, **host))) for host in hosts]
    others += [key(plan(model, store, perf=perf)) for perf in settings]
    assert len({usual, *others}) == 1 + len(hosts) + len(settings)


def test_host_identity_has_used_gpu_and_no_hostname() -> None:
    other = replace(HOST, accelerators=("a GPU 1.1",))
    assert HOST.identity(device="cpu") == other.identity(device="cpu")
    assert HOST.identity(device="gpu") != other.identity(device="gpu")
    told = this_host().identity(device="npu")
    assert told == this_host().identity(device="npu")
    assert int(told["logical cores"]) >= int(told["usable cores"]) >= 1
    assert int(told["memory"].split()[0]) >= 1
    assert socket.gethostname() not in told.values()


def test_measured_files_are_in_the_key(tmp_path: Path, store: Store) -> None:
    model, other = save(tmp_path / "model.onnx"), save(tmp_path / "other.onnx", weight=2.0)
    data = tmp_path / "data.npz"
    np.savez(data, x=np.zeros((1, 2, 3), np.float32))
    keys = [
        key(plan(model, store)),
        key(plan(other, store)),
        key(plan(model, store, reference=other)),
        key(plan(model, store, perf={"input_data": "data.npz"})),
    ]
    assert len(set(keys)) == 4
    # Neither a picture nor a seed that nothing reads.
    assert key(plan(model, store, draws=True)) == keys[0]
    assert key(plan(model, store, perf={"input_data": "data.npz", "seed": 7})) == keys[3]

    np.savez(data, x=np.ones((1, 2, 3), np.float32))
    assert key(plan(model, store, perf={"input_data": "data.npz"})) not in keys


def test_unsupported_batch_size_is_refused(tmp_path: Path, store: Store) -> None:
    fixed = save(tmp_path / "model.onnx", first=2)

    with pytest.raises(UsageError, match=r"A batch of 4 does not fit.* x in the shape \[2, 3\] only"):
        plan(fixed, store, perf={"batch_size": 4})


def test_fixed_model_batch_is_given_or_from_its_build(tmp_path: Path, store: Store) -> None:
    built = find_built_model(save(tmp_path / "model.onnx", first=2))

    def planned(size: int | None, **settings: Any) -> str:
        request = AssessmentRequest(Perf(batch_size=size), tmp_path)
        return key(plan_perf(replace(built, settings=settings), request, store, HOST))

    assert planned(2) == planned(None, export={"batch_size": 2})
    assert planned(2) != planned(None) == planned(None, export={"batch_size": 3})


def test_sizes_must_name_open_dimensions(tmp_path: Path, store: Store) -> None:
    model = save(tmp_path / "model.onnx", first="n", second="length")

    assert key(plan(model, store)) != key(plan(model, store, perf={"sizes": {"length": 3}}))
    for name in ("n", "width"):
        with pytest.raises(UsageError, match=rf"leaves no size '{name}' open .* It leaves open: length"):
            plan(model, store, perf={"sizes": {name: 3}})
    np.savez(tmp_path / "data.npz", x=np.zeros((1, 3), np.float32))
    with pytest.raises(UsageError, match=r"perf\.input_data has sizes of its own"):
        plan(model, store, perf={"input_data": "data.npz", "sizes": {"length": 3}})


def test_invalid_data_and_options_are_refused(tmp_path: Path, store: Store) -> None:
    model = save(tmp_path / "model.onnx")

    for name, wrong in (("none.npz", "does not exist"), ("model.onnx", "is no .npz file")):
        with pytest.raises(InputError, match=rf"perf.input_data: .*{name} {wrong}"):
            plan(model, store, perf={"input_data": name})
    with pytest.raises(UsageError, match="has no provider options, but 'fast' is given"):
        plan(model, store, options={"fast": "1"})


def test_measurement_is_not_reused_on_other_hosts(tmp_path: Path, store: Store) -> None:
    model = save(tmp_path / "model.onnx")

    def measured(host: Host, *, rebuild: bool = False) -> Measurement:
        perf = {"warmup": 0, "iterations": 2, "loads": 1}
        return carry_out(plan(model, store, host, perf=perf).measurement, store, BuildOptions(rebuild=rebuild))

    first, again, elsewhere = measured(HOST), measured(HOST), measured(replace(HOST, processor="Another"))

    assert [first.freshness, again.freshness, elsewhere.freshness] == ["live", "cached", "live"]
    assert again.metrics == first.metrics
    assert "processor" in str(elsewhere.results[0].reason)
    assert elsewhere.metrics["host"]["processor"] == "Another"  # type: ignore[index,call-overload]
