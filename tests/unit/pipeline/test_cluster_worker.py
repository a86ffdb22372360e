"""A worker looks at itself: what it says of its machine, and it does nothing but what the key of an order says."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from winml_dag.canonical import JsonObject
from winml_dag.engine.cluster.order import Answer, Order
from winml_dag.engine.keys import cache_key, ingredients_of
from winml_dag.engine.stage import Node
from winml_dag.engine.toolchain import versions
from winml_dag.ep.availability import installed
from winml_dag.ep.elsewhere import environment_elsewhere, knowing
from winml_dag.ep.registry import QNN, Target
from winml_dag.errors import StageError, UsageError
from winml_dag.pipeline.cluster.remotes import remotes_json, remotes_of, require_shared
from winml_dag.pipeline.cluster.report import Offer, Report, environments_of, report_here
from winml_dag.pipeline.cluster.workplace import Workplace
from winml_dag.pipeline.epplace import HERE, ep_place
from winml_dag.stages.devices import DEVICES
from winml_dag.store.local import LocalStore
from winml_dag.store.remote.settings import LevelSettings, Mode, RemoteSettings

OFFER = Offer(2, 1 << 30, ("rack2",))


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path / "cache", OFFER, lambda *_: None)


def order(toolchain: Mapping[str, str], **changes: object) -> Order:
    """Of a stage that is done in half a second: what the CPU's execution provider finds."""
    config: JsonObject = {"execution_provider": "CPUExecutionProvider"}
    node = Node("devices", DEVICES, config, {}, toolchain=toolchain, interpreter=Path("/elsewhere/python"))
    key = cache_key(ingredients_of(node, {}))
    made = Order("id", "topic", node, {}, key, 60.0, 0, rebuild=False, function="xxh3-128")
    return replace(made, **changes)  # type: ignore[arg-type]


def answered(place: Workplace, asked: Order) -> Answer:
    return Answer.from_text(place.perform(asked.to_text()))


def test_an_order_runs_with_the_workers_own_python_and_what_it_makes_is_in_its_store(place: Workplace) -> None:
    asked = order(versions(["onnxruntime"]))
    answer = answered(place, asked)
    assert (answer.ending, answer.error) == ("done", "")
    assert LocalStore(place.folder).record(asked.key) == answer.record
    assert answered(place, replace(asked, id="again")).ending == "found"


def test_what_a_worker_has_from_an_earlier_build_is_put_into_the_remote_of_this_one(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINML_DAG_REMOTE_ACCEPT_UNSIGNED", "1")

    def answered_with(remote: Path) -> tuple[Answer, set[str]]:
        settings = RemoteSettings((LevelSettings(remote.as_uri(), Mode.READ_WRITE),), accept_unsigned=True)
        asked = order(versions(["onnxruntime"]), remotes=remotes_json(settings), function="sha256")
        answer = answered(place, asked)
        return answer, {path.name for path in remote.glob("*/*")}

    made, there = answered_with(tmp_path / "first")
    found, there_now = answered_with(tmp_path / "second")
    assert (made.ending, found.ending) == ("done", "found")
    assert found.record is not None
    assert {found.record.cache_key, *(file.digest.removeprefix("sha256:") for file in found.record.files())} <= there
    assert there_now == there


def test_a_toolchain_that_the_worker_does_not_make_is_refused_before_anything_runs(place: Workplace) -> None:
    answer = answered(place, order({"onnxruntime": "0.1", "numpy": versions(["numpy"])["numpy"]}))
    assert answer.ending == "differs"
    assert answer.error == f"has onnxruntime {versions(['onnxruntime'])['onnxruntime']}, not 0.1"
    assert Report.read("tcp://one", answer.report).places == 2
    assert list((place.folder / "scratch").glob("*")) == []


def test_whatever_is_wrong_with_an_order_is_in_the_answer(place: Workplace) -> None:
    right = order(versions(["onnxruntime"]))
    assert "another key" in answered(place, replace(right, key="0" * 64)).error
    assert "no remotes" in answered(place, replace(right, remotes=[{"url": "file:///x"}])).error
    assert "no order" in Answer.from_text(place.perform('{"protocol": 1}')).error
    place.close()
    assert answered(place, right).ending == "stopped"


@pytest.mark.skipif(os.name != "posix", reason="needs a named pipe")
def test_what_a_stage_says_arrives_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on only when somebody has heard it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'winml_dag.engine.worker' in sys.orig_argv:\n"
        f"    print('so far', flush=True)\n    open({str(tmp_path / 'pipe')!r}).read()\n",
        encoding="utf-8",
    )
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told: list[tuple[str, JsonObject]] = []

    def hear(topic: str, message: JsonObject) -> None:
        told.append((topic, message))
        (tmp_path / "pipe").write_text("go on", encoding="utf-8")

    asked = order(versions(["onnxruntime"]))
    assert answered(Workplace(tmp_path / "cache", OFFER, hear), asked).ending == "done"
    assert told[0] == ("topic", {"order": "id", "progress": None, "log": "so far\n"})


