"""A process that fetches blobs from a remote, or uploads them: ``python transferring.py WHAT CACHE URL ...``.

``fetch CACHE URL DIGEST SIZE [STOP]`` prints "at STOP" and hangs forever once that many bytes have been passed to it.
``through CACHE URL MEBIBYTES`` makes a blob, uploads it, fetches it into a second cache and prints by how many bytes
the process's peak memory grew.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from winml_dag.store.artifact import FileEntry
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.remote.protocol import Remote
from winml_dag.store.remote.settings import Mode, SigningKey, TierSettings, open_remote
from winml_dag.store.remote.tier import Remotes
from winml_dag.store.remote.trust import Maker, Trust
from winml_dag.store.store import Store

_FILE_BYTES_LIMIT = "FILE_BYTES_LIMIT"


class _Stopping:
    """A remote whose reading stops after *stop* bytes."""

    def __init__(self, remote: Remote, stop: int) -> None:
        self._remote = remote
        self._stop = stop

    def __getattr__(self, name: str) -> object:
        return getattr(self._remote, name)

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        count = 0
        for piece in self._remote.read(digest, offset):
            count += len(piece)
            yield piece
            if count >= self._stop:
                # Passed data is consumed before the next piece is requested, except for at most two.
                print(f"at {count}", flush=True)
                threading.Event().wait()


def _levels(store: Store, remote: Remote) -> Remotes:
    trust = Trust((SigningKey("ours", b"o" * 32),), Maker("winml_dag 1.0"))
    level = (remote, TierSettings("http://remote", Mode.READ_WRITE))
    return Remotes([level], store.blobs, trust, scratch=store.incoming, warn=print, locks=store.locks)


def fetch(cache: str, url: str, digest: str, size: str, stop: str = "") -> None:
    store = Store(Path(cache), function="sha256")
    remote = open_remote(url)
    if limit := os.environ.get(_FILE_BYTES_LIMIT):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    levels = _levels(store, _Stopping(remote, int(stop)) if stop else remote)  # type: ignore[arg-type]
    missing = levels.fetch([FileEntry("model.onnx", digest, int(size))])
    print(f"missing {len(missing)}, fetched {levels.traffic().bytes_fetched}")


def through(cache: str, url: str, mebibytes: str) -> None:
    here = Store(Path(cache) / "here", function="sha256")
    there = Store(Path(cache) / "there", function="sha256")
    folder = Path(cache) / "made"
    folder.mkdir()
    with open(folder / "model.onnx.data", "wb") as file:
        file.truncate(int(mebibytes) << 20)
    record = here.publish(Record("ab" * 32, "c" * 64, KeyInputs("export", 1, {}, {}, {}), {}), {"out": folder})
    # Trigger all lazy imports first.
    _levels(there, open_remote(url)).fetch([FileEntry("none", "sha256:" + "0" * 64, 5)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    levels = _levels(here, open_remote(url))
    levels.offer(record)
    levels.settle()
    missing = _levels(there, open_remote(url)).fetch(record.files())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"missing {len(missing)}, put {levels.traffic().bytes_put}, memory {(peak - before) << 10}")


if __name__ == "__main__":
    {"fetch": fetch, "through": through}[sys.argv[1]](*sys.argv[2:])
