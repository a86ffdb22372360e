"""Damage to the cache: flipped bits, truncated files, a lost index, times and clocks that jump."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fault_lab import Lab, at_step, kill_oneself

from winml_dag.canonical import JsonValue
from winml_dag.errors import StoreError
from winml_dag.store.files import PARTIAL
from winml_dag.store.store import Store

_YEAR_SECONDS = 365 * 86400


def damage(lab: Lab) -> Iterator[None]:
    """Flip bits, truncate or extend files anywhere. The next build or a verification comes first, at random."""
    steps_of_a_run = lab.run(lab.graphs.new()).steps
    while True:
        steps = lab.graphs.new()
        lab.build(steps)
        if lab.chance.random() < 0.5:
            # A killed engine leaves the index with a write-ahead log, which can be damaged too.
            moment = lab.chance.randint(steps_of_a_run // 2, steps_of_a_run)
            lab.start(lab.graphs.new(), at_step(moment, kill_oneself)).wait()
        kind = lab.chance.choice(["blobs", "blobs", "records", "records", "index", "index", "FORMAT"])
        path = _some_file(lab, kind)
        _harm(path, lab.chance)
        if kind == "FORMAT":
            _check_format(lab, path)
        elif lab.chance.random() < 0.5:
            _check_named(lab, path, kind)
        lab.build(steps)
        lab.verify()  # finds damage that no build read
        lab.build(steps)
        report = lab.verify()
        assert report.damaged + report.unreadable + report.foreign == (), f"The cache is damaged still: {report}"
        yield


def index_lost(lab: Lab) -> Iterator[None]:
    """Delete all or part of the database, between two builds or during one. Nothing has to run again."""
    steps_of_a_run = lab.run(lab.graphs.new()).steps
    while True:
        steps = lab.graphs.new()
        if lab.chance.random() < 0.5:
            moment = lab.chance.randint(1, steps_of_a_run)
            told = lab.run(steps, at_step(moment, lambda: _lose_index(lab)))
            assert told.done, f"The build failed without its index: {told.words}"
            lab.compare(steps, told)
        else:
            lab.build(steps)
        _lose_index(lab)
        told = lab.build(steps)
        assert set(told.status.values()) == {"reused"}, f"Results were lost with the index: {told.status}"
        assert lab.verify().clean
        yield


def clock_jumps(lab: Lab) -> Iterator[None]:
    """Shift the engine's clock by years, give files and records matching times, and edit a source with its time
    unchanged.
    """
    while True:
        steps = lab.graphs.new()
        lab.run(steps, lambda: None if lab.chance.random() < 0.3 else _shift_clock(lab.chance))
        _shift_times(lab)
        before = lab.graphs.source.stat()
        lab.graphs.edit_source()
        os.utime(lab.graphs.source, ns=(before.st_atime_ns, before.st_mtime_ns))
        told = lab.run(steps, lambda: _shift_clock(lab.chance))
        assert told.done, f"The build failed with a clock that is off: {told.words}"
        lab.compare(steps, told)
        _shift_times(lab)
        lab.check(steps)
        yield


def _check_named(lab: Lab, path: Path, kind: str) -> None:
    """Assert that a verification names the damaged file and takes it out of use."""
    relative = path.relative_to(lab.cache)
    report = lab.verify()
    if kind == "blobs":
        assert report.damaged == (f"{relative.parts[1]}:{''.join(relative.parts[2:])}",), report
    if kind == "records":
        assert report.unreadable == ("".join(relative.parts[1:]).removesuffix(".json"),), report
    if kind != "index":
        assert any((lab.cache / "quarantine").glob("*")), "What is damaged was not kept for its owner."
        assert not path.exists()
    after = lab.verify()
    assert after.damaged + after.unreadable == (), f"It is damaged still: {after}"


def _check_format(lab: Lab, path: Path) -> None:
    try:
        Store(lab.cache).close()
    except StoreError as error:
        assert "format" in str(error), error  # noqa: PT017
        assert error.advice, error  # noqa: PT017
        path.write_text("1\n")


def _some_file(lab: Lab, kind: str) -> Path:
    if kind == "FORMAT":
        return lab.cache / kind
    # Partial files of a killed engine belong to nobody.
    files = [path for path in (lab.cache / kind).rglob("*") if path.is_file() and path.suffix != PARTIAL]
    return lab.chance.choice(sorted(files))


def _harm(path: Path, chance: random.Random) -> None:
    """Damage a file, at random like a failing disk, which keeps all times, or like a program, which changes them."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    place = chance.randrange(len(data)) if data else 0
    match chance.choice(["flip", "flip", "cut", "zeros", "grow"]) if data else "grow":
        case "flip":
            data[place] ^= 1 << chance.randrange(8)
        case "cut":
            del data[place:]
        case "zeros":
            data[place : place + 512] = bytes(len(data[place : place + 512]))
        case "grow":
            data += chance.randbytes(100)
    path.chmod(0o644)
    path.write_bytes(data)
    if chance.random() < 0.5:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _lose_index(lab: Lab) -> None:
    index = lab.cache / "index"
    if lab.chance.random() < 0.4:
        shutil.rmtree(index, ignore_errors=True)
    else:
        (index / lab.chance.choice(["cache.db", "cache.db-wal", "cache.db-shm"])).unlink(missing_ok=True)


def _shift_clock(chance: random.Random) -> None:
    """Shift this process's clock by seconds, hours or years in either direction."""
    seconds = chance.choice([3, 7200, _YEAR_SECONDS]) * chance.choice([-1, 1])
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + seconds * 10**9


def _shift_times(lab: Lab) -> None:
    """Shift the times of the source and of everything in the cache, including those within records and fingerprints."""
    seconds = lab.chance.choice([-_YEAR_SECONDS, -7200, 7200, _YEAR_SECONDS])
    moment = time.time() + seconds
    for path in [lab.graphs.source, *lab.cache.rglob("*")]:
        os.utime(path, (moment, moment))
    store = Store(lab.cache)
    for record in store.records.all():
        store.records.write(replace(record, made_at=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(moment))))
    rows = store.index.read("fingerprint", store.index.names("fingerprint"))
    store.index.write("fingerprint", {name: _shifted(row, seconds * 10**9) for name, row in rows.items()})
    store.close()


def _shifted(row: JsonValue, by_ns: int) -> JsonValue:
    """Return a fingerprint in which everything that looks like a time is shifted."""
    assert isinstance(row, list)
    return [value + by_ns if isinstance(value, int) and value > 10**17 else value for value in row]
