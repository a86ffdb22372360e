"""Run or reuse: each decision has a reason, in the words of the recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from memory_store import NotedStore

from winml_dag.engine.keys import cache_key, config_hash
from winml_dag.engine.plan import Reuse, Run, decide
from winml_dag.store.records import KeyInputs, Record

MADE = KeyInputs(
    stage="quantize",
    version=1,
    config={"quant": {"samples": 10, "method": "minmax", "seed": None}},
    inputs={"model": "sha256:aa"},
    toolchain={"onnxruntime": "1.30.0"},
)

Keep = Callable[..., Record]


@pytest.fixture
def store() -> NotedStore:
    return NotedStore()


@pytest.fixture
def keep(store: NotedStore, tmp_path: Path) -> Keep:
    """Records a run of *made*, remembered under *name*."""

    def keep(made: KeyInputs = MADE, name: str = "here") -> Record:
        key = cache_key(made)
        folder = tmp_path / key[:8]
        folder.mkdir()
        (folder / "quantized.onnx").write_text("weights")
        record = Record(key, config_hash(made.config), made, {}, elapsed_seconds=12.5, made_at="2030-01-01")
        store.remember({name: key})
        return store.publish(record, {"model": folder})

    return keep


def run_reason(store: NotedStore, made: KeyInputs, name: str = "here") -> str:
    decision = decide(store.latest([name]).get(name), made, store)
    assert isinstance(decision, Run)
    assert decision.key == cache_key(made)
    return str(decision.reason)


def test_what_stands_under_its_name_is_up_to_date(store: NotedStore, keep: Keep) -> None:
    record = keep()
    decision = decide(store.latest(["here"]).get("here"), MADE, store)
    assert isinstance(decision, Reuse)
    assert decision.record == record
    assert decision.reason.kind == "up to date"


def test_what_another_build_made_is_found(store: NotedStore, keep: Keep) -> None:
    keep(name="elsewhere")
    decision = decide(store.latest(["here"]).get("here"), MADE, store)
    assert isinstance(decision, Reuse)
    assert str(decision.reason) == "found in the cache, made 2030-01-01"
    rebuilt = decide(store.latest(["here"]).get("here"), MADE, store, rebuild=True)
    assert isinstance(rebuilt, Run)
    assert str(rebuilt.reason) == "--rebuild was given"


def test_options_that_come_and_go_are_named_one_by_one(store: NotedStore, keep: Keep) -> None:
    none, some = ({"compile": {"provider_options": options}} for options in ({}, {"soc_model": "60"}))
    keep(replace(MADE, config=none))
    assert run_reason(store, replace(MADE, config=some)) == "compile.provider_options.soc_model: not set -> 60"
    keep(replace(MADE, config=some))
    gone = replace(MADE, config=none, version=2)
    assert "compile.provider_options.soc_model: 60 -> not set" in run_reason(store, gone)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"config": {"quant": {"samples": 10, "method": "minmax"}}}, "quant.seed: null -> not set"),
        (
            {"config": {"quant": {"samples": 10.0, "method": "entropy", "seed": None, "bits": None}}},
            "quant.bits: not set -> null; quant.method: minmax -> entropy; quant.samples: 10 -> 10.0",
        ),
        ({"inputs": {"model": "sha256:bb"}}, "input model changed"),
        ({"inputs": {}}, "input model is gone"),
        ({"inputs": {"model": "sha256:aa", "data": "sha256:cc"}}, "input data is new"),
        ({"toolchain": {"onnxruntime": "1.31.1"}}, "onnxruntime 1.30.0 -> 1.31.1"),
        ({"toolchain": {"onnxruntime": "1.30.0", "torch": "2.13"}}, "torch not set -> 2.13"),
        ({"version": 2}, "stage version 1 -> 2"),
        ({"stage": "requantize"}, "stage quantize -> requantize"),
    ],
)
def test_each_key_input_that_changed_is_named_as_in_the_recipe(
    store: NotedStore, keep: Keep, change: dict[str, object], reason: str
) -> None:
    keep()
    assert run_reason(store, replace(MADE, **change)) == reason  # type: ignore[arg-type]


def test_a_lost_blob_is_named(store: NotedStore, keep: Keep) -> None:
    (file,) = keep().files()
    store.lose(file)
    assert run_reason(store, MADE) == "missing or damaged in the cache: quantized.onnx"


def test_the_estimate_is_what_the_last_run_under_this_name_took(store: NotedStore, keep: Keep) -> None:
    assert isinstance(first := decide(store.latest(["here"]).get("here"), MADE, store), Run)
    assert first.estimate_seconds is None
    keep()
    assert isinstance(again := decide(store.latest(["here"]).get("here"), replace(MADE, version=2), store), Run)
    assert again.estimate_seconds == 12.5


def test_a_key_made_in_another_way_is_said_to_be(
    store: NotedStore, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep()
    monkeypatch.setattr("winml_dag.engine.keys.KEY_FORMAT", 2)
    assert run_reason(store, MADE) == "its key is computed differently now"
