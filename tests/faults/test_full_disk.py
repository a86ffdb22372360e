"""A full or read-only disk of an output folder is named, and nothing is damaged; for caches, see ``fault_disks``."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_engine import Step, run_steps

from winml_dag.errors import StoreError
from winml_dag.pipeline.publish import OutputFolder, prepare_folder
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


def test_full_output_disk_is_named_and_files_are_kept(cache: Path, small_disk: Callable[[str], Path]) -> None:
    record = run_steps(cache, [Step("large", "write_much", number=3)])["large"].record
    assert record is not None
    disk = small_disk("2m")
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
    assert (disk / "out" / "weights.bin").stat().st_size == 3 << 20


def test_read_only_output_folder_is_named_in_advance(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("1m")
    remount(disk, "ro")
    with pytest.raises(StoreError, match=r"out cannot be written: Read-only file system"):
        prepare_folder(disk / "out")
