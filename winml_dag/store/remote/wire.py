"""urllib3 as remotes use it: connections that are kept, one request without retries or redirects, errors as ours."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3 import exceptions
from urllib3.connection import HTTPConnection
from urllib3.util import Timeout, make_headers, parse_url

from winml_dag.store.remote.remote import ATTEMPT_SECONDS, RemoteError

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

# Kept open to a host; more are made when more threads ask, and closed after their answer.
_IDLE_CONNECTIONS = 16
# A time limit of a socket is one for each piece that is sent: of small ones, a slow line sends each in time.
_SEND_BYTES = 64 << 10
# The system takes no more than this ahead of the line: else it took 3 MB at once, said that they have gone, and let the
# server look dead for as long as a slow line needs for them (measured: 14 s at 200 kB/s).
_UNSENT_BYTES = 128 << 10
_SOCKET_OPTIONS = [
    *HTTPConnection.default_socket_options,
    *([(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)] if hasattr(socket, "TCP_NOTSENT_LOWAT") else []),
]
# Bodies of errors up to here are read, so that their connection can be used again: most answers are 404.
_SMALL_BYTES = 4096
# A server may hash and move what it has got before it answers.
_SETTLING_PACE = 32 << 20


def pool_for(url: str) -> urllib3.PoolManager:
    """Connections to *url*, by a proxy where the environment or the system names one. Certificates are checked.

    Raises:
        ValueError: for a host that cannot be one, of *url* or of the proxy.
    """
    parts = parse_url(url)
    proxy = None if proxy_bypass(parts.host or "") else getproxies().get(parts.scheme or "")
    if not proxy:
        return urllib3.PoolManager(maxsize=_IDLE_CONNECTIONS, socket_options=_SOCKET_OPTIONS)
    through = parse_url(proxy)
    headers = make_headers(proxy_basic_auth=unquote(through.auth)) if through.auth else None
    return urllib3.ProxyManager(proxy, maxsize=_IDLE_CONNECTIONS, proxy_headers=headers, socket_options=_SOCKET_OPTIONS)


def ask(
    pool: urllib3.PoolManager, method: str, url: str, headers: Mapping[str, str], body: Iterable[bytes] | None = None
) -> BaseHTTPResponse:
    """One attempt, which waits ``ATTEMPT_SECONDS`` for a connection, each piece, and the answer. The answer is unread.

    A *body* is as long as ``Content-Length`` says, and its server gets more time to answer.
    """
    settling = int(headers.get("Content-Length", 0)) / _SETTLING_PACE
    return pool.request(
        method,
        url,
        body=body,
        headers=headers,
        timeout=Timeout(connect=ATTEMPT_SECONDS, read=ATTEMPT_SECONDS + settling),
        preload_content=False,
        redirect=False,
        retries=False,
    )


def of_body(size: int) -> dict[str, str]:
    """Headers for a body of *size* bytes."""
    return {"Content-Length": str(size), "Content-Type": "application/octet-stream"}


def pieces(path: Path, told: Callable[[int], None]) -> Iterator[bytes]:
    """The bytes of a file, for a body; *told* gets the length of each piece that has gone."""
    with open(path, "rb") as file:
        while piece := file.read(_SEND_BYTES):
            yield piece
            told(len(piece))


def let_go(response: BaseHTTPResponse) -> None:
    """Have the connection used again if that costs little."""
    left = response.length_remaining
    if left is not None and left <= _SMALL_BYTES:
        response.read(decode_content=False)
        response.release_conn()
    else:
        response.close()


@contextmanager
def troubles() -> Iterator[None]:
    """What urllib3 raises, as RemoteError."""
    try:
        yield
    except (exceptions.HTTPError, OSError) as error:
        raise _trouble(error) from error


def _trouble(error: Exception) -> RemoteError:
    if isinstance(error, exceptions.ConnectTimeoutError | exceptions.NewConnectionError):
        return RemoteError("unreachable", "cannot be reached")
    # What takes too long to be sent comes as a connection that was aborted, with its reason beside it.
    if any(isinstance(each, exceptions.TimeoutError | TimeoutError) for each in (error, *error.args)):
        return RemoteError("slow", f"did not go on for {ATTEMPT_SECONDS:g} s")
    if isinstance(error, exceptions.SSLError | exceptions.LocationParseError):
        return RemoteError("forbidden", f"cannot be trusted: {error}")
    return RemoteError("unreachable", "broke off")
