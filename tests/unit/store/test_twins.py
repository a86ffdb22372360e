"""Blobs with a name for each of two digests: made by one read, checked and removed name by name."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from store_samples import contents

from winml_dag.store import twins
from winml_dag.store.artifact import Artifact
from winml_dag.store.collect import Limits, collect
from winml_dag.store.digest import digest_bytes
from winml_dag.store.files import shared_inode
from winml_dag.store.local import LocalStore
from winml_dag.store.record import Record
from winml_dag.store.twins import make_twin
from winml_dag.store.upkeep import info, verify

# Two reads, the second of them short.
DATA = b"weights" * 200_000


def test_a_twin_has_the_same_bytes_and_takes_no_room(
    store: LocalStore, put: Callable[..., Record], tmp_path: Path
) -> None:
    record = put(1, DATA)
    (file,) = record.outputs["out"].files
    before = info(store).unique_bytes
    assert make_twin(store.blobs, file.digest, "sha256") == digest_bytes(DATA, "sha256")
    twin = Artifact.of([type(file)(file.name, digest_bytes(DATA, "sha256"), file.size)])
    assert store.missing(twin.files) == []
    store.fetch(twin, tmp_path / "out")
    assert contents(tmp_path / "out") == {file.name: DATA}
    assert info(store).unique_bytes == before
    assert make_twin(store.blobs, file.digest, "sha256") == twin.files[0].digest
    assert verify(store).clean


def test_where_no_link_can_be_made_a_twin_is_a_copy(
    store: LocalStore, put: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = put(1, DATA).outputs["out"].files

    def refused(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(twins.os, "link", refused)
    twin = make_twin(store.blobs, file.digest, "sha256")
    assert twin is not None
    paths = [store.blobs.path(digest) for digest in (twin, file.digest)]
    assert [path.read_bytes() for path in paths] == [DATA, DATA]
    assert not paths[0].samefile(paths[1])
    assert verify(store).clean


def test_files_are_told_apart_where_the_system_has_no_numbers_for_them(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"bytes")
    assert shared_inode(one.stat()) == 0
    os.link(one, other)
    assert shared_inode(one.stat()) == shared_inode(other.stat()) != 0
    # Network drives and memory cards on Windows.
    fields = list(one.stat())
    fields[stat.ST_INO] = 0
    assert shared_inode(os.stat_result(fields)) == 0


def test_what_is_damaged_or_gone_has_no_twin(store: LocalStore, put: Callable[..., Record]) -> None:
    rotten, gone = put(1, b"rotten", b"gone").files()
    path = store.blobs.path(rotten.digest)
    status = path.stat()
    path.chmod(0o600)
    path.write_bytes(b"ROTTEN")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    store.blobs.path(gone.digest).unlink()
    assert [make_twin(store.blobs, file.digest, "sha256") for file in (rotten, gone)] == [None, None]
    assert list(store.blobs.all()) == []
    assert len(list(store.quarantine.iterdir())) == 1


def test_both_names_go_with_what_needed_them(store: LocalStore, put: Callable[..., Record]) -> None:
    (file,) = put(1, DATA, days=2).outputs["out"].files
    make_twin(store.blobs, file.digest, "sha256")
    foreseen = collect(store, Limits(older_than_seconds=86_400), dry_run=True)
    done = collect(store, Limits(older_than_seconds=86_400))
    assert foreseen is not None
    assert done is not None
    assert list(store.blobs.all()) == []
    assert done.freed_bytes == foreseen.freed_bytes
    assert file.size <= done.freed_bytes < file.size + 10_000
