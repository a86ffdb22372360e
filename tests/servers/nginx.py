"""nginx with WebDAV as a cache, as in ``docs/how-to/share-a-cache.md``: a separate process on 127.0.0.1."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import unittest
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "share-a-cache.md"

# As on the page: one user may write everything, the other only below pull/. nginx accepts plain passwords.
_WRITERS = {"writers-of-main": ("main",), "writers-of-pull": ("main", "pull")}
_PASSWORD = "of-the-tests"

_AROUND = """
pid nginx.pid;
events {{}}
http {{
    access_log off;
    fastcgi_temp_path temp/fastcgi;
    proxy_temp_path temp/proxy;
    scgi_temp_path temp/scgi;
    uwsgi_temp_path temp/uwsgi;
{server}
}}
"""


class NoNginx(unittest.SkipTest):
    """Skips the test that needs nginx; unlike ``pytest.skip``, with one line in the summary for all of them."""


@dataclass(frozen=True)
class Nginx:
    """*host*: with its port. *folder*: the served files, such as ``main/ac/<key>``."""

    host: str
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """The URL of the user that may write everything."""
        return self.url_of("main")

    def url_of(self, user: str) -> str:
        """Return the URL of *user*, ``main`` or ``pull``."""
        return f"http://{user}:{_PASSWORD}@{self.host}"

    @property
    def url_of_readers(self) -> str:
        return f"http://{self.host}"


def nginx_program() -> str:
    """Return the path of nginx. Raises NoNginx with instructions to install it."""
    program = shutil.which("nginx")
    if program is None:
        raise NoNginx("no nginx on PATH (Debian: in /usr/sbin); to get it: make servers")
    return program


@contextmanager
def nginx_server(folder: Path) -> Iterator[Nginx]:
    """Serve the folders below *folder* until the end of the block."""
    program, port = nginx_program(), _free_port()
    for name in ("content", "temp"):
        (folder / name).mkdir(parents=True)
    for name, users in _WRITERS.items():
        (folder / name).write_text("".join(f"{user}:{{PLAIN}}{_PASSWORD}\n" for user in users), encoding="utf-8")
    (folder / "nginx.conf").write_text(_AROUND.format(server=_server(folder, port)), encoding="utf-8")
    # As root, nginx drops its privileges to a user that cannot read this folder.
    stay = "user root;" if getattr(os, "getuid", lambda: 1)() == 0 else ""
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [program, "-p", str(folder), "-c", "nginx.conf", "-e", "stderr", "-g", f"daemon off; {stay}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        _wait_for(process, port, folder / "log")
        yield Nginx(f"127.0.0.1:{port}", folder / "content", process)
    finally:
        process.terminate()
        process.wait(30)


def _server(folder: Path, port: int) -> str:
    """Return the page's configuration, with the test's folder and port."""
    block = re.search(r"^```nginx\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    if block is None:
        raise RuntimeError(f"{_PAGE} shows no configuration of nginx")
    return block[1].replace("listen 8080;", f"listen 127.0.0.1:{port};").replace("/srv/winml_dag", str(folder))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until it accepts connections. Raises RuntimeError with its log if it ends instead."""
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.01)
        else:
            return
    raise RuntimeError(f"nginx does not run: {log.read_text(encoding='utf-8', errors='replace')}")
