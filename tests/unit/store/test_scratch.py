from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_samples import contents

from winml_dag.store.store import Store

LIVE = """
import sys
from pathlib import Path
from winml_dag.store.store import Store
with Store(Path(sys.argv[1])).scratch.open() as root:
    (root / "work").write_text("half done")
    print(root, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def living(store: Store):
    """Another process with a scratch folder, until its standard input ends; returned with that folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", LIVE, str(store.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    root = process.stdout.readline().strip()
    yield process, store.scratch.folder / os.path.basename(root)  # noqa: PTH119
    process.kill()
    process.communicate()


def roots(store: Store) -> list[str]:
    return sorted(path.name for path in store.scratch.folder.iterdir())


def test_scratch_folder_is_empty_private_and_removed(store) -> None:
    with store.scratch.open() as first, store.scratch.open() as second:
        assert first != second
        assert contents(first) == contents(second) == {}
        (first / "work").write_text("half done")
    assert roots(store) == []
    assert not list((store.folder / "locks").glob("scratch-*"))


def test_scratch_with_read_only_files_is_removed_after_failure(store) -> None:
    def fail(root: Path) -> None:
        (root / "a" / "b").mkdir(parents=True)
        (root / "a" / "b" / "file").write_text("x")
        (root / "a" / "b" / "file").chmod(0o444)
        (root / "a" / "b").chmod(0o555)
        (root / "a").chmod(0o555)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.scratch.open() as root:
        fail(root)
    assert roots(store) == []


def test_link_in_scratch_is_removed_and_not_followed(store, tmp_path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    (tmp_path / "precious").chmod(0o555)
    with store.scratch.open() as root:
        (root / "link").symlink_to(tmp_path / "precious", target_is_directory=True)
        (root / "closed").mkdir()
        (root / "closed" / "link").symlink_to(tmp_path / "precious" / "file")
        (root / "closed").chmod(0o555)
    assert roots(store) == []
    assert contents(tmp_path / "precious") == {"file": b"mine"}
    assert (tmp_path / "precious").stat().st_mode & 0o777 == 0o555


def test_dead_process_scratch_is_removed_and_live_one_kept(store, living) -> None:
    process, root = living
    with store.scratch.open():
        assert contents(root) == {"work": b"half done"}
    process.kill()
    process.wait()
    assert contents(root) == {"work": b"half done"}
    with store.scratch.open() as mine:
        assert roots(store) == [mine.name]
    assert not list((store.folder / "locks").glob("scratch-*"))


def test_oldest_scratch_start_precedes_its_creation(store, living) -> None:
    process, root = living
    before = store.scratch.oldest_began()
    assert before is not None
    assert before < root.stat().st_mtime_ns
    assert before > root.stat().st_mtime_ns - 60 * 10**9
    with store.scratch.open():
        assert store.scratch.oldest_began() == before
    process.kill()
    process.wait()
    assert store.scratch.oldest_began() is None, "the dead do not count"


def test_scratch_name_without_time_counts_as_oldest(store) -> None:
    (store.scratch.folder / "odd").mkdir(parents=True)
    with store.locks.hold("scratch-odd"):
        assert store.scratch.oldest_began() == 0
