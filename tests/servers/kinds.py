"""Every kind of remote, opened by URL as a user would, each empty."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from servers.faulty import FaultyServer
from servers.memory import MemoryRemote
from servers.nginx import nginx_server
from servers.s3 import S3

from winml_dag.store.remote.protocol import Remote
from winml_dag.store.remote.settings import open_remote

KINDS = ("memory", "file", "http", "nginx", "s3", "az")

# Opens an unused remote of this kind, or another namespace of the previous one.
Opener = Callable[[str], Remote]


@contextmanager
def remotes(folder: Path, s3: S3) -> Iterator[Opener]:
    """Yield a function that opens an empty remote of the requested kind. Servers run until the end of the block.

    The HTTP server also stands in for Azure. It checks no signatures.
    """
    numbers = itertools.count()
    with ExitStack() as running:
        urls = {
            "file": (folder / "shared").as_uri(),
            "http": running.enter_context(FaultyServer()).url,
            "s3": s3.url,
            "az": "az://container/cache",
        }
        azure = running.enter_context(FaultyServer())
        of_azure = {
            "AZURE_STORAGE_ENDPOINT": azure.url,
            "AZURE_STORAGE_ACCOUNT_NAME": "testing",
            "AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"of-the-tests").decode(),
        }
        running.enter_context(patch.dict("os.environ", {**s3.environment, **of_azure}))

        def opened(kind: str) -> Remote:
            if kind == "nginx" and kind not in urls:
                # Started on demand: a machine may have no nginx, and the other kinds do not need it.
                urls[kind] = running.enter_context(nginx_server(folder / kind)).url
            return MemoryRemote() if kind == "memory" else open_remote(urls[kind], f"empty-{next(numbers)}")

        yield opened
