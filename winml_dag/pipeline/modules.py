"""``module_summary.json`` for a list of modules: which cell is which module.

It has the format of winml-cli, so that tools for its results can read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.errors import UsageError
from winml_dag.file_reading import read_bytes, read_json
from winml_dag.recipe.reading import ModuleItem, module_items

if TYPE_CHECKING:
    from winml_dag.pipeline.documents import BuildManifest
    from winml_dag.pipeline.sweep.result import CellResult
    from winml_dag.recipe.sweep import Sweep

SUMMARY = "module_summary.json"


def modules_of(sweep: Sweep, folder: Path) -> tuple[ModuleItem, ...]:
    """Return the modules that the cells of *sweep* build; none if it is not a list of modules.

    Raises:
        UsageError: when a file that is not owned is in the summary's path in *folder*.
    """
    items = module_items(sweep.path) if not sweep.axes and len(sweep.files) == 1 else None
    if items and os.path.lexists(folder / SUMMARY) and not _is_summary(folder / SUMMARY):
        raise UsageError(
            f"{folder / SUMMARY} is in the way: it is no summary of modules, so it is not overwritten.",
            advice="Move it, or choose another folder with -o.",
        )
    return items or ()


def write_summary(folder: Path, items: Sequence[ModuleItem], cells: Sequence[CellResult], model: str | None) -> None:
    """Write the results of *cells*, each one of *items* of *model*, to *folder*; an equal summary is not rewritten."""
    made = [_manifest(folder / cell.folder) if cell.is_there else None for cell in cells]
    instances = [_instance(folder, *each) for each in zip(items, cells, made, strict=True)]
    value: JsonObject = {
        "model_id": next((of.model_id for of in made if of is not None and of.model_id), model),
        "module_class": instances[0]["class_name"],
        "instance_count": len(instances),
        "instances": instances,
    }
    data = (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
    path = folder / SUMMARY
    if not path.is_file() or read_bytes(path) != data:
        from winml_dag.store.files import in_words, write_whole

        with in_words(f"Cannot write {path}"):
            write_whole(path, data)


def _instance(folder: Path, item: ModuleItem, cell: CellResult, made: BuildManifest | None) -> JsonObject:
    """Return the summary of one module; ``error`` is null if its build exists."""
    elapsed = None if made is None else made.elapsed_seconds
    return {
        "module_path": item.module_path,
        "class_name": item.class_name or "module",
        "output_dir": str(folder / cell.folder),
        "build_elapsed_s": round(cell.elapsed_seconds if elapsed is None else elapsed, 2),
        "error": None if cell.is_there else cell.why,
    }


def _manifest(folder: Path) -> BuildManifest | None:
    from winml_dag.pipeline.manifest import read_manifest

    manifest = read_manifest(folder)
    return None if manifest is None else manifest.told


def _is_summary(path: Path) -> bool:
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and isinstance(value.get("instances"), list)