def report(tmp_path: Path, **changes: str) -> Report:
    """Of this machine, with other versions of some packages."""
    told = json.loads(report_here(OFFER, LocalStore(tmp_path / "cache").folder))
    told["environments"][""]["distributions"].update(changes)
    return Report.read("tcp://one", json.dumps(told))


def test_a_report_tells_which_nodes_fit(tmp_path: Path) -> None:
    node = order(HERE.toolchain(["onnxruntime", "numpy"])).node
    assert report(tmp_path).differs(node) == ""
    here = node.toolchain["numpy"]
    assert report(tmp_path, numpy="0.1").differs(node) == f"has numpy 0.1, not {here}"
    assert report(tmp_path, unrelated="0.1").differs(node) == ""
    # A build of onnxruntime under another name is part of every key that onnxruntime is in.
    beside = report(tmp_path, **{"onnxruntime-openvino": "1.2"})
    assert beside.differs(node) == "has onnxruntime-openvino 1.2, not none"
    assert report(tmp_path).differs(replace(node, environment="openvino/npu")) == "has no openvino"
    assert {"rack2", "ep:cpu"} <= set(report(tmp_path).tags)


@pytest.mark.parametrize("text", ["", "{}", '{"protocol": 0}', "[]", '{"protocol": 1, "environments": {}}'])
def test_a_report_of_another_version_is_said_to_be_one(text: str) -> None:
    with pytest.raises(StageError, match="another version"):
        Report.read("tcp://one", text)


def test_a_plan_takes_a_provider_that_only_a_worker_has_from_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = report(tmp_path)
    if not installed(QNN):
        pytest.skip("needs QNN")
    fingerprints = LocalStore(tmp_path / "cache", function="sha256").fingerprints
    own = ep_place(Target(QNN, "npu"), fingerprints).toolchain(["onnxruntime", "onnx"])
    monkeypatch.setattr("winml_dag.pipeline.epplace.installed", lambda _: False)
    with knowing(environments_of([found])):
        assert ep_place(Target(QNN, "npu"), fingerprints).toolchain(["onnxruntime", "onnx"]) == own
    assert environment_elsewhere("qnn/npu") is None


def test_of_workers_that_differ_the_most_places_count_however_they_are_listed(tmp_path: Path) -> None:
    if not installed(QNN):
        pytest.skip("needs QNN")
    one, other = report(tmp_path), report(tmp_path, onnxruntime="0.1")
    small = replace(other, places=1)
    assert environments_of([one, small]) == environments_of([small, one]) == one.providers
    equal = replace(other, places=2)
    assert environments_of([one, equal]) == environments_of([equal, one])


def test_remotes_of_a_build_go_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINML_DAG_REMOTE_ACCEPT_UNSIGNED", "1")
    own = LevelSettings("file:///team", Mode.READ_WRITE, "pull/12", is_back_filled=False, gets_token=True)
    levels = (own, LevelSettings("file:///team", Mode.READ, "main", frozenset({"ci"})), LevelSettings("s3://company"))
    told = remotes_json(RemoteSettings(levels))
    assert remotes_of(json.loads(json.dumps(told))) == RemoteSettings(levels, accept_unsigned=True)
    # A worker on which the token is for another host keeps it to itself.
    monkeypatch.setenv("WINML_DAG_REMOTE_TOKEN_HOST", "cache.example.com")
    assert not any(level.gets_token for level in remotes_of(told).levels)
    require_shared(RemoteSettings(levels))
    for settings in (None, RemoteSettings(levels[1:])):
        with pytest.raises(UsageError, match="through a remote"):
            require_shared(settings)


def test_passwords_stay_on_each_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    told = remotes_json(
        RemoteSettings((LevelSettings("https://ours:hidden@host/cache"), LevelSettings("https://other")))
    )
    assert "hidden" not in json.dumps(told)
    monkeypatch.setenv("WINML_DAG_REMOTE", "https://worker:secret@HOST/cache/ https://another")
    urls = [level.url for level in remotes_of(told).levels]
    assert urls == ["https://worker:secret@HOST/cache/", "https://other"]


@pytest.mark.parametrize("address", ["foo", "tcp://10.0.0.5", "tcp://:x"])
def test_what_cannot_be_an_address_is_told_at_once_to_builds_and_to_workers(address: str, tmp_path: Path) -> None:
    from winml_dag.pipeline.cluster.dasklink import connect
    from winml_dag.pipeline.cluster.service import Service

    with pytest.raises(UsageError, match="There is no scheduler at"):
        connect(address)
    with pytest.raises(UsageError, match="There is no scheduler at"):
        Service(address, tmp_path, Offer.of_this_machine(1, None, ())).run(lambda *_: None)


def test_a_worker_that_looks_for_its_scheduler_can_be_ended(tmp_path: Path) -> None:
    from winml_dag.pipeline.cluster.service import Service

    service = Service("tcp://127.0.0.1:1", tmp_path, Offer.of_this_machine(1, None, ()))
    with pytest.raises(KeyboardInterrupt):
        service.run(lambda *_: None, until=lambda: None)
