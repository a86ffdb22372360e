"""A worker inspects its machine, and runs only what matches the key of an order."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import Reschedule

import winml_dag.pipeline.cluster
from winml_dag.canonical import JsonObject
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.plan import Reuse
from winml_dag.engine.run import RunOutcome
from winml_dag.engine.stage import Node, key_inputs_of
from winml_dag.ep.availability import environment_elsewhere, installed, knowing
from winml_dag.ep.registry import QNN, Target
from winml_dag.errors import StageError, UsageError
from winml_dag.installed import versions
from winml_dag.pipeline.cluster.cluster import require_shared
from winml_dag.pipeline.cluster.report import NO_REPORT, Report, Requirement, Worker, environments_of, folder_identity
from winml_dag.pipeline.cluster.worker import Order, Workplace, serve
from winml_dag.pipeline.cluster.workers import connect
from winml_dag.pipeline.line import HERE, ep_place
from winml_dag.pipeline.remoteconfig import with_secrets_of_this_machine
from winml_dag.stages.devices import DEVICES
from winml_dag.store.digest import Fingerprints
from winml_dag.store.records import cache_key
from winml_dag.store.remote.settings import Mode, RemoteSettings, TierSettings
from winml_dag.store.store import Store


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    Store(tmp_path / "cache")
    return Workplace(tmp_path / "cache")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What a worker on this machine reports."""
    return Report.here(Store(tmp_path_factory.mktemp("reporting")).folder, 2, 1 << 30, ("rack2",))


def order(place: Workplace, toolchain: Mapping[str, str], **changes: object) -> Order:
    """Return an order of a stage that takes half a second: detecting the devices of the CPU provider."""
    config: JsonObject = {"execution_provider": "CPUExecutionProvider"}
    node = Node("devices", DEVICES, config, {}, toolchain=toolchain, interpreter=Path("/elsewhere/python"))
    key = cache_key(key_inputs_of(node, {}))
    asked = Order(
        topic="topic",
        node=node,
        inputs={},
        key=key,
        timeout_seconds=60.0,
        rebuild=False,
        store=folder_identity(place.folder),
        function="xxh3-128",
    )
    return replace(asked, **changes)  # type: ignore[arg-type]


def answered(place: Workplace, asked: Order) -> RunOutcome:
    return place.perform("task", pickle.loads(pickle.dumps(asked))).outcome


def test_order_runs_with_worker_python_and_is_stored(place: Workplace) -> None:
    asked = order(place, versions(["onnxruntime"]))
    outcome = answered(place, asked)
    assert isinstance(outcome, StageResult)
    assert (outcome.status, outcome.error) == (Status.RAN, "")
    assert Store(place.folder).record(asked.key) == outcome.record
    assert isinstance(answered(place, asked), Reuse)


