"""Killed processes, crowds and damaged files: never wrong bytes, and never a lost store."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kills import killed_at_change
from store_samples import KEY, OTHER_KEY, contents

from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.records import Record
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks to be quick")
def test_store_is_valid_after_kill_at_any_publishing_step(tmp_path, new_record, fill) -> None:
    step, killed = 0, True
    while killed:
        step += 1
        key, files = f"{step:064x}", {"model.onnx": b"%d" % step, "shared": b"shared"}
        store = Store(tmp_path / "cache")
        killed = killed_at_change(step, partial(_publish, store, new_record(key), fill(files)))
        assert verify(store).clean, step
        record = store.record(key)
        assert record is not None or killed
        if record is not None:
            store.fetch(record.outputs["model"], tmp_path / f"fetched{step}")
            assert contents(tmp_path / f"fetched{step}") == files
        store.close()
    assert step > 10


def _publish(store: Store, record: Record, folder: Path) -> None:
    store.publish(record, {"model": folder})
    store.remember({"name": record.cache_key})


# Publishes key after key, each with its own bytes and common weights.
PUBLISHER = """
import random, sys
from pathlib import Path
from winml_dag.store.store import Store
from winml_dag.store.records import KeyInputs, Record
numbers = list(range(15))
random.Random(int(sys.argv[2])).shuffle(numbers)
print("ready", flush=True)
sys.stdin.readline()
store = Store(Path(sys.argv[1]))
with store.scratch.open() as root:
    for number in numbers:
        folder = root / str(number)
        folder.mkdir()
        (folder / "model.onnx").write_bytes(b"%d" % number * 1000)
        (folder / "model.onnx.data").write_bytes(b"weights" * 10_000)
        store.publish(Record(f"{number:064x}", "c", KeyInputs("export", 1, {}, {}, {}), {}), {"model": folder})
"""


def test_concurrent_publishers_of_same_keys_all_succeed(tmp_path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, str(tmp_path / "cache"), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert (process.communicate()[1], process.returncode) == ("", 0)
    store = Store(tmp_path / "cache")
    assert verify(store).clean
    for number in range(15):
        record = store.record(f"{number:064x}")
        assert record is not None
        store.fetch(record.outputs["model"], tmp_path / "fetched")
        assert contents(tmp_path / "fetched") == {
            "model.onnx": b"%d" % number * 1000,
            "model.onnx.data": b"weights" * 10_000,
        }


FILES = {"model.onnx": b"graph", "model.onnx.data": bytes(range(256)) * 40}


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> tuple[Path, Record]:
    """A store with two records and a fingerprint, its database not yet merged with its write-ahead log."""
    from winml_dag.store.records import KeyInputs

    base = tmp_path_factory.mktemp("sound")
    store = Store(base / "cache")
    (base / "source").write_bytes(b"source")
    os.utime(base / "source", (1, 1))
    records = []
    for key in (KEY, OTHER_KEY):
        (base / key).mkdir()
        for name, data in FILES.items():
            (base / key / name).write_bytes(data)
        made = Record(key, "c", KeyInputs("export", 1, {}, {}, {}), {}, metrics={"nodes": 37})
        records.append(store.publish(made, {"model": base / key}))
        store.remember({"name": key})
        # Half of it in the database itself, half in its log.
        if key == KEY:
            store.close()
    shutil.copytree(base / "cache", base / "copy")
    store.close()
    return base / "copy", records[0]


def _damage(path: Path, at: float, how: str) -> None:
    data = bytearray(path.read_bytes())
    place = min(int(at * len(data)), len(data) - 1)
    if not data:
        return
    match how:
        case "truncate":
            del data[place:]
        case "flip":
            data[place] ^= 1 << (place % 8)
        case "zeros":
            data[place : place + 512] = bytes(len(data[place : place + 512]))
        case "grow":
            data += b"\xff" * 100
    path.chmod(0o644)
    path.write_bytes(data)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.integers(0, 10**6),
    at=st.floats(0, 1),
    how=st.sampled_from(["truncate", "flip", "zeros", "grow"]),
    only=st.sampled_from(["*", "index/*", "index/cache.db", "index/cache.db"]),
)
@example(which=0, at=0.0, how="truncate", only="index/cache.db")
def test_any_damage_never_gives_wrong_bytes_or_stops_a_build(
    sound, tmp_path_factory, new_record, which, at, how, only
) -> None:
    source, expected = sound
    base = tmp_path_factory.mktemp("damaged")
    shutil.copytree(source, base / "cache")
    files = sorted(path for path in (base / "cache").rglob(only) if path.is_file() and path.name != "FORMAT")
    _damage(files[which % len(files)], at, how)

    store = Store(base / "cache")
    record = store.record(KEY)
    assert record in (None, expected)
    assert store.latest(["name"]).get("name") is None or store.latest(["name"]).get("name").outputs == expected.outputs
    try:
        store.fetch(expected.outputs["model"], base / "fetched")
        assert contents(base / "fetched") == FILES
    except BlobDamaged:
        assert store.missing(expected.files())
    for name, data in FILES.items():
        (base / "again").mkdir(exist_ok=True)
        (base / "again" / name).write_bytes(data)
    store.publish(new_record(KEY), {"model": base / "again"})
    assert store.record(KEY).outputs == expected.outputs
    store.fetch(expected.outputs["model"], base / "fetched")
    assert contents(base / "fetched") == FILES
    verify(store)
    assert verify(store).clean
    store.close()


def test_store_works_without_index(store, publish) -> None:
    record = publish(store, FILES)
    store.close()
    shutil.rmtree(store.folder / "index")
    (store.folder / "index").write_text("a file")
    assert store.record(KEY) == record
    publish(store, FILES, OTHER_KEY)
    store.remember({"name": KEY})
    assert store.latest(["name"]) == {}
    assert store.records_of("export", 5) == []
