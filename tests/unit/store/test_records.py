from __future__ import annotations

import contextlib
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_samples import KEY, OTHER_KEY

from winml_dag.errors import StoreError
from winml_dag.store.records import Record
from winml_dag.store.store import Store

FILES = {"model.onnx": b"graph"}


def test_a_record_is_found_again_after_the_index_was_deleted_and_the_index_filled_again(store, publish) -> None:
    record = publish(store, FILES)
    store.close()
    shutil.rmtree(store.folder / "index")
    again = Store(store.folder)
    assert again.record(KEY) == record
    again.close()
    assert again.index.names("record") == [KEY]


@pytest.mark.parametrize("text", ["", "{}", "no json", '["0000000000000000",{}]', "[" * 100_000])
def test_a_record_that_cannot_be_read_counts_as_absent_and_running_again_heals_it(store, publish, text) -> None:
    publish(store, FILES)
    store.index.clear()
    store.records.path(KEY).write_text(text)
    assert store.record(KEY) is None
    assert publish(store, FILES) == store.record(KEY)


def test_a_record_under_another_records_name_is_not_taken_for_it(store, publish) -> None:
    publish(store, FILES)
    other = store.records.path(OTHER_KEY)
    other.parent.mkdir()
    store.records.path(KEY).rename(other)
    store.index.clear()
    assert store.record(OTHER_KEY) is None
    store.index.write("record", {OTHER_KEY: publish(store, FILES).to_json()})
    assert store.record(OTHER_KEY) is None


def test_a_sound_file_is_taken_when_the_row_in_the_index_makes_no_sense(store, publish) -> None:
    record = publish(store, FILES)
    store.index.write("record", {KEY: {"format": 1}})
    assert store.record(KEY) == record


def test_what_was_stored_again_is_read_before_the_index_has_it(store, publish, new_record, fill) -> None:
    publish(store, FILES)
    store.remember({"name": KEY})
    for _ in range(2):
        again = store.publish(new_record(KEY), {"model": fill({"model.onnx": b"another"})})
        assert store.record(KEY) == again
        assert store.latest(["name"]) == {"name": again}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    name=st.sampled_from(["format", "version", "config", "inputs", "outputs", "metrics", "log", "made_by"]), value=JSON
)
def test_a_record_with_any_nonsense_in_a_field_is_read_or_refused_in_words(new_record_json, name, value) -> None:
    # Any other error would propagate and stop a build.
    with contextlib.suppress(StoreError):
        Record.from_json({**new_record_json, name: value})


@pytest.fixture(scope="module")
def new_record_json():
    from winml_dag.store.records import KeyInputs

    return Record(KEY, "c" * 64, KeyInputs("export", 1, {}, {}, {}), {}).to_json()


def test_a_use_sets_the_time_of_the_records_file(store, publish) -> None:
    publish(store, FILES)
    os.utime(store.records.path(KEY), (1, 1))
    store.used([KEY])
    assert store.records.last_used_ns(KEY) > 10**9
    assert store.records.last_used_ns(OTHER_KEY) == 0


def test_a_use_brings_back_a_file_that_was_removed_while_its_row_was_still_there(store, publish) -> None:
    record = publish(store, FILES)
    store.records.path(KEY).unlink()
    assert store.record(KEY) == record
    assert store.records.keys() == [KEY]
    store.used([KEY])
    assert store.records.read_file(KEY) == record
    store.records.remove(KEY)
    assert store.records.keys() == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_use_of_a_read_only_cache_is_no_error(store, publish) -> None:
    publish(store, FILES)
    store.records.path(KEY).unlink()
    store.records.path(KEY).parent.chmod(0o555)
    store.used([KEY])
    store.records.path(KEY).parent.chmod(0o755)
