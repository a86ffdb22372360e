"""Regenerates the recorded stores in ``cache_fixtures/``: ``make cache-fixtures``.

Each is what a real build of a small model leaves in a cache folder, without transient files: the index, which is
refilled from the records, locks and scratch folders. A new format number gets a folder of its own next to these. The
old ones stay, because users keep caches of that format.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from winml_dag import build_onnx_model
from winml_dag.store.cache_folder import FORMAT
from winml_dag.store.store import Store

FIXTURES = Path(__file__).parents[1] / "cache_fixtures"
_OF_THE_MOMENT = ("index", "locks", "scratch", "quarantine", "failures", "standing", "statistics.txt")


def small_model(path: Path) -> None:
    """Save y = relu(x W), 8 by 8."""
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "weight")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["xw"]), helper.make_node("Relu", ["xw"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        [weight],
    )
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def main() -> None:
    sound = FIXTURES / f"format-{FORMAT}"
    with tempfile.TemporaryDirectory() as folder:
        small_model(Path(folder) / "small.onnx")
        cache = Path(folder) / "cache"
        build_onnx_model(Path(folder) / "small.onnx", Path(folder) / "out", precision="int8", cache_dir=cache)
        shutil.rmtree(sound, ignore_errors=True)
        shutil.copytree(cache, sound, ignore=shutil.ignore_patterns(*_OF_THE_MOMENT))
    damage_all(sound)


def damage_all(sound: Path) -> None:
    """Regenerate the damaged stores next to *sound*."""
    damage(sound, "flipped-blob", lambda store: flip(largest(store / "blobs")))
    damage(sound, "truncated-blob", lambda store: truncate(largest(store / "blobs")))
    damage(sound, "flipped-record", lambda store: flip(largest(store / "records")))
    damage(sound, "lost-blob", lambda store: largest(store / "blobs").unlink())
    damage(sound, "records-only", lambda store: shutil.rmtree(store / "blobs"))
    damage(sound, "truncated-index", lambda store: halve(indexed(store)))
    damage(sound, "damaged-index", lambda store: scramble(indexed(store)))
    damage(sound, "foreign-files", put_foreign_files)
    damage(sound, "unknown-format", lambda store: (store / "FORMAT").write_text("999\n", encoding="utf-8"))


def damage(sound: Path, name: str, harm: Callable[[Path], object]) -> None:
    """Copy *sound* and apply *harm* to the copy."""
    target = FIXTURES / f"{sound.name}-{name}"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(sound, target)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    harm(target)


def largest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: (path.stat().st_size, path))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(bytes(data))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def indexed(store: Path) -> Path:
    """Return the database of *store* as one file, filled from its records."""
    opened = Store(store)
    for record in opened.records.all():
        opened.remember({f"out\n{record.key_inputs.stage}": record.cache_key})
    opened.close()
    database = store / "index" / "cache.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for path in (*store.glob("index/cache.db-*"), store / "locks"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return database


def halve(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def scramble(path: Path) -> None:
    """Change every 64th byte after the first page, so that the database opens but is wrong everywhere."""
    data = bytearray(path.read_bytes())
    for place in range(4096, len(data), 64):
        data[place] ^= 0x5A
    path.write_bytes(bytes(data))


def put_foreign_files(store: Path) -> None:
    """Add files that users and other programs leave in a folder."""
    for name in ("blobs/thesis.docx", "blobs/xxh3-128/31/desktop.ini", "records/notes.txt", "readme.md"):
        (store / name).parent.mkdir(exist_ok=True)
        (store / name).write_text("precious\n", encoding="utf-8")


if __name__ == "__main__":
    main()
