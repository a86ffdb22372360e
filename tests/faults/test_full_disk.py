"""A full or read-only disk of an output folder is named, and nothing is damaged; for caches, see ``fault_disks``."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_engine import Step, run_steps

from winml_dag.errors import StoreError
from winml_dag.pipeline.publish import OutputFolder, prepare_folder
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount a new, small file system; the argument is its size in MiB."""
    mounted: list[Path] = []

    def small_disk(size: int) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", folder],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"mounting a small disk needs root: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield small_disk
    for folder in mounted:
        subprocess.run(["umount", "--lazy", folder], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


def test_full_output_disk_is_named_and_files_are_kept(cache: Path, small_disk: Callable[[int], Path]) -> None:
    record = run_steps(cache, [Step("large", "write_much", number=3)])["large"].record
    assert record is not None
    disk = small_disk(2)
    (disk / "notes.txt").write_text("mine")
    store = Store(cache)
    prepare_folder(disk / "out")
    folder = OutputFolder(disk / "out", [], store)
    with pytest.raises(StoreError) as failed:
        folder.publish(record.files(), {})
    assert str(disk / "out") in str(failed.value)
    assert " -o" in failed.value.advice, str(failed.value)
    assert [path.name for path in disk.rglob("*") if path.is_file()] == ["notes.txt"]
    assert verify(store).clean
    remount(disk, "size=16m")
    folder.publish(record.files(), {})
    assert (disk / "out" / "weights.bin").stat().st_size == 3 * MIB


def test_read_only_output_folder_is_named_in_advance(
    small_disk: Callable[[int], Path],
) -> None:
    disk = small_disk(1)
    remount(disk, "ro")
    with pytest.raises(StoreError, match=r"out cannot be written: Read-only file system"):
        prepare_folder(disk / "out")
