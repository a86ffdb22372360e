from __future__ import annotations

import errno
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import platformdirs
import pytest
from store_samples import KEY, contents

from winml_dag.errors import StoreError, UsageError
from winml_dag.store.cache_folder import default_cache_dir, store_folder
from winml_dag.store.digest import read_rest
from winml_dag.store.files import in_words, open_to_read, partial_name
from winml_dag.store.store import Store

FILES = {"model.onnx": b"graph"}


def test_new_folder_becomes_a_format_1_store(tmp_path) -> None:
    Store(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "FORMAT").read_text().strip() == "1"


@pytest.mark.parametrize("text", ["2", "", "one", "\x00\xff"])
def test_unknown_format_is_refused_and_unchanged(tmp_path, text) -> None:
    (tmp_path / "FORMAT").write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match="format") as caught:
        Store(tmp_path)
    assert "--cache-dir" in caught.value.advice
    assert [path.name for path in tmp_path.iterdir()] == ["FORMAT"]


def test_store_keeps_its_digest_function(tmp_path) -> None:
    for name, function, marker in (("alone", "xxh3-128", "1\n"), ("shared", "sha256", "1 sha256\n")):
        assert Store(tmp_path / name, function=function).function == function
        assert Store(tmp_path / name).function == function
        assert (tmp_path / name / "FORMAT").read_text() == marker
    assert Store(tmp_path / "default").function == "xxh3-128"
    for name, function in (("alone", "sha256"), ("shared", "xxh3-128")):
        with pytest.raises(StoreError, match=f"and {function} is needed here"):
            Store(tmp_path / name, function=function)
        assert Store(store_folder(tmp_path / name, function), function=function).folder.parent == tmp_path / name


def test_folder_with_other_files_is_not_adopted(tmp_path) -> None:
    (tmp_path / "thesis.docx").write_text("precious")
    with pytest.raises(StoreError, match=r"not a cache: it has thesis\.docx"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.docx"]


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_file_in_place_of_folder_is_refused(tmp_path, path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="a file is where a folder should be"):
        Store(tmp_path / path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anything")
def test_unwritable_store_is_reported(store, publish, tmp_path) -> None:
    publish(store, FILES)
    store.close()
    (tmp_path / "closed").mkdir(mode=0o555)
    with pytest.raises(StoreError, match="permission denied"):
        Store(tmp_path / "closed" / "cache")
    (store.blobs.folder / "xxh3-128").chmod(0o555)
    try:
        with pytest.raises(StoreError, match="permission denied"):
            publish(store, FILES | {"other": b"x"}, "a" * 64)
    finally:
        (store.blobs.folder / "xxh3-128").chmod(0o755)


def test_default_folder_is_variable_or_user_cache_folder(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", str(tmp_path / "mine"))
    assert default_cache_dir() == tmp_path / "mine"
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", "~/mine")
    assert default_cache_dir() == Path.home() / "mine"
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", "")
    for given in ("", "relative", str(tmp_path / "xdg")):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert default_cache_dir() == platformdirs.user_cache_path("winml_dag", appauthor=False)


def test_user_without_home_is_advised_to_name_the_cache(monkeypatch):
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", "~/mine")
    # As in Python where neither the environment nor the system has a home folder.
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(UsageError, match="this user has no such folder"):
        default_cache_dir()


@pytest.mark.parametrize(
    ("number", "words"),
    [("ENOSPC", "disk is full"), ("EFBIG", "limit on file size"), ("EROFS", "read-only"), ("EIO", "error")],
)
def test_system_errors_are_explained(number, words) -> None:
    with pytest.raises(StoreError, match=words) as caught, in_words("Cannot store the outputs of export"):
        raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)), "weights.bin")
    assert caught.value.message.startswith("Cannot store the outputs of export: ")
    assert "weights.bin" in caught.value.message


def test_missing_log_is_an_error_and_nothing_is_recorded(store, new_record, fill) -> None:
    with pytest.raises(StoreError, match=r"log\.txt"):
        store.publish(new_record(KEY), {"model": fill(FILES)}, fill({}) / "log.txt")
    assert store.record(KEY) is None


def test_file_blocking_a_fetch_is_reported(store, publish, fill) -> None:
    record = publish(store, {"nested/model.onnx": b"graph"})
    folder = fill({"nested": b"in the way"})
    with pytest.raises(StoreError, match="a file is where a folder should be"):
        store.fetch(record.outputs["model"], folder)
    assert contents(folder) == {"nested": b"in the way"}


@pytest.mark.parametrize("expected", [0, 3, 7, 100])
def test_file_is_read_to_its_end_despite_wrong_size(tmp_path, expected: int) -> None:
    (tmp_path / "file").write_bytes(b"weights")
    opened = open_to_read(tmp_path / "file")
    try:
        assert read_rest(opened, expected) == b"weights"
    finally:
        os.close(opened)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
def test_forked_process_uses_other_partial_names() -> None:
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        theirs = pool.submit(partial_name)
        assert theirs.result() != partial_name()
