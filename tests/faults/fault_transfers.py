"""SIGKILL for machines that share a remote, while they upload their results and fetch those of others."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

from fault_lab import Lab

from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.remote.settings import Mode, SigningKey, TierSettings
from winml_dag.store.remote.tier import Remotes
from winml_dag.store.remote.trust import Maker, Trust
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify

_TRUST = Trust((SigningKey("ours", b"o" * 32),), Maker("winml_dag 1.0"))
_MACHINES = ("one", "other")
# Few, so that both machines often want the same at once. A third of them is new after each kill.
_RESULTS, _NEW_RESULTS = 12, 4
# In every third result, whose partial transfer is resumed after a kill.
_LARGE_BYTES = 9 << 20
# About the time two machines take for all new results.
_LONGEST_DELAY_SECONDS = 0.5
_PATIENCE_SECONDS = 120


def kill_transfer(lab: Lab) -> Iterator[None]:
    """Kill two machines at once after a random delay. Occasionally both complete their work."""
    remote = lab.folder / "remote"
    remote.mkdir()
    for first in itertools.count(0, _NEW_RESULTS):
        numbers = range(first, first + _RESULTS)
        running = [_Machine(lab.folder / name, remote, numbers, lab.chance.random()) for name in _MACHINES]
        for machine in running:
            machine.wait_until_begun()
        threading.Event().wait(lab.chance.uniform(0, _LONGEST_DELAY_SECONDS))
        for machine in running:
            machine.kill()
        _check(lab.folder, remote)
        if lab.chance.random() < 0.3:
            for name in _MACHINES:
                _Machine(lab.folder / name, remote, numbers).wait()
            _check(lab.folder, remote)
            held = {path.name for path in remote.glob("ac/*")}
            made = {key for name in _MACHINES for key in _records(lab.folder / name)}
            assert made, "Nothing was made."
            assert made <= held, f"Not all that was made is there: {made - held}"
        yield


class _Machine:
    """A process that acts as the machine with *cache*: endlessly with a *seed*, otherwise until all is shared."""

    def __init__(self, cache: Path, remote: Path, numbers: range, seed: float | None = None) -> None:
        begun, tell_begun = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _be_machine(cache, remote, numbers, seed, tell_begun)
        os.close(tell_begun)
        self._begun = open(begun, "rb")  # noqa: SIM115

    def wait_until_begun(self) -> None:
        with self._begun:
            assert self._begun.read(), "It ended before it had begun."

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        assert code == -signal.SIGKILL, f"It had ended with {code}."

    def wait(self) -> None:
        self.wait_until_begun()
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        assert code == 0, f"It ended with {code}."


def _files(number: int) -> dict[str, bytes]:
    """Return the output of the stage for result *number*."""
    chance = random.Random(number)
    files = {f"file{each}": chance.randbytes(chance.choice((1, 5000))) for each in range(chance.randint(1, 3))}
    return files if number % 3 else {**files, "large": chance.randbytes(_LARGE_BYTES)}


def _key(number: int) -> str:
    return f"{number:064x}"


def _be_machine(cache: Path, remote: Path, numbers: range, seed: float | None, tell_begun: int) -> NoReturn:
    # Whatever happens, the child must not continue with its parent's work.
    try:
        signal.alarm(_PATIENCE_SECONDS)
        # Here and not above: it has threads of its own, which no fork takes along.
        from winml_dag.store.remote.settings import open_remote

        store = Store(cache, function="sha256")
        level = (open_remote(remote.as_uri()), TierSettings(remote.as_uri(), Mode.READ_WRITE))
        levels = Remotes([level], store.blobs, _TRUST, scratch=store.incoming, warn=_complain, locks=store.locks)
        if not store.records.keys():
            # Something to share, however early it is killed.
            _make(store, numbers[0])
        os.write(tell_begun, b"!")
        os.close(tell_begun)
        if seed is None:
            _share_all(store, levels, numbers)
        else:
            _share_for_ever(store, levels, numbers, random.Random(seed))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _complain(sentence: str) -> NoReturn:
    """Fail: a remote in a folder must never cause a message."""
    print(sentence, file=sys.stderr, flush=True)
    os._exit(2)


def _share_for_ever(store: Store, levels: Remotes, numbers: range, chance: random.Random) -> None:
    while True:
        key = _key(number := chance.choice(numbers))
        if store.record(key) is None and (record := levels.records([key]).get(key)):
            _bring(store, levels, record, number)
        levels.offer(store.record(key) or _make(store, number))
        if chance.random() < 0.5:
            levels.settle()


def _share_all(store: Store, levels: Remotes, numbers: range) -> None:
    for key in store.records.keys():  # noqa: SIM118  # not a mapping
        record = store.record(key)
        assert record is not None
        levels.offer(record)
    levels.settle()
    for number in numbers:
        if record := levels.records([_key(number)]).get(_key(number)):
            _bring(store, levels, record, number)


def _bring(store: Store, levels: Remotes, record: Record, number: int) -> None:
    assert levels.fetch(record.files()) == []
    for file in record.files():
        assert store.blobs.path(file.digest).read_bytes() == _files(number)[file.name]
    store.records.write(record)


def _make(store: Store, number: int) -> Record:
    made = KeyInputs("export", 1, {}, {}, {})
    with store.scratch.open() as folder:
        for name, data in _files(number).items():
            (folder / name).write_bytes(data)
        return store.publish(Record(_key(number), made.config_hash, made, {}), {"out": folder})


def _records(cache: Path) -> list[str]:
    store = Store(cache)
    try:
        return store.records.keys()
    finally:
        store.close()


def _check(folder: Path, remote: Path) -> None:
    """Assert that both caches are clean, every blob in the remote matches its name, and no record lacks one."""
    for name in _MACHINES:
        store = Store(folder / name)
        report = verify(store)
        store.close()
        assert report.clean, f"The cache of {name} is not clean: {report}"
    # Files not named like a blob are unfinished.
    blobs = {path.name: path for path in remote.glob("cas/*") if len(path.name) == 64}
    for digits, path in blobs.items():
        assert sha256(path.read_bytes()).hexdigest() == digits, f"{path} has wrong bytes."
    for path in remote.glob("ac/*"):
        if len(path.name) == 64:
            record = _TRUST.verify(path.read_bytes(), path.name, "")
            lacking = [file.name for file in record.files() if file.digest.partition(":")[2] not in blobs]
            assert not lacking, f"The record {path.name} is there without {lacking}."
