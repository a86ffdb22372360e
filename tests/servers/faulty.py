"""An in-process HTTP cache with every fault that a server can have, turned on by a test.

Without a fault it behaves as a good server: create-only on request, ranges, lengths, persistent connections. It records
every request. Nothing sleeps: a hanging request hangs until the server ends.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import unquote

_PIECE_BYTES = 1 << 20
# The stated length of an endless response. The server stops after a million times the maximum of a record.
_ENDLESS_BYTES = 50 << 30


class Fault(Enum):
    """``ERROR`` to ``BAD_REQUEST``: only a status."""

    ERROR = HTTPStatus.INTERNAL_SERVER_ERROR
    BUSY = HTTPStatus.SERVICE_UNAVAILABLE
    FULL = HTTPStatus.INSUFFICIENT_STORAGE
    TOO_LARGE = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    FORBIDDEN = HTTPStatus.FORBIDDEN
    UNAUTHORIZED = HTTPStatus.UNAUTHORIZED
    # WebDAV's response for a missing folder.
    CONFLICT = HTTPStatus.CONFLICT
    BAD_REQUEST = HTTPStatus.BAD_REQUEST
    # A complete HTTP response with only half of the stored bytes.
    SHORT = "short"
    # The connection ends in the middle of a download or upload.
    DROP = "drop"
    # The connection is reset before any response.
    RESET = "reset"
    # One byte differs from what was uploaded.
    WRONG_BYTES = "wrong bytes"
    # A byte now and then, without end.
    TRICKLE = "trickle"
    # The request is read, but never answered.
    SILENT = "silent"
    # Uploads are not read, as by a server on a stalled line.
    DEAF = "deaf"
    # 50 GB, whatever was requested and however small it is.
    ENDLESS = "endless"
    # The same without stating a length.
    ENDLESS_CHUNKS = "endless chunks"
    # States gzip encoding, which was not requested.
    ENCODED = "encoded"
    # 501 for a conditional upload.
    REFUSES_CONDITIONS = "refuses conditions"
    # Overwrites despite the condition.
    IGNORES_CONDITIONS = "ignores conditions"
    # The whole content, with 200, whatever range was requested.
    NO_RANGES = "no ranges"
    # 206 with another range than requested.
    WRONG_RANGE = "wrong range"


@dataclass
class Request:
    """A request and its response. ``received`` and ``sent`` count body bytes, before the client knows of them."""

    method: str
    path: str
    headers: dict[str, str]
    status: int = 0
    received: int = 0
    sent: int = 0


@dataclass
class _Switched:
    fault: Fault
    times: int | None
    method: str
    below: str

    def fits(self, method: str, path: str) -> bool:
        return self.method in ("", method) and (not self.below or f"/{self.below}/" in path)


class FaultyServer:
    """A context manager that several threads may use at once. With a *context* it uses TLS.

    Attributes:
        content: the bytes under each path, such as ``/main/ac/<key>``.
        requests: all requests in order of arrival, answered or not.
        redirects: redirection targets by path.
        wants: the only accepted ``Authorization``; any if empty.
        connections: number of connections made.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.content: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.redirects: dict[str, str] = {}
        self.wants = ""
        self.connections = 0
        self.ended = threading.Event()
        self._changed = threading.Condition()
        self._switched: list[_Switched] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.told_of = self
        self._scheme = "http"
        if context is not None:
            self._scheme = "https"
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def switch_on(self, fault: Fault, *, times: int | None = None, method: str = "", below: str = "") -> None:
        """Turn on *fault* for the next *times* requests or all, for one method or all, *below* ``ac``, ``cas``
        or both.
        """
        with self._changed:
            self._switched.append(_Switched(fault, times, method, below))

    def switch_off(self) -> None:
        """Turn off all faults."""
        with self._changed:
            self._switched.clear()

    def reset(self) -> None:
        """Reset to the initial state, including connections."""
        self.switch_off()
        with self._changed:
            self.content.clear()
            self.requests.clear()
            self.redirects.clear()
            self.wants = ""

    def count(self, method: str = "", below: str = "") -> int:
        """Return the number of requests."""
        with self._changed:
            return sum(
                method in ("", request.method) and (not below or f"/{below}/" in request.path)
                for request in self.requests
            )

    def bytes_sent(self) -> int:
        with self._changed:
            return sum(request.sent for request in self.requests)

    def wait_until_begun(self, count: int) -> None:
        """Wait until *count* requests have arrived, answered or not. Raises TimeoutError after 30 seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.requests) >= count, 30):
                raise TimeoutError(f"{len(self.requests)} of {count} requests have come")

    def begin(self, request: Request) -> Fault | None:
        """Record an arrived request, and return the fault that applies to it."""
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
            for switched in self._switched:
                if switched.times != 0 and switched.fits(request.method, request.path):
                    if switched.times is not None:
                        switched.times -= 1
                    return switched.fault
            return None

    def put(self, path: str, data: bytes, *, create: bool) -> bool:
        with self._changed:
            if create and path in self.content:
                return False
            self.content[path] = data
            return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    told_of: FaultyServer

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: set[socket.socket] = set()

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        self.told_of.connections += 1
        self._open.add(request)
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect, which tests do on purpose."""

    def end_connections(self) -> None:
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server
    _request: Request

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_PUT = do_GET  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Print nothing."""

    def _serve(self) -> None:
        told_of = self.server.told_of
        # The query is the signature of a bucket's client.
        self.path = unquote(self.path.partition("?")[0])
        self._request = Request(self.command, self.path, dict(self.headers.items()))
        fault = told_of.begin(self._request)
        if fault in (Fault.RESET, Fault.SILENT, Fault.DEAF):
            self._hang_up(fault)
        elif told_of.wants and self.headers.get("Authorization") != told_of.wants:
            self._say(HTTPStatus.UNAUTHORIZED)
        elif target := told_of.redirects.get(self.path):
            self._say(HTTPStatus.TEMPORARY_REDIRECT, Location=target)
        elif fault is not None and isinstance(fault.value, HTTPStatus):
            self._say(fault.value)
        elif self.command == "PUT":
            self._take(fault)
        else:
            self._give(fault)

    def _hang_up(self, fault: Fault | None) -> None:
        self.close_connection = True
        if fault is Fault.RESET:
            # Closing without linger sends a reset.
            linger = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
            return
        if fault is Fault.SILENT:
            self._read_body(int(self.headers.get("Content-Length", 0)))
        self.server.told_of.ended.wait()

    def _say(self, status: HTTPStatus, **headers: str) -> None:
        """Send *status* with a short text after reading the body: a client that is still sending would not see it."""
        if self.command == "PUT" and not self._request.received:
            self._read_body(int(self.headers.get("Content-Length", 0)))
        body = b"" if self.command == "HEAD" or status == HTTPStatus.NO_CONTENT else f"{status.phrase}\n".encode()
        self._begin(status, len(body), **headers)
        self._send(body)

    def _begin(self, status: HTTPStatus, length: int | None, **headers: str) -> None:
        self._request.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _send(self, data: bytes) -> None:
        self._request.sent += len(data)
        self.wfile.write(data)

    def _read_body(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length and (piece := self.rfile.read(min(_PIECE_BYTES, length - len(data)))):
            data += piece
            self._request.received += len(piece)
        return bytes(data)

    def _take(self, fault: Fault | None) -> None:
        told_of, length = self.server.told_of, int(self.headers.get("Content-Length", 0))
        if fault is Fault.DROP:
            self._read_body(length // 2)
            self.close_connection = True
            return
        data = self._read_body(length)
        conditional = self.headers.get("If-None-Match") == "*" or self.headers.get("x-goog-if-generation-match") == "0"
        if conditional and fault is Fault.REFUSES_CONDITIONS:
            self._say(HTTPStatus.NOT_IMPLEMENTED)
        elif len(data) < length:
            self.close_connection = True
        elif told_of.put(self.path, data, create=conditional and fault is not Fault.IGNORES_CONDITIONS):
            # 200 instead of 201, as S3 and bazel-remote do.
            self._say(HTTPStatus.OK, ETag=f'"{length}"')
        else:
            self._say(HTTPStatus.PRECONDITION_FAILED)

    def _give(self, fault: Fault | None) -> None:
        if fault in (Fault.ENDLESS, Fault.ENDLESS_CHUNKS):
            self._flood(chunked=fault is Fault.ENDLESS_CHUNKS)
            return
        data = self.server.told_of.content.get(self.path)
        if data is None:
            self._say(HTTPStatus.NOT_FOUND)
            return
        if fault is Fault.WRONG_BYTES and data:
            data = bytes([data[0] ^ 1]) + data[1:]
        if fault is Fault.SHORT:
            data = data[: len(data) // 2]
        status, first = HTTPStatus.OK, 0
        # S3 clients need a modification time and an ETag.
        headers = {"Accept_Ranges": "bytes", "ETag": f'"{len(data)}"', "Last_Modified": "Sun, 01 Nov 2026 00:00:00 GMT"}
        wanted = self.headers.get("Range", "")
        if wanted and fault is not Fault.NO_RANGES:
            first = int(wanted.removeprefix("bytes=").partition("-")[0])
            if first >= len(data):
                self._say(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, Content_Range=f"bytes */{len(data)}")
                return
            if fault is Fault.WRONG_RANGE:
                first = 0
            status = HTTPStatus.PARTIAL_CONTENT
            headers["Content_Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        if fault is Fault.ENCODED:
            headers["Content_Encoding"] = "gzip"
        data = data[first:]
        self._begin(status, len(data), **headers)
        if self.command == "HEAD":
            return
        if fault is Fault.DROP:
            self._send(data[: len(data) // 2])
            self.close_connection = True
        elif fault is Fault.TRICKLE:
            self._trickle(data)
        else:
            for start in range(0, len(data), _PIECE_BYTES):
                self._send(data[start : start + _PIECE_BYTES])

    def _trickle(self, data: bytes) -> None:
        self.close_connection = True
        for byte in data[:-1]:
            self._send(bytes([byte]))
            if self.server.told_of.ended.wait(0.05):
                return
        self.server.told_of.ended.wait()

    def _flood(self, *, chunked: bool) -> None:
        self.close_connection = True
        piece = bytes(_PIECE_BYTES)
        if chunked:
            self._begin(HTTPStatus.OK, None, Transfer_Encoding="chunked")
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
        else:
            self._begin(HTTPStatus.OK, _ENDLESS_BYTES)
        # Until the client gives up.
        while self.command != "HEAD" and not self.server.told_of.ended.is_set() and self._request.sent < _ENDLESS_BYTES:
            self._send(piece)
