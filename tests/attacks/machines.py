"""Machines that share a cache over a real server, opened as commands open it."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from winml_dag.pipeline.remotes import open_store
from winml_dag.pipeline.request import RemoteOptions
from winml_dag.store.records import KeyInputs, Record, cache_key
from winml_dag.store.store import Store

# The keys of each. HMAC signs and verifies with the same secret, so every reader of main's records has main's key.
MAIN, PULL = (f"{name}:{base64.b64encode(name.encode() * 8).decode()}" for name in ("main", "pull"))


class Machine:
    """One machine with its own cache and the variables of its job.

    Attributes:
        said: messages about remotes that it received.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.variables = variables
        self.said: list[str] = []

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Yield its store as a command opens it. Uploads are complete when the block ends."""
        # Hide the environment of the machine that runs the tests, which may be one of CI.
        system = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "TEMP") if name in os.environ}
        home = dict.fromkeys(("HOME", "USERPROFILE", "XDG_CONFIG_HOME", "LOCALAPPDATA"), str(self.folder))
        with mock.patch.dict(os.environ, {**system, **home, **self.variables}, clear=True):
            store = open_store(self.folder / "cache", RemoteOptions(folder=self.folder), warn=self.said.append)
            try:
                yield store
                store.settle()
            finally:
                store.close()

    def make(self, content: bytes = b"a model", *, name: str = "model.onnx", opset: int = 21) -> Record:
        """Publish *content* as if a stage had produced it."""
        made = KeyInputs("export", 1, {"export": {"opset": opset}}, {}, {})
        with self.store() as store, store.scratch.open() as folder:
            (folder / "out").mkdir()
            (folder / "out" / name).write_bytes(content)
            record = Record(cache_key(made), made.config_hash, made, {}, made_by="winml_dag 0.1.0")
            return store.publish(record, {"model": folder / "out"})

    def look(self, record: Record) -> Record | None:
        """Return the record that it would reuse for the same work."""
        with self.store() as store:
            return store.record(record.cache_key)

    def refusal(self, record: Record) -> str:
        """Assert that it does not reuse *record*; return what it says of it."""
        assert self.look(record) is None
        return self.said[0]

    def take(self, record: Record, folder: Path) -> None:
        """Write the files of *record* to *folder*. Raises StoreError when they are unavailable."""
        with self.store() as store:
            for artifact in record.outputs.values():
                store.fetch(artifact, folder)


MachineMaker = Callable[..., Machine]
