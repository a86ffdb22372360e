"""Run or reuse: each decision has a reason, in the words of the recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from memory_store import NotedStore

from winml_dag.canonical import json_hash
from winml_dag.engine.plan import Reuse, Run, decide
from winml_dag.store.records import KeyInputs, Record, cache_key

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
        record = Record(key, json_hash(made.config), made, {}, elapsed_seconds=12.5, made_at="2030-01-01")
        store.remember({name: key})
        return store.publish(record, {"model": folder})

    return keep


def run_reason(store: NotedStore, made: KeyInputs) -> str:
    found = decision(store, made)
    assert isinstance(found, Run)
    assert found.key == cache_key(made)
    return str(found.reason)


def decision(store: NotedStore, made: KeyInputs = MADE, **how: bool) -> Reuse | Run:
    return decide(store.latest(["here"]).get("here"), made, store, **how)


def test_result_of_other_build_is_found_and_own_is_up_to_date(store: NotedStore, keep: Keep) -> None:
    first = decision(store)
    assert isinstance(first, Run)
    assert first.estimate_seconds is None
    record = keep(name="elsewhere")
    found = decision(store)
    assert isinstance(found, Reuse)
    assert (found.record, str(found.reason)) == (record, "found in the cache, made 2030-01-01")
    rebuilt = decision(store, rebuild=True)
    assert isinstance(rebuilt, Run)
    assert str(rebuilt.reason) == "--rebuild was given"
    store.remember({"here": record.cache_key})
    again = decision(store)
    assert isinstance(again, Reuse)
    assert (again.record, again.reason.kind) == (record, "up to date")
    other = decision(store, replace(MADE, version=2))
    assert isinstance(other, Run)
    assert other.estimate_seconds == 12.5, "what the last run under this name took"


def test_added_and_removed_options_are_named_individually(store: NotedStore, keep: Keep) -> None:
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
def test_changed_key_inputs_are_named_as_in_recipe(
    store: NotedStore, keep: Keep, change: dict[str, object], reason: str
) -> None:
    keep()
    assert run_reason(store, replace(MADE, **change)) == reason  # type: ignore[arg-type]


def test_lost_blob_is_named(store: NotedStore, keep: Keep) -> None:
    (file,) = keep().files()
    store.lose(file)
    assert run_reason(store, MADE) == "missing or damaged in the cache: quantized.onnx"


def test_changed_key_format_is_reported(store: NotedStore, keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    keep()
    monkeypatch.setattr("winml_dag.store.records.KEY_FORMAT", 2)
    assert run_reason(store, MADE) == "its key is computed differently now"
