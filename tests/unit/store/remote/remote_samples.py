"""Remotes that fail on request, and machines that share them."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers.memory import MemoryRemote

from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.remote.protocol import Remote, RemoteError, Trouble
from winml_dag.store.remote.settings import Mode, SigningKey, TierSettings
from winml_dag.store.remote.tier import Remotes
from winml_dag.store.remote.trust import Maker, Trust
from winml_dag.store.store import Store

KEYS = tuple(f"{number:064x}" for number in range(1, 9))
TRUST = Trust((SigningKey("ours", b"o" * 32),), Maker("winml_dag 1.0"))
# Timeout of a test thread for immediate work.
_PATIENCE_SECONDS = 60.0


class ScriptedRemote(MemoryRemote):
    """A remote in memory with an action before each call: ``before[method]`` in turn, the last one forever."""

    def __init__(self) -> None:
        super().__init__()
        self.before: defaultdict[str, deque[Callable[[], object]]] = defaultdict(deque)

    def fail(self, method: str, *troubles: str) -> None:
        """Make the next calls of *method* fail, one for each of *troubles*; empty means success."""
        for trouble in troubles:
            self.before[method].append(lambda trouble=trouble: _raise(trouble))  # type: ignore[misc]

    def hang(self, method: str, begun: threading.Semaphore, until: threading.Event) -> None:
        """Make every further call of *method* hang."""

        def hang() -> None:
            begun.release()
            until.wait(_PATIENCE_SECONDS)

        self.before[method].append(hang)
        self.before[method].append(hang)

    def _begin(self, method: str) -> None:
        planned = self.before[method]
        if planned:
            (planned.popleft() if len(planned) > 1 or not _lasts(planned[0]) else planned[0])()

    def record(self, key: str) -> bytes | None:
        self._begin("record")
        return super().record(key)

    def put_record(self, key: str, data: bytes) -> bool:
        self._begin("put_record")
        return super().put_record(key, data)

    def has(self, digest: str) -> bool:
        self._begin("has")
        return super().has(digest)

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        self._begin("read")
        return super().read(digest, offset)

    def put(self, digest: str, path: Path, told: Callable[[int], None]) -> bool:
        self._begin("put")
        return super().put(digest, path, told)


def _lasts(planned: Callable[[], object]) -> bool:
    return planned.__name__ == "hang"


def _raise(trouble: str) -> None:
    if trouble == "bug":
        raise ZeroDivisionError("of a library")
    if trouble:
        raise RemoteError(trouble, f"is {trouble}")  # type: ignore[arg-type]


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def unheard(_count: int) -> None:
    """Ignore upload progress."""


def trouble_of(ask: Callable[[], object]) -> Trouble:
    with pytest.raises(RemoteError) as raised:
        ask()
    return raised.value.trouble


def entry(data: bytes, name: str = "model.onnx") -> FileEntry:
    return FileEntry(name, digest_of(data), len(data))


class Machine:
    """A machine with its own store and these remotes.

    Attributes:
        said: messages to its user.
        received: the number of blob bytes in each received piece.
    """

    def __init__(
        self,
        folder: Path,
        *remotes: Remote,
        mode: Mode = Mode.READ_WRITE,
        trust: Trust = TRUST,
    ) -> None:
        self.store = Store(folder, function="sha256")
        self.said: list[str] = []
        self.received: list[int] = []
        settings = [TierSettings(f"http://me:secret@level{number}/c", mode) for number, _ in enumerate(remotes)]
        self.remotes = Remotes(
            [(remote, each) for remote, each in zip(remotes, settings, strict=True)],
            self.store.blobs,
            trust,
            scratch=self.store.incoming,
            warn=self.said.append,
            on_received=self.received.append,
            locks=self.store.locks,
        )

    def make(self, *files: bytes, key: str = KEYS[0]) -> Record:
        """Return a record with these files, in the store of this machine only."""
        folder = self.store.folder.parent / f"made-{key[-4:]}"
        folder.mkdir()
        for number, data in enumerate(files):
            (folder / f"file{number}").write_bytes(data)
        made = KeyInputs("export", 1, {}, {}, {})
        return self.store.publish(Record(key, made.config_hash, made, {}), {"out": folder})

    def bytes_of(self, file: FileEntry) -> bytes | None:
        """Return the contents of the blob file, if it exists."""
        path = self.store.blobs.path(file.digest)
        return path.read_bytes() if path.exists() else None

    def partial_files(self) -> list[Path]:
        return sorted(self.store.incoming.glob("*.partial"))


def record_of(key: str, *files: FileEntry) -> Record:
    """Return a record as another machine makes it."""
    made = KeyInputs("export", 1, {}, {}, {})
    return Record(key, made.config_hash, made, {"out": Artifact.of(files)})
