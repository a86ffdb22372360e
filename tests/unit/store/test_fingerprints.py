from __future__ import annotations

import os
import time

import pytest
from memory_store import MemoryRows

from winml_dag import file_reading
from winml_dag.errors import InputError
from winml_dag.store import digest as module
from winml_dag.store.artifact import FileEntry
from winml_dag.store.digest import Fingerprints, digest_bytes


@pytest.fixture
def settled(monkeypatch):
    """Recent files count as old: otherwise tests would have to wait."""
    monkeypatch.setattr(file_reading, "SETTLED_NS", -(10**12))


@pytest.fixture
def rows() -> MemoryRows:
    return MemoryRows()


@pytest.fixture
def hashed(monkeypatch) -> list[str]:
    """The names of the files that were really read."""
    names = []

    def digest_file(path, function):
        names.append(path.name)
        return original(path, function)

    original = module.digest_file
    monkeypatch.setattr(module, "digest_file", digest_file)
    return names


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"graph")
    return path


@pytest.mark.usefixtures("settled")
def test_unchanged_file_is_hashed_once_per_function(rows, file, hashed) -> None:
    for _ in range(3):
        assert Fingerprints(rows).digest(file) == digest_bytes(b"graph")
    assert hashed == ["model.onnx"]
    assert Fingerprints(rows, "sha256").digest(file) == digest_bytes(b"graph", "sha256")


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("how", ["edited", "replaced", "linked elsewhere"])
def test_changed_bytes_of_same_size_and_time_are_detected(rows, file, tmp_path, how) -> None:
    fingerprints = Fingerprints(rows)
    path, other, status = tmp_path / "current", tmp_path / "other", file.stat()
    path.symlink_to(file)
    assert fingerprints.digest(path) == digest_bytes(b"graph")
    other.write_bytes(b"grapf")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    if how == "edited":
        file.write_bytes(b"grapf")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif how == "replaced":
        other.replace(file)
    else:
        path.unlink()
        path.symlink_to(other)
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert fingerprints.digest(path) == digest_bytes(b"grapf")


@pytest.mark.parametrize("set_back", [False, True])
def test_recently_changed_file_is_not_remembered(rows, file, hashed, monkeypatch, set_back) -> None:
    monkeypatch.setattr(file_reading, "settled_ns", lambda _: file_reading.SETTLED_NS)
    if set_back:
        os.utime(file, (1, 1))
    for _ in range(2):
        Fingerprints(rows).digest(file)
    assert hashed == ["model.onnx", "model.onnx"]


@pytest.mark.usefixtures("settled")
def test_file_from_the_future_is_remembered_once_settled(rows, file, hashed) -> None:
    os.utime(file, (time.time() + 10**6,) * 2)
    fingerprints = Fingerprints(rows)
    fingerprints.digest(file)
    fingerprints.digest(file)
    assert hashed == ["model.onnx"]


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("for_ever", [False, True])
def test_file_changed_while_read_is_reread_or_refused(rows, file, monkeypatch, for_ever) -> None:
    original = module.digest_file

    def change_after_reading(path, function):
        digest = original(path, function)
        if for_ever or file.read_bytes() == b"graph":
            file.write_bytes(file.read_bytes() + b"!")
        return digest

    monkeypatch.setattr(module, "digest_file", change_after_reading)
    if for_ever:
        with pytest.raises(InputError, match=r"model\.onnx keeps changing"):
            Fingerprints(rows).digest(file)
    else:
        assert Fingerprints(rows).entry(file, "m") == FileEntry("m", digest_bytes(b"graph!"), 6)


@pytest.mark.usefixtures("settled")
def test_entries_keep_requested_order(rows, tmp_path, hashed) -> None:
    files = []
    for number in range(20):
        (tmp_path / f"{number}.bin").write_bytes(b"%d" % number)
        files.append((tmp_path / f"{number}.bin", f"data/{number}"))
    expected = [FileEntry(f"data/{n}", digest_bytes(b"%d" % n), len(str(n))) for n in range(20)]
    assert Fingerprints(rows).entries(files) == expected
    assert Fingerprints(rows).entries(files) == expected
    assert len(hashed) == 20


@pytest.mark.usefixtures("settled")
def test_unchanged_detects_edited_and_removed_files(rows, file) -> None:
    fingerprints = Fingerprints(rows)
    digest = fingerprints.digest(file)
    assert fingerprints.unchanged(file, digest)
    file.write_bytes(b"grapf")
    assert not fingerprints.unchanged(file, digest)
    file.unlink()
    assert not fingerprints.unchanged(file, digest)


@pytest.mark.parametrize("what", ["absent", "folder", "dangling", "pipe"])
def test_unreadable_path_is_an_input_error_naming_it(rows, tmp_path, what) -> None:
    path = tmp_path / what
    if what == "folder":
        path.mkdir()
    elif what == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif what == "pipe":
        if not hasattr(os, "mkfifo"):
            pytest.skip("no named pipes here")
        os.mkfifo(path)
    with pytest.raises(InputError, match=what):
        Fingerprints(rows).digest(path)


@pytest.mark.usefixtures("settled")
def test_invalid_row_is_ignored(rows, file) -> None:
    fingerprints = Fingerprints(rows)
    fingerprints.digest(file)
    status = file.stat()
    name = f"xxh3-128:{file}"
    assert rows.read("fingerprint", [name])
    for digest in (None, 5, "nonsense", "sha256:" + "0" * 64):
        row = [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns, digest]
        rows.write("fingerprint", {name: row})
        assert fingerprints.digest(file) == digest_bytes(b"graph")


@pytest.mark.skipif(os.name == "nt", reason="names there are always text")
@pytest.mark.usefixtures("settled")
def test_undecodable_file_name_has_a_fingerprint(store, tmp_path, hashed) -> None:
    path = tmp_path / b"\xff.onnx".decode(errors="surrogateescape")
    path.write_bytes(b"graph")
    for _ in range(2):
        assert store.fingerprints.digest(path) == digest_bytes(b"graph")
    assert len(hashed) == 1


@pytest.mark.usefixtures("settled")
def test_fingerprints_persist_across_stores(store, file, hashed) -> None:
    store.fingerprints.digest(file)
    store.close()
    type(store)(store.folder).fingerprints.digest(file)
    assert len(hashed) == 1
