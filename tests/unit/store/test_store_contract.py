"""Guarantees of a store."""

from __future__ import annotations

import dataclasses
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_samples import KEY, OTHER_KEY, contents, spoil

from winml_dag.errors import StoreError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.digest import digest_bytes
from winml_dag.store.store import Store

FILES = {"model.onnx": b"graph", "model.onnx.data": b"weights" * 1000, "nested/names.txt": b""}


def test_published_record_is_found_and_fetched_with_its_log(store, new_record, fill, tmp_path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"it went well")
    record = store.publish(new_record(KEY), {"model": fill(FILES), "report": fill({"r.json": b"{}"})}, log)
    assert record == dataclasses.replace(new_record(KEY), outputs=record.outputs, log=record.log)
    assert store.record(KEY) == record
    assert store.missing(record.files()) == []
    store.fetch(record.outputs["model"], tmp_path / "fetched")
    assert contents(tmp_path / "fetched") == FILES
    assert set(record.outputs) == {"model", "report"}
    assert record.log == FileEntry("log.txt", digest_bytes(b"it went well"), 12)
    assert log.read_bytes() == b"it went well"
    store.fetch(Artifact((record.log,)), tmp_path / "logs")
    assert contents(tmp_path / "logs") == {"log.txt": b"it went well"}


@pytest.mark.skipif(os.name == "nt", reason="on Windows a name says what may be run")
def test_executable_bit_survives_fetch_and_link(store, new_record, fill, tmp_path) -> None:
    """One content with both modes: a blob has no mode of its own."""
    folder = fill({"plain.sh": b"#!/bin/sh", "run.sh": b"#!/bin/sh"})
    (folder / "run.sh").chmod(0o755)
    record = store.publish(new_record(KEY), {"tool": folder})

    assert store.record(KEY) == record
    assert [file.executable for file in record.files()] == [False, True]
    assert Artifact.from_json(record.outputs["tool"].to_json()) == record.outputs["tool"]
    for put in (store.fetch, store.link):
        target = tmp_path / put.__name__
        target.mkdir()
        put(record.outputs["tool"], target)
        assert [os.access(target / name, os.X_OK) for name in ("plain.sh", "run.sh")] == [False, True]
        (target / "run.sh").chmod(0o755)
    assert store.missing(record.files()) == []


def test_executable_bit_changes_artifact_digest() -> None:
    """Without an executable file its digest is the same as ever."""
    plain = FileEntry("a", "sha256:" + "0" * 64, 1)
    assert Artifact((plain,)).digest == "sha256:fe68a8bc1f1b55217a922b3c1172bc901b033ac5a87de983be5905802887d7f2"
    assert Artifact((dataclasses.replace(plain, executable=True),)).digest != Artifact((plain,)).digest
    assert plain.to_json() == {"name": "a", "digest": plain.digest, "size": 1}


def test_empty_log_is_not_stored(store, new_record, fill, tmp_path) -> None:
    (tmp_path / "log.txt").touch()
    record = store.publish(new_record(KEY), {"model": fill(FILES)}, tmp_path / "log.txt")
    assert record.log is None
    assert store.record(KEY) == record


def test_records_of_a_stage_are_listed_newest_first(store, new_record) -> None:
    export = new_record(KEY).key_inputs
    for number, stage in enumerate(["export", "quantize", "export", "export", "exports"]):
        made = dataclasses.replace(new_record(f"{number:064x}"), key_inputs=dataclasses.replace(export, stage=stage))
        store.publish(made, {})
    assert [record.cache_key[-1] for record in store.records_of("export", 10)] == ["3", "2", "0"]
    assert [record.cache_key[-1] for record in store.records_of("export", 2)] == ["3", "2"]
    assert store.records_of("compile", 10) == []


def test_latest_is_the_record_remembered_last(store, publish) -> None:
    publish(store, FILES)
    other = publish(store, {"model.onnx": b"other"}, OTHER_KEY)
    store.remember({"résnet / export": KEY})
    store.remember({"résnet / export": OTHER_KEY})
    assert store.latest(["résnet / export"]).get("résnet / export") == other


def test_damaged_blob_is_missing_and_republishing_heals_it(store, publish, tmp_path) -> None:
    record = publish(store, FILES)
    damaged, lost, *_ = record.files()
    spoil(store.blobs.path(damaged.digest), b"grapf")
    store.blobs.path(lost.digest).unlink()
    with pytest.raises(BlobDamaged, match=r"model\.onnx in the cache is damaged") as caught:
        store.fetch(record.outputs["model"], tmp_path / "fetched")
    assert caught.value.file == damaged
    with pytest.raises(BlobDamaged, match=r"model\.onnx\.data in the cache is missing"):
        store.fetch(Artifact((lost,)), tmp_path / "fetched")
    assert contents(tmp_path / "fetched") == {}
    assert store.missing(record.files()) == [damaged, lost]
    assert publish(store, FILES) == record
    store.fetch(record.outputs["model"], tmp_path / "fetched")
    assert contents(tmp_path / "fetched") == FILES


