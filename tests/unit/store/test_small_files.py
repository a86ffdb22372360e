"""Operations on small files: complete reads, and unique names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from winml_dag.store.files import open_to_read, read_rest


@pytest.mark.parametrize("expected", [0, 3, 7, 100])
def test_a_file_that_grew_or_shrank_meanwhile_is_read_to_its_end(tmp_path, expected: int) -> None:
    (tmp_path / "file").write_bytes(b"weights")
    opened = open_to_read(tmp_path / "file")
    try:
        assert read_rest(opened, expected) == b"weights"
    finally:
        os.close(opened)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
def test_a_forked_process_makes_other_partial_names() -> None:
    code = (
        "import os; from winml_dag.store.files import partial_in; pid = os.fork();"
        "pid and os.wait(); print(partial_in('folder'), flush=True)"
    )
    # One after the other: an unbuffered name and its line end are two writes, which could interleave.
    names = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert len(set(names)) == 2
