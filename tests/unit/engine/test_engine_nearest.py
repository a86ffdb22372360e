"""What was never built is compared with the record that is nearest to it, in both stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import MemoryStore

from winml_dag.canonical import JsonObject
from winml_dag.engine.diff import MOST_RECORDS, Inputs, Nearest, NearRecords, changes_between
from winml_dag.engine.keys import cache_key, config_hash
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.local import LocalStore
from winml_dag.store.record import Ingredients, Record

MODEL, OTHER = (Artifact((FileEntry("model.onnx", f"xxh3-128:{digit * 32}", 1),)) for digit in "12")
WANTED = Ingredients(
    stage="quantize",
    version=1,
    config={"quant": {"samples": 20, "method": "minmax", "seed": None}},
    inputs={"model": MODEL.digest},
    toolchain={"onnxruntime": "1.31.1"},
)

Keep = Callable[..., Record]


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalStore | MemoryStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    local = LocalStore(tmp_path / "cache")
    yield local
    local.close()


@pytest.fixture
def keep(store: LocalStore | MemoryStore) -> Keep:
    def keep(made_at: str = "2030-01-01T10:00:00+00:00", *, model: Artifact = MODEL, **changes: object) -> Record:
        made = replace(WANTED, inputs={"model": model.digest}, **changes)  # type: ignore[arg-type]
        record = Record(cache_key(made), config_hash(made.config), made, {}, made_at=made_at, made_by="me")
        return store.publish(replace(record, input_files={"model": model.to_json()}), {})

    return keep


def nearest(store: LocalStore | MemoryStore, last: Record | None = None) -> Nearest | None:
    return NearRecords(store).nearest(WANTED, Inputs({"model": MODEL}), last)


def config(**changes: object) -> JsonObject:
    return {"quant": {"samples": 20, "method": "minmax", "seed": None, **changes}}  # type: ignore[dict-item]


def test_without_a_record_of_the_stage_there_is_no_nearest(store: LocalStore | MemoryStore, keep: Keep) -> None:
    assert nearest(store) is None
    keep(stage="calibrate")
    assert nearest(store) is None


def test_the_one_with_the_fewest_differences_is_named_with_all_of_them(
    store: LocalStore | MemoryStore, keep: Keep
) -> None:
    near = keep(config=config(samples=10), toolchain={"onnxruntime": "1.30.0"})
    keep(config=config(samples=10, method="entropy"), toolchain={"onnxruntime": "1.30.0"})
    assert str(nearest(store)) == (
        f"{near.cache_key[:8]} (made 2030-01-01 by me): quant.samples: 10 -> 20; onnxruntime 1.30.0 -> 1.31.1"
    )


def test_of_two_as_near_the_one_with_the_same_inputs_is_taken(store: LocalStore | MemoryStore, keep: Keep) -> None:
    same = keep("2030-01-01", config=config(samples=10))
    keep("2030-01-02", model=OTHER)
    found = nearest(store)
    assert found is not None
    assert found.cache_key == same.cache_key


def test_of_two_alike_the_newer_is_taken(store: LocalStore | MemoryStore, keep: Keep) -> None:
    newer = keep("2030-01-02", config=config(samples=10))
    keep("2030-01-01", config=config(samples=11))
    found = nearest(store)
    assert found is not None
    assert found.cache_key == newer.cache_key


def test_it_names_the_file_that_differs(store: LocalStore | MemoryStore, keep: Keep) -> None:
    keep(model=OTHER)
    assert str(nearest(store)).endswith(": input model: model.onnx changed (xxh3-128:22222222 -> 11111111)")


def test_it_has_to_be_nearer_than_the_last_build_here(store: LocalStore | MemoryStore, keep: Keep) -> None:
    last = keep(config=config(samples=10))
    keep(config=config(samples=11))
    assert nearest(store, last) is None
    far = keep(config=config(samples=10, method="entropy"))
    assert nearest(store, far) is not None


def test_what_differs_in_more_than_it_shares_is_not_near(store: LocalStore | MemoryStore, keep: Keep) -> None:
    keep(model=OTHER, config=config(samples=10, method="entropy"))
    assert nearest(store) is not None
    other = {"quant": {"mode": "fp16"}}
    keep(model=OTHER, config=other)
    goal = replace(WANTED, config={"quant": {"mode": "rtn", "bits": 4, "samples": 20}}, toolchain={})
    assert NearRecords(store).nearest(goal, Inputs({"model": MODEL}), None) is None


def test_an_equal_record_under_another_key_is_none(
    store: LocalStore | MemoryStore, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winml_dag.engine.keys.KEY_FORMAT", 0)
    keep()
    assert nearest(store) is None


def test_only_the_newest_records_of_the_stage_are_looked_at(store: LocalStore | MemoryStore, keep: Keep) -> None:
    keep("2029-01-01", config=config(seed=1))
    for number in range(MOST_RECORDS):
        keep(config=config(samples=number + 100, method="entropy"))
    for number in range(3):
        keep(config=config(samples=number), stage="calibrate")
    found = nearest(store)
    assert found is not None
    assert len(found.changes) == 2


def test_what_is_in_the_index_no_more_is_not_found_and_a_record_that_is_read_again_is(
    store: LocalStore | MemoryStore, keep: Keep
) -> None:
    if isinstance(store, MemoryStore):
        pytest.skip("has no index to lose")
    record = keep(config=config(samples=10))
    store.index.clear()
    assert nearest(store) is None
    assert store.record(record.cache_key) == record
    assert nearest(store) is not None
    store.records.remove(record.cache_key)
    assert nearest(store) is None


fields = st.fixed_dictionaries({name: st.integers(0, 2) for name in "abc"})


@settings(deadline=None)
@given(wanted=fields, records=st.lists(fields, unique_by=lambda made: tuple(made.values()), max_size=6))
def test_no_record_differs_in_fewer_ways_than_the_nearest(wanted: JsonObject, records: list[JsonObject]) -> None:
    store = MemoryStore()
    goal = replace(WANTED, config=wanted)
    others = [replace(WANTED, config=made) for made in records if made != wanted]
    kept = [store.publish(Record(cache_key(made), config_hash(made.config), made, {}), {}) for made in others]
    found = NearRecords(store).nearest(goal, Inputs(), None)
    fewest = min((len(changes_between(record, goal, Inputs())) for record in kept), default=None)
    assert fewest == (None if found is None else len(found.changes))
