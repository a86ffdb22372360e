from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from winml_dag.errors import InputError, StoreError
from winml_dag.store.clone import clone_and_digest, clone_file
from winml_dag.store.digest import digest_bytes


def test_a_clone_of_a_read_only_file_is_an_ordinary_file_of_its_own(tmp_path) -> None:
    source, target, plain = tmp_path / "source", tmp_path / "target", tmp_path / "plain"
    source.write_bytes(b"weights")
    source.chmod(0o444)
    clone_file(source, target)
    plain.touch()
    assert target.read_bytes() == b"weights"
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    assert target.stat().st_ino != source.stat().st_ino
    target.write_bytes(b"other")
    assert source.read_bytes() == b"weights"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_the_umask_decides_who_may_read_a_clone(tmp_path) -> None:
    (tmp_path / "source").write_bytes(b"secret")
    code = (
        "import os; from pathlib import Path; from winml_dag.store.clone import clone_file; os.umask(0o077);"
        "clone_file(Path('source'), Path('target'))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o600


def test_the_digest_is_that_of_the_copy(tmp_path) -> None:
    (tmp_path / "source").write_bytes(b"weights")
    digest = digest_bytes(b"weights", "sha256")
    assert clone_and_digest(tmp_path / "source", tmp_path / "target", "sha256") == (digest, 7)
    assert clone_file(tmp_path / "source", tmp_path / "other", "sha256") == digest


def test_a_source_that_cannot_be_read_is_an_input_error_naming_it(tmp_path) -> None:
    with pytest.raises(InputError, match=r"absent\.onnx"):
        clone_file(tmp_path / "absent.onnx", tmp_path / "target")


def test_an_existing_target_is_not_overwritten_and_a_link_not_followed(tmp_path) -> None:
    (tmp_path / "source").write_bytes(b"new")
    (tmp_path / "precious").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    for target in ("precious", "link"):
        with pytest.raises(StoreError):
            clone_file(tmp_path / "source", tmp_path / target)
    assert (tmp_path / "precious").read_bytes() == b"old"
