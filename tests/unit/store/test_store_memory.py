"""Memory does not grow with the size of what is stored and restored."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from winml_dag.store.files import remove_tree

BYTES = 128 << 20
LIMIT = 32 << 20

# The peak of the program itself; that of getrusage starts with the parent's usage at the start.
STORE_AND_RESTORE = """
    from pathlib import Path
    from winml_dag.store.clone import clone_file
    from winml_dag.store.store import Store
    from winml_dag.store.records import KeyInputs, Record

    def peak():
        lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024

    store = Store(Path("cache"))
    record = Record("0" * 64, "c", KeyInputs("export", 1, {}, {}, {}), {})
    before = peak()
    digest = clone_file(Path("source"), Path("output/model.onnx.data"))
    artifact = store.publish(record, {"model": Path("output")}).outputs["model"]
    store.fetch(artifact, Path("fetched"))
    assert store.fingerprints.digest(Path("fetched/model.onnx.data")) == artifact.files[0].digest == digest
    print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_does_not_grow_with_file_size(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    with open(tmp_path / "source", "wb") as source:
        source.truncate(BYTES)
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STORE_AND_RESTORE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    # Reading and writing the files must cause some growth, or nothing was measured.
    assert 0 < int(finished.stdout) < LIMIT
    # pytest keeps the folders of the last three runs.
    remove_tree(tmp_path)
