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


def test_records_need_no_index_and_reindex_restores_it(store, publish) -> None:
    record = publish(store, FILES)
    store.close()
    shutil.rmtree(store.folder / "index")
    again = Store(store.folder)
    assert again.record(KEY) == record
    assert again.records_of("export", 5) == []
    assert again.records.reindex() == [KEY]
    assert again.records_of("export", 5) == [record]
    again.close()


@pytest.mark.parametrize("text", ["", "{}", "no json", '["0000000000000000",{}]', "[" * 100_000])
def test_unreadable_record_counts_as_absent_and_is_rewritten(store, publish, text) -> None:
    publish(store, FILES)
    store.records.path(KEY).write_text(text)
    assert store.record(KEY) is None
    assert publish(store, FILES) == store.record(KEY)


def test_record_under_another_name_is_ignored(store, publish) -> None:
    publish(store, FILES)
    other = store.records.path(OTHER_KEY)
    other.parent.mkdir()
    store.records.path(KEY).rename(other)
    assert store.record(OTHER_KEY) is None


def test_record_rewritten_by_another_store_is_read(store, publish, new_record, fill) -> None:
    publish(store, FILES)
    store.remember({"name": KEY})
    for data in (b"another", b"a third"):
        again = Store(store.folder).publish(new_record(KEY), {"model": fill({"model.onnx": data})})
        assert store.record(KEY) == again
        assert store.latest(["name"]) == {"name": again}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def test_folder_in_place_of_record_is_quarantined(store, publish) -> None:
    path = store.records.path(KEY)
    path.mkdir(parents=True)
    (path / "notes.txt").write_text("precious")
    assert store.record(KEY) is None
    assert publish(store, FILES) == store.record(KEY)
    (aside,) = store.quarantine.iterdir()
    assert (aside / "notes.txt").read_text() == "precious"


@given(
    name=st.sampled_from(["format", "version", "config", "inputs", "outputs", "metrics", "log", "made_by"]), value=JSON
)
def test_record_with_invalid_field_is_read_or_refused(new_record_json, name, value) -> None:
    # Any other error would propagate and stop a build.
    with contextlib.suppress(StoreError):
        Record.from_json({**new_record_json, name: value})


@pytest.fixture(scope="module")
def new_record_json():
    from winml_dag.store.records import KeyInputs

    return Record(KEY, "c" * 64, KeyInputs("export", 1, {}, {}, {}), {}).to_json()


def test_use_updates_record_time_and_restores_removed_record(store, publish) -> None:
    record = publish(store, FILES)
    os.utime(store.records.path(KEY), (1, 1))
    store.used([KEY])
    assert store.records.last_used_ns(KEY) > 10**9
    assert store.records.last_used_ns(OTHER_KEY) == 0
    here = Store(store.folder)
    assert here.record(KEY) == record
    store.records.remove(KEY)
    assert store.records.keys() == []
    here.used([KEY, OTHER_KEY])
    assert store.records.read_file(KEY) == record
    assert store.records.keys() == [KEY]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_use_of_read_only_cache_is_tolerated(store, publish) -> None:
    publish(store, FILES)
    store.records.path(KEY).unlink()
    store.records.path(KEY).parent.chmod(0o555)
    store.used([KEY])
    store.records.path(KEY).parent.chmod(0o755)