def test_record_with_wrong_blob_size_is_refused(store, publish, tmp_path) -> None:
    (file,) = publish(store, {"model.onnx": b"graph"}).files()
    wrong = dataclasses.replace(file, size=file.size + 1)
    assert store.missing([wrong]) == [wrong]
    with pytest.raises(BlobDamaged, match="another size"):
        store.fetch(Artifact((wrong,)), tmp_path / "fetched")
    assert store.missing([file]) == []


@pytest.mark.parametrize("make", ["file link", "folder link", "dangling link", "pipe", "the folder is a link"])
def test_output_that_is_not_a_regular_file_is_refused(store, new_record, fill, tmp_path, make) -> None:
    folder, secret = fill(FILES), fill({"id_rsa": b"private"})
    if make == "pipe":
        if not hasattr(os, "mkfifo"):
            pytest.skip("no named pipes here")
        os.mkfifo(folder / "weights")
    elif make == "the folder is a link":
        (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    else:
        target = {"file link": secret / "id_rsa", "folder link": secret, "dangling link": tmp_path / "nowhere"}[make]
        (folder / "weights").symlink_to(target, target_is_directory=make == "folder link")
    output, said = (tmp_path / "link", "not a folder") if "folder is" in make else (folder, "weights in output 'model'")
    with pytest.raises(StoreError, match=said):
        store.publish(new_record(KEY), {"model": output})
    assert store.record(KEY) is None
    assert FILES.items() <= contents(folder).items()
    assert (secret / "id_rsa").read_bytes() == b"private"


@pytest.mark.skipif("sys.platform == 'win32'", reason="Windows itself refuses these names")
@pytest.mark.parametrize(
    "name", ["con.onnx", "trailing.", "back\\slash", "new\nline", b"\xff.bin".decode(errors="surrogateescape")]
)
def test_unsafe_output_name_is_refused(store, new_record, fill, name) -> None:
    with pytest.raises(StoreError, match="safe file name"):
        store.publish(new_record(KEY), {"model": fill({name: b"x"})})
    assert store.record(KEY) is None


def test_outputs_differing_only_in_case_are_refused_before_moving(store, new_record, fill) -> None:
    folder = fill({"Model.onnx": b"1", "model.onnx": b"2"})
    if len(contents(folder)) < 2:
        pytest.skip("this file system folds case")
    with pytest.raises(StoreError, match="one name twice"):
        store.publish(new_record(KEY), {"model": folder})
    assert len(contents(folder)) == 2


def test_empty_output_is_refused(store, new_record, fill) -> None:
    with pytest.raises(StoreError, match="Output 'report' is empty"):
        store.publish(new_record(KEY), {"model": fill(FILES), "report": fill({})})
    assert store.record(KEY) is None


@pytest.mark.parametrize("key", ["", "short", "../../../etc/passwd", "A" * 64, "a" * 65, "a" * 63 + "\n"])
def test_invalid_key_is_refused(store, publish, key) -> None:
    with pytest.raises(StoreError, match="not a cache key"):
        publish(store, FILES, key)
    with pytest.raises(StoreError, match="not a cache key"):
        store.record(key)


def test_fetch_never_leaves_its_folder(store, publish, tmp_path) -> None:
    (file,) = publish(store, {"model.onnx": b"graph"}).files()
    with pytest.raises(StoreError, match="safe file name"):
        store.fetch(Artifact((dataclasses.replace(file, name="../escaped"),)), tmp_path / "fetched")
    assert not (tmp_path / "escaped").exists()


def test_fetch_replaces_a_link_instead_of_following_it(store, publish, fill) -> None:
    record = publish(store, {"model.onnx": b"graph"})
    folder = fill({"precious": b"mine"})
    (folder / "model.onnx").symlink_to(folder / "precious")
    store.fetch(record.outputs["model"], folder)
    assert contents(folder) == {"precious": b"mine", "model.onnx": b"graph"}
    assert not (folder / "model.onnx").is_symlink()


PARTS = st.text(
    st.characters(codec="utf-8", exclude_characters='/\\<>:"|?*', exclude_categories=["C"]), min_size=1, max_size=12
)
NAMES = PARTS.filter(lambda part: part[-1] not in ". " and part not in ("..", ".") and len(part.encode()) < 200)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    data=st.dictionaries(NAMES, st.binary(max_size=300), min_size=1, max_size=4),
    function=st.sampled_from(["xxh3-128", "sha256"]),
    number=st.integers(0, 10**9),
)
def test_any_names_and_bytes_roundtrip(tmp_path_factory, new_record, data, function, number) -> None:
    data = {name: content for name, content in data.items() if not unsafe(name)}
    if not data or len({name.casefold() for name in data}) != len(data):
        return
    base = tmp_path_factory.mktemp("round")
    store = Store(base / "cache", function=function)
    key = f"{number:064x}"
    folder = base / "out"
    folder.mkdir()
    for name, content in data.items():
        (folder / name).write_bytes(content)
    record = store.publish(new_record(key), {"model": folder})
    store.fetch(record.outputs["model"], base / "got")
    assert contents(base / "got") == data
    assert {file.name: file.digest for file in record.files()} == {
        name: digest_bytes(content, function) for name, content in data.items()
    }
    store.close()
    assert Store(base / "cache").record(key) == record


def unsafe(name: str) -> bool:
    try:
        Artifact.of([FileEntry(name, "", 0)])
    except StoreError:
        return True
    return False