def test_cached_worker_result_is_uploaded_to_the_build_remote(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINML_DAG_REMOTE_ACCEPT_UNSIGNED", "1")

    def answered_with(remote: Path) -> tuple[RunOutcome, set[str]]:
        settings = RemoteSettings((TierSettings(remote.as_uri(), Mode.READ_WRITE),), accept_unsigned=True)
        asked = order(place, versions(["onnxruntime"]), remotes=settings.tiers, store="another", function="sha256")
        outcome = answered(place, asked)
        return outcome, {path.name for path in remote.glob("*/*")}

    made, there = answered_with(tmp_path / "first")
    found, there_now = answered_with(tmp_path / "second")
    assert isinstance(made, StageResult)
    assert isinstance(found, Reuse)
    assert {found.record.cache_key, *(file.digest.removeprefix("sha256:") for file in found.record.files())} <= there
    assert there_now == there


def test_worker_with_changed_toolchain_leaves_before_running(place: Workplace) -> None:
    left: list[bool] = []
    place.leave = lambda: left.append(True)
    with pytest.raises(Reschedule):
        answered(place, order(place, {"onnxruntime": "0.1", "numpy": versions(["numpy"])["numpy"]}))
    assert left
    assert place.outdated == f"has onnxruntime {versions(['onnxruntime'])['onnxruntime']}, not 0.1"
    assert list((place.folder / "scratch").glob("*")) == []


def test_order_with_other_key_is_refused_and_closed_worker_runs_nothing(place: Workplace) -> None:
    right = order(place, versions(["onnxruntime"]))
    with pytest.raises(StageError, match="another key"):
        answered(place, replace(right, key="0" * 64))
    place.close()
    with pytest.raises(Reschedule):
        answered(place, right)


def worker(report: Report, **changes: str) -> Worker:
    """Return a worker on this machine, with other versions of some packages."""
    told = json.loads(report.model_dump_json())
    told["environments"][""]["distributions"].update(changes)
    return Worker("tcp://one", Report.model_validate(told), "sha256", shares_store=False)


def test_worker_report_decides_which_nodes_fit(place: Workplace, report: Report) -> None:
    node = order(place, HERE.toolchain(["onnxruntime", "numpy"])).node
    need = Requirement.of(node)
    assert worker(report).differs(need) == ""
    here = node.toolchain["numpy"]
    assert worker(report, numpy="0.1").differs(need) == f"has numpy 0.1, not {here}"
    assert worker(report, unrelated="0.1").differs(need) == ""
    # A build of onnxruntime under another name is part of every key that contains onnxruntime.
    beside = worker(report, **{"onnxruntime-openvino": "1.2"})
    assert beside.differs(need) == "has onnxruntime-openvino 1.2, not none"
    assert worker(report).differs(replace(need, environment="openvino/npu")) == "has no openvino"
    assert {"rack2", "ep:cpu"} <= set(report.tags)


@pytest.mark.skipif(not installed(QNN), reason="needs QNN")
def test_worker_only_provider_is_planned_from_reports(
    place: Workplace, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = worker(report)
    fingerprints = Fingerprints(Store(place.folder).index, "sha256")
    own = ep_place(Target(QNN, "npu"), fingerprints).toolchain(["onnxruntime", "onnx"])
    monkeypatch.setattr("winml_dag.pipeline.line.installed", lambda _: False)
    with knowing(environments_of([one])):
        assert ep_place(Target(QNN, "npu"), fingerprints).toolchain(["onnxruntime", "onnx"]) == own
    assert environment_elsewhere("qnn/npu") is None
    # Of workers that differ, the most places count, however they are listed.
    other = worker(report, onnxruntime="0.1")
    small = replace(other, report=other.report.model_copy(update={"places": 1}))
    assert environments_of([one, small]) == environments_of([small, one]) == one.providers
    assert environments_of([one, other]) == environments_of([other, one])


def test_worker_uses_its_own_secrets_for_build_remotes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINML_DAG_REMOTE_ACCEPT_UNSIGNED", "1")
    own = TierSettings("file:///team", Mode.READ_WRITE, "pull/12", is_back_filled=False, gets_token=True)
    tiers = (own, TierSettings("file:///team", Mode.READ, "main", frozenset({"ci"})), TierSettings("s3://company"))
    assert with_secrets_of_this_machine(tiers) == RemoteSettings(tiers, accept_unsigned=True)
    # A worker whose token is for another host does not send it.
    monkeypatch.setenv("WINML_DAG_REMOTE_TOKEN_HOST", "cache.example.com")
    assert not any(tier.gets_token for tier in with_secrets_of_this_machine(tiers).tiers)
    require_shared(RemoteSettings(tiers))
    for settings in (None, RemoteSettings(tiers[1:])):
        with pytest.raises(UsageError, match="through a remote"):
            require_shared(settings)


def test_worker_inserts_its_own_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINML_DAG_REMOTE", "https://worker:secret@HOST/cache/ https://another")
    settings = with_secrets_of_this_machine((TierSettings("https://host/cache"), TierSettings("https://other")))
    assert [tier.url for tier in settings.tiers] == ["https://worker:secret@HOST/cache/", "https://other"]


def test_missing_dask_suggests_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError) as refused:
        importlib.reload(winml_dag.pipeline.cluster)
    assert refused.value.advice == "pip install winml_dag[cluster]"


@pytest.mark.parametrize("address", ["foo", "tcp://10.0.0.5", "tcp://:x"])
def test_invalid_scheduler_address_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no scheduler at"):
        connect(address)
    with pytest.raises(UsageError, match="There is no scheduler at"):
        serve(address, tmp_path, NO_REPORT, None, lambda _: None)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")
@pytest.mark.parametrize(("number", "ignored"), [(signal.SIGINT, ""), (signal.SIGTERM, "INT")])
def test_worker_waiting_for_scheduler_can_be_interrupted(tmp_path: Path, number: int, ignored: str) -> None:
    """Even if it ignores Ctrl-C, like background processes of a shell."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "winml_dag", "worker", address, "--cache-dir", str(tmp_path / "cache")]
        shell = ["sh", "-c", f"trap '' {ignored}; exec \"$@\"" if ignored else 'exec "$@"', "sh"]
        working = subprocess.Popen([*shell, *command], stderr=subprocess.PIPE, text=True)
        with silent.accept()[0]:
            working.send_signal(number)
            said = working.communicate()[1]
    assert working.returncode == 130, said
