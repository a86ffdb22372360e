"""The differences between two runs of a stage as text, and the record nearest to a stage that was never built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import NotedStore

from winml_dag.canonical import JsonObject, JsonValue, canonical_json, json_hash
from winml_dag.engine.diff import (
    MOST_RECORDS,
    Change,
    Nearest,
    NearRecords,
    changes_between,
    field_changes,
    file_changes,
    input_changes,
    summed_up,
)
from winml_dag.engine.events import Inputs
from winml_dag.engine.stage import Source, SourceFile
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import digest_bytes
from winml_dag.store.records import KeyInputs, Record, cache_key
from winml_dag.store.store import Store


def files(**texts: str) -> Artifact:
    return Artifact.of(
        FileEntry(f"{name}.npz", digest_bytes(text.encode(), "xxh3-128"), len(text)) for name, text in texts.items()
    )


def told(old: Artifact, new: Artifact) -> list[str]:
    return [str(change) for change in file_changes(old, new)]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"a": "1", "b": "2"}, {"a": "2", "b": "1"}, ["a.npz and b.npz swapped"]),
        ({"a": "1"}, {"a": "1", "b": "2"}, ["b.npz added"]),
        ({"a": "1", "b": "2"}, {"a": "1"}, ["b.npz removed"]),
        ({"a": "1"}, {"b": "1"}, ["a.npz renamed to b.npz"]),
        ({"a": "1", "b": "2"}, {"b": "1"}, ["a.npz removed", "b.npz changed (xxh3-128:{2} -> {1})"]),
        ({"a": "1", "b": "1"}, {"c": "1", "d": "1"}, ["a.npz renamed to c.npz", "b.npz renamed to d.npz"]),
        (
            {"a": "1", "b": "2", "c": "3"},
            {"a": "2", "b": "3", "c": "1"},
            [
                "a.npz changed (xxh3-128:{1} -> {2})",
                "b.npz changed (xxh3-128:{2} -> {3})",
                "c.npz changed (xxh3-128:{3} -> {1})",
            ],
        ),
        (
            {"a": "1", "b": "2", "c": "1"},
            {"a": "2", "b": "1", "c": "2"},
            ["a.npz and b.npz swapped", "c.npz changed (xxh3-128:{1} -> {2})"],
        ),
    ],
)
def test_changed_files_are_listed_by_kind_of_change(
    old: Mapping[str, str], new: Mapping[str, str], said: list[str]
) -> None:
    digests = ["", *(digest_bytes(text, "xxh3-128").partition(":")[2][:8] for text in (b"1", b"2", b"3"))]
    assert told(files(**old), files(**new)) == [line.format(*digests) for line in said]


texts = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("123"), max_size=6)


@given(old=texts, new=texts)
def test_file_changes_transform_old_files_into_new(old: dict[str, str], new: dict[str, str]) -> None:
    after = {file.name: file.digest for file in files(**old).files}
    told_files = file_changes(files(**old), files(**new))
    for change in told_files:
        if change.how in ("removed", "renamed"):
            assert after.pop(change.name) == change.old
    for change in told_files:
        if change.how == "swapped":
            assert (after[change.name], after[change.other]) == (change.old, change.new)
            after[change.name], after[change.other] = after[change.other], after[change.name]
        elif change.how == "changed":
            assert after[change.name] == change.old != change.new
            after[change.name] = str(change.new)
        elif change.how in ("added", "renamed"):
            after[change.other or change.name] = str(change.new)
    assert after == {file.name: file.digest for file in files(**new).files}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (f"xxh3-128:{'0' * 31}1", f"xxh3-128:{'0' * 31}2", f"xxh3-128:{'0' * 31}1 -> {'0' * 31}2"),
        (f"xxh3-128:{'0' * 32}", f"sha256:{'0' * 64}", "xxh3-128:00000000 -> sha256:00000000"),
    ],
)
def test_digests_are_shortened_but_stay_distinguishable(old: str, new: str, said: str) -> None:
    one, other = (Artifact((FileEntry("a", digest, 1),)) for digest in (old, new))
    assert told(one, other) == [f"a changed ({said})"]


values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, 1.0, "", "1", "null", "not set", "a\nb"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)


@given(old=st.dictionaries(st.sampled_from("ab"), values), new=st.dictionaries(st.sampled_from("ab"), values))
def test_field_changes_match_key_differences(old: dict[str, JsonValue], new: JsonValue) -> None:
    changes = list(field_changes(old, new))
    assert bool(changes) == (canonical_json(old) != canonical_json(new))
    for change in changes:
        before, _, after = str(change).removeprefix(f"{change.name}: ").partition(" -> ")
        assert before != after
        assert "\n" not in str(change)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("10", 10, 'a: "10" -> 10'),
        (None, "null", 'a: null -> "null"'),
        ("", "x", 'a: "" -> x'),
        ({}, None, "a: {} -> null"),
        (None, {"b": 1}, 'a: null -> {"b":1}'),
        ({"b": {"c": 1}}, {"b": {}}, "a.b.c: 1 -> not set"),
        ([1], [1, 2], "a: [1] -> [1,2]"),
        ("x" * 100 + "1", "x" * 100 + "2", f"a: …{'x' * 20}1 -> …{'x' * 20}2"),
        ("1" + "x" * 100, "2" + "x" * 100, f"a: 1{'x' * 59}… -> 2{'x' * 59}…"),
        ("x" * 100, "x" * 101, f"a: …{'x' * 20} -> …{'x' * 21}"),
    ],
)
def test_shown_values_are_distinguishable(old: JsonValue, new: JsonValue, said: str) -> None:
    assert [str(change) for change in field_changes({"a": old}, {"a": new})] == [said]


NODES: list[JsonValue] = [f"/encoder/layer.{number}/MatMul" for number in range(8)]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ([*NODES, "/new"], "/new added"),
        (NODES[1:], "/encoder/layer.0/MatMul removed"),
        (NODES[4:], ", ".join(map(str, NODES[:3])) + " and 1 more removed"),
        (["/new", *NODES[1:]], "/new added, /encoder/layer.0/MatMul removed"),
        (NODES[::-1], "in another order"),
        ([*NODES, NODES[0]], "/encoder/layer.0/MatMul added"),
    ],
)
def test_long_lists_show_only_added_and_removed_items(new: list[JsonValue], said: str) -> None:
    (change,) = field_changes({"quant": {"nodes": NODES}}, {"quant": {"nodes": new}})
    assert str(change) == f"quant.nodes: {said}"
    assert change.to_json() == {"kind": "config", "name": "quant.nodes", "old": NODES, "new": new}


OLD = KeyInputs("compile", 1, {"a": 1}, {}, {"qnn library libQnnHtp.so": "xxh3-128:" + "0" * 32, "numpy": "2.0"})


def test_toolchain_changes_show_versions_and_short_digests() -> None:
    new = replace(OLD, version=2, toolchain={"qnn library libQnnHtp.so": "xxh3-128:" + "f" * 32})
    changes = changes_between(Record("k", "c", OLD, {}), new, Inputs())
    assert summed_up(changes) == (
        "stage version 1 -> 2; numpy 2.0 -> not set; qnn library libQnnHtp.so xxh3-128:00000000 -> xxh3-128:ffffffff"
    )
    assert changes[1].to_json() == {"kind": "toolchain", "name": "numpy", "old": "2.0"}
    assert changes[2].to_json()["new"] == "xxh3-128:" + "f" * 32


def test_many_changes_are_counted_in_summary() -> None:
    changes = list(field_changes({}, {f"optim{number:02}": True for number in range(40)}))
    assert summed_up(changes).endswith("; optim05: not set -> true; and 34 more changes")
    assert summed_up(changes[:7]).endswith("; optim05: not set -> true; and 1 more change")


def test_many_file_changes_are_counted() -> None:
    old, new = files(), files(**{f"s{number:02}": "x" for number in range(40)})
    change = Change("input", "data", old.digest, new.digest, file_changes(old, new))
    assert str(change) == "input data: s00.npz added, s01.npz added, s02.npz added and 37 more"
    assert list(change.lines(2)) == [
        "input data: s00.npz added",
        "input data: s01.npz added",
        "input data: and 38 more files",
    ]


def test_source_files_are_shown_by_user_name(tmp_path: Path) -> None:
    old, new = files(data="1", rest="2"), files(data="2", rest="1")
    own = [SourceFile("data.npz", tmp_path / "mine.npz"), SourceFile("rest.npz", tmp_path / "deep" / "rest.npz")]
    seen = Inputs({"data": new}, {"data": Source("data", "kind", tuple(own))})
    assert [str(change) for change in input_changes(seen, "data", old)] == ["mine.npz and rest.npz swapped"]
    deep = replace(own[1], name="deep/rest.npz")
    one, other = (Artifact((FileEntry("deep/rest.npz", f"xxh3-128:{'0' * 31}{end}", 1),)) for end in "12")
    seen = Inputs({"data": other}, {"data": Source("data", "kind", (deep,))})
    assert [change.name for change in input_changes(seen, "data", one)] == ["deep/rest.npz"]


@pytest.mark.parametrize(
    "noted",
    [
        {},
        {"data": "nonsense"},
        {"data": [{"name": "../a", "digest": "xxh3-128:" + "0" * 32, "size": 1}]},
        {"data": files(a="3").to_json()},
    ],
    ids=["not noted", "malformed", "unsafe name", "of another artifact"],
)
def test_unsound_recorded_files_are_not_compared(noted: Mapping[str, JsonValue]) -> None:
    old, new = files(a="1"), files(a="2")
    made = KeyInputs("calibrate", 1, {}, {"data": old.digest}, {})
    record = Record(cache_key(made), "c", made, {}, input_files=noted)
    changes = changes_between(record, replace(made, inputs={"data": new.digest}), Inputs({"data": new}))
    assert summed_up(changes) == "input data changed"
    assert Record.from_json(record.to_json()) == record


MODEL, OTHER = (Artifact((FileEntry("model.onnx", f"xxh3-128:{digit * 32}", 1),)) for digit in "12")
WANTED = KeyInputs(
    stage="quantize",
    version=1,
    config={"quant": {"samples": 20, "method": "minmax", "seed": None}},
    inputs={"model": MODEL.digest},
    toolchain={"onnxruntime": "1.31.1"},
)

Keep = Callable[..., Record]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    local = Store(tmp_path / "cache")
    yield local
    local.close()


@pytest.fixture
def keep(store: Store) -> Keep:
    def keep(made_at: str = "2030-01-01T10:00:00+00:00", *, model: Artifact = MODEL, **changes: object) -> Record:
        made = replace(WANTED, inputs={"model": model.digest}, **changes)  # type: ignore[arg-type]
        record = Record(cache_key(made), json_hash(made.config), made, {}, made_at=made_at, made_by="me")
        kept = store.publish(replace(record, input_files={"model": model.to_json()}), {})
        store.records.flush()
        return kept

    return keep


def nearest(store: Store, last: Record | None = None) -> Nearest | None:
    return NearRecords(store).nearest(WANTED, Inputs({"model": MODEL}), last)


def config(**changes: object) -> JsonObject:
    return {"quant": {"samples": 20, "method": "minmax", "seed": None, **changes}}  # type: ignore[dict-item]


def test_nearest_record_has_fewest_differences_and_lists_them(store: Store, keep: Keep) -> None:
    keep(stage="calibrate")
    assert nearest(store) is None
    keep(model=OTHER, toolchain={"onnxruntime": "1.0", "onnx": "1", "numpy": "1"})
    assert ": input model: model.onnx changed (xxh3-128:22222222 -> 11111111); numpy" in str(nearest(store))
    near = keep(config=config(samples=10), toolchain={"onnxruntime": "1.30.0"})
    keep(config=config(samples=10, method="entropy"), toolchain={"onnxruntime": "1.30.0"})
    assert str(nearest(store)) == (
        f"{near.cache_key[:8]} (made 2030-01-01 by me): quant.samples: 10 -> 20; onnxruntime 1.30.0 -> 1.31.1"
    )


def test_nearest_record_ties_prefer_same_inputs_then_newest(store: Store, keep: Keep) -> None:
    keep("2030-01-01", config=config(samples=11))
    same = keep("2030-01-02", config=config(samples=10))
    keep("2030-01-01", config=config(samples=12))
    keep("2030-01-03", model=OTHER)
    found = nearest(store)
    assert found is not None
    assert found.cache_key == same.cache_key


def test_nearest_record_must_be_nearer_than_last_build(store: Store, keep: Keep) -> None:
    last = keep(config=config(samples=10))
    keep(config=config(samples=11))
    assert nearest(store, last) is None
    far = keep(config=config(samples=10, method="entropy"))
    assert nearest(store, far) is not None


def test_record_with_more_differences_than_matches_is_not_near(store: Store, keep: Keep) -> None:
    keep(model=OTHER, config=config(samples=10, method="entropy"))
    assert nearest(store) is not None
    other = {"quant": {"mode": "fp16"}}
    keep(model=OTHER, config=other)
    goal = replace(WANTED, config={"quant": {"mode": "rtn", "bits": 4, "samples": 20}}, toolchain={})
    assert NearRecords(store).nearest(goal, Inputs({"model": MODEL}), None) is None


def test_equal_record_under_another_key_is_not_near(store: Store, keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winml_dag.store.records.KEY_FORMAT", 0)
    keep()
    assert nearest(store) is None


def test_only_newest_records_of_the_stage_are_searched(store: Store, keep: Keep) -> None:
    keep("2029-01-01", config=config(seed=1))
    for number in range(MOST_RECORDS):
        keep(config=config(samples=number + 100, method="entropy"))
    for number in range(3):
        keep(config=config(samples=number), stage="calibrate")
    found = nearest(store)
    assert found is not None
    assert len(found.changes) == 2


fields = st.fixed_dictionaries({name: st.integers(0, 2) for name in "abc"})


@settings(max_examples=40)
@given(wanted=fields, records=st.lists(fields, unique_by=lambda made: tuple(made.values()), max_size=6))
def test_no_record_has_fewer_differences_than_the_nearest(wanted: JsonObject, records: list[JsonObject]) -> None:
    store = NotedStore()
    goal = replace(WANTED, config=wanted)
    others = [replace(WANTED, config=made) for made in records if made != wanted]
    kept = [store.publish(Record(cache_key(made), json_hash(made.config), made, {}), {}) for made in others]
    found = NearRecords(store).nearest(goal, Inputs(), None)
    fewest = min((len(changes_between(record, goal, Inputs())) for record in kept), default=None)
    assert fewest == (None if found is None else len(found.changes))
