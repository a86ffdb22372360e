"""Killed processes, crowds, full disks and damaged files: never wrong bytes, and never a lost store."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from store_samples import KEY, OTHER_KEY, contents

from winml_dag.errors import StoreError
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.records import Record
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify

# Program of the other processes: publish key after key, each with its own bytes and common weights.
PUBLISHER = """
    import sys
    from pathlib import Path
    from winml_dag.store.store import Store
    from winml_dag.store.records import KeyInputs, Record

    def publish(store, root, number):
        folder = root / str(number)
        folder.mkdir()
        (folder / "model.onnx").write_bytes(b"%d" % number * 1000)
        (folder / "model.onnx.data").write_bytes(b"weights" * 10_000)
        (root / "log").write_text(f"log {number}")
        record = Record(f"{number:064x}", "c", KeyInputs("export", 1, {}, {}, {}), {})
        return store.publish(record, {"model": folder}, root / "log")

    store = Store(Path(sys.argv[1]))
"""


def run(code: str, *arguments: object) -> subprocess.Popen[str]:
    program = textwrap.dedent(PUBLISHER) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check_number(store: Store, number: int, folder: Path) -> None:
    record = store.record(f"{number:064x}")
    assert record is not None
    store.fetch(record.outputs["model"], folder)
    assert contents(folder) == {"model.onnx": b"%d" % number * 1000, "model.onnx.data": b"weights" * 10_000}


def test_a_store_whose_writers_are_killed_at_random_is_clean_and_has_all_they_finished(tmp_path) -> None:
    endless = """
        import itertools
        with store.scratch.open() as root:
            for number in itertools.count(int(sys.argv[2])):
                with store.claim(f"{number:064x}"):
                    publish(store, root, number)
                print(number, flush=True)
    """
    chance = random.Random(7)
    finished: list[int] = []
    for attempt in range(6):
        process = run(endless, tmp_path / "cache", attempt * 1000)
        assert process.stdout is not None
        finished.extend(int(process.stdout.readline()) for _ in range(chance.randrange(1, 12)))
        os.kill(process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        process.communicate()
        store = Store(tmp_path / "cache")
        assert verify(store).clean
        store.close()
    for number in finished:
        check_number(store, number, tmp_path / "fetched")
    with store.scratch.open() as root:
        assert list(store.scratch.folder.iterdir()) == [root]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks to be quick")
def test_a_store_is_valid_whichever_step_of_publishing_its_writer_was_killed_at(tmp_path, new_record) -> None:
    """Every audit event of Python is a step: opening, renaming, changing modes and times."""
    step, killed = 0, True
    while killed:
        key = f"{step:064x}"
        folder = tmp_path / f"output{step}"
        folder.mkdir()
        (folder / "model.onnx").write_bytes(b"%d" % step)
        (folder / "shared").write_bytes(b"shared")
        child = os.fork()
        if child == 0:
            _publish_killed_at(step, tmp_path / "cache", new_record(key), folder)
        status = os.waitpid(child, 0)[1]
        killed = os.WIFSIGNALED(status)
        assert killed or os.WEXITSTATUS(status) == 0
        store = Store(tmp_path / "cache")
        assert verify(store).clean, step
        record = store.record(key)
        assert record is not None or killed
        if record is not None:
            store.fetch(record.outputs["model"], tmp_path / f"fetched{step}")
            assert contents(tmp_path / f"fetched{step}") == {"model.onnx": b"%d" % step, "shared": b"shared"}
        store.close()
        step += 1
    assert step > 20


def _publish_killed_at(last: int, cache: Path, record: Record, folder: Path) -> NoReturn:
    steps = itertools.count()

    def count(event: str, _: object) -> None:
        if event.startswith(("os.", "open", "sqlite3.")) and next(steps) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    # Whatever happens, the child must not continue with its parent's tests.
    try:
        store = Store(cache)
        sys.addaudithook(count)
        store.publish(record, {"model": folder})
        store.remember({"name": record.cache_key})
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("claim", [True, False])
def test_processes_that_publish_the_same_keys_at_once_all_succeed(tmp_path, claim) -> None:
    crowd = """
        import contextlib, random
        numbers = list(range(25))
        random.Random(int(sys.argv[2])).shuffle(numbers)
        print("ready", flush=True)
        sys.stdin.readline()
        with store.scratch.open() as root:
            for number in numbers:
                with store.claim(f"{number:064x}") if sys.argv[3] == "True" else contextlib.nullcontext():
                    if sys.argv[3] == "False" or store.record(f"{number:064x}") is None:
                        publish(store, root, number)
                        print(number, flush=True)
    """
    processes = [run(crowd, tmp_path / "cache", seed, claim) for seed in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    published = 0
    for process in processes:
        output, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
        published += len(output.split())
    store = Store(tmp_path / "cache")
    assert verify(store).clean
    for number in range(25):
        check_number(store, number, tmp_path / "fetched")
    if claim:
        assert published == 25


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX")
def test_a_write_that_the_system_refuses_is_an_error_in_words_and_leaves_nothing_half(tmp_path) -> None:
    refused = """
        import resource
        from dataclasses import replace
        from winml_dag.errors import StoreError
        with store.scratch.open() as root:
            publish(store, root, 1)
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
            big = Record(f"{2:064x}", "c", KeyInputs("export", 1, {}, {}, {}), {}, metrics={"big": "x" * 100_000})
            folder = root / "2"
            folder.mkdir()
            (folder / "model.onnx").write_bytes(b"small")
            try:
                store.publish(big, {"model": folder})
            except StoreError as error:
                print(error)
    """
    output, errors = run(refused, tmp_path / "cache").communicate()
    assert "Cannot store the outputs of export: the quota or the limit on file size is reached" in output, errors
    store = Store(tmp_path / "cache")
    assert verify(store).clean
    assert not list(store.folder.rglob("*.partial"))
    assert store.record(f"{2:064x}") is None
    check_number(store, 1, tmp_path / "fetched")


def test_a_full_disk_is_an_error_in_words_and_leaves_a_valid_store(tmp_path) -> None:
    full = """
        from winml_dag.errors import StoreError
        from winml_dag.store.upkeep import verify
        try:
            for number in range(10_000):
                publish(store, Path(sys.argv[2]), number)
        except StoreError as error:
            print(error)
        last = store.record(f"{number:064x}")
        whole = last is None or not store.missing(last.files())  # there when the index was what could not grow
        print(verify(store).clean, whole, store.record(f"{number - 1:064x}") is not None)
        print([str(path) for path in store.folder.rglob("*.partial")])
    """
    (tmp_path / "small").mkdir()
    (tmp_path / "outputs").mkdir()
    (tmp_path / "program").write_text(textwrap.dedent(PUBLISHER) + textwrap.dedent(full))
    mount = "mount -t tmpfs -o size=2m small small && exec {} program small outputs"
    try:
        result = subprocess.run(
            ["unshare", "-rm", "sh", "-c", mount.format(sys.executable)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("needs a file system of its own")
    if "mount" in result.stderr or "unshare" in result.stderr:
        pytest.skip("may not mount a file system here")
    lines = result.stdout.splitlines()
    assert "disk is full" in lines[0], result.stderr
    assert lines[1:] == ["True True True", "[]"], result.stderr


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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.integers(0, 10**6),
    at=st.floats(0, 1),
    how=st.sampled_from(["truncate", "flip", "zeros", "grow"]),
    only=st.sampled_from(["*", "index/*", "index/cache.db", "index/cache.db"]),
)
@example(which=0, at=0.0, how="truncate", only="index/cache.db")
def test_damage_anywhere_never_gives_wrong_bytes_and_never_stops_a_build(
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
    shutil.rmtree(base)


def test_a_store_error_is_all_that_a_reader_ever_sees_of_a_broken_index_folder(store, publish) -> None:
    publish(store, FILES)
    store.close()
    shutil.rmtree(store.folder / "index")
    (store.folder / "index").write_text("a file")
    with pytest.raises(StoreError, match="a file is where a folder should be"):
        store.record(KEY)
