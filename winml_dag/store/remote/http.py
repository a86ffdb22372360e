"""A remote that speaks HTTP, as caches of build systems do: GET, HEAD and PUT of ``ac/<key>`` and ``cas/<sha256>``.

Nothing that a server says is taken on trust: no length, no encoding, no range. Servers that know conditions create
only; for those that know none we ask first, and two that put the same record within one round trip may both do so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from winml_dag.store.remote.crew import those_that
from winml_dag.store.remote.places import blob_place, record_place
from winml_dag.store.remote.remote import MOST_RECORD_BYTES, RemoteError
from winml_dag.store.remote.statuses import THERE, is_good, refusal, said
from winml_dag.store.remote.wire import ask, let_go, of_body, pieces, pool_for, troubles

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

_READ_BYTES = 256 << 10
# From here on we ask whether a blob is there before we send it.
_BIG_BYTES = 64 << 10
_MOST_REDIRECTS = 3

_ABSENT = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
# How servers say that they do not know a condition.
_NO_CONDITIONS = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED)


class HttpRemote:
    """See ``Remote``. *url* has no password in it; *authorization* goes to its host only."""

    def __init__(self, url: str, authorization: str = "") -> None:
        self._url = url.rstrip("/")
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "winml_dag"}
        self._secrets = {"Authorization": authorization} if authorization else {}
        self._pool = pool_for(url)
        self._conditions = {"If-None-Match": "*"}

    def record(self, key: str) -> bytes | None:
        with troubles():
            response = self._answer("GET", record_place(key))
            if response is None:
                return None
            data = bytearray()
            while piece := response.read1(_READ_BYTES, decode_content=False):
                data += piece
                if len(data) > MOST_RECORD_BYTES:
                    response.close()
                    raise RemoteError("lying", f"sent more than {MOST_RECORD_BYTES >> 20} MiB as a record")
            return bytes(data)

    def put_record(self, key: str, data: bytes) -> bool:
        place = record_place(key)
        with troubles():
            return not self._is_there(place) and self._put(place, lambda: [data], len(data))

    def has(self, digests: Collection[str]) -> set[str]:
        return those_that(self._has_blob, digests)

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        with troubles():
            response = self._answer("GET", blob_place(digest), {"Range": f"bytes={offset}-"} if offset else {})
            if response is None:
                raise KeyError(digest)
            if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                let_go(response)
                return iter(())
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            return _Body(response, offset)
        began = response.headers.get("Content-Range", "")
        if not began.startswith(f"bytes {offset}-"):
            response.close()
            raise RemoteError("lying", f"sent {began or 'a part'!r} when asked for what begins at {offset}")
        return _Body(response, 0)

    def put(self, digest: str, path: Path, told: Callable[[int], None]) -> bool:
        place, size = blob_place(digest), path.stat().st_size
        with troubles():
            if size >= _BIG_BYTES and self._is_there(place):
                return False
            return self._put(place, lambda: pieces(path, told), size)

    def close(self) -> None:
        self._pool.clear()

    def _has_blob(self, digest: str) -> bool:
        with troubles():
            return self._is_there(blob_place(digest))

    def _is_there(self, place: str) -> bool:
        response = self._answer("HEAD", place)
        if response is not None:
            let_go(response)
        return response is not None

    def _put(self, place: str, body: Callable[[], Iterable[bytes]], size: int) -> bool:
        """Whether it was put. *body* gives the pieces anew each time that it is called."""
        response = self._send(place, body(), size, self._conditions)
        if self._conditions and response.status in _NO_CONDITIONS:
            response = self._send(place, body(), size, {})
            if is_good(response.status):
                self._conditions = {}
        if response.status in THERE:
            # 409 is also what WebDAV says of a folder that is not there.
            if response.status == HTTPStatus.CONFLICT and not self._is_there(place):
                raise RemoteError("forbidden", f"{said(response.status)}, and makes no folders for what is put")
            return False
        if not is_good(response.status):
            raise refusal(response.status)
        return True

    def _send(self, place: str, body: Iterable[bytes], size: int, more: Mapping[str, str]) -> BaseHTTPResponse:
        headers = {**self._headers, **self._secrets, **more, **of_body(size)}
        response = ask(self._pool, "PUT", f"{self._url}/{place}", headers, body)
        let_go(response)
        return response

    def _answer(self, method: str, place: str, more: Mapping[str, str] | None = None) -> BaseHTTPResponse | None:
        """The open response, None when nothing is there. Raises RemoteError for all others but 416."""
        response = self._follow(method, f"{self._url}/{place}", {**self._headers, **(more or {})})
        if response.status in _ABSENT:
            let_go(response)
            return None
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and more:
            return response
        if not is_good(response.status):
            let_go(response)
            raise refusal(response.status)
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            response.close()
            raise RemoteError("lying", f"sent what is encoded as {encoding!r}, which was not asked for")
        return response

    def _follow(self, method: str, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """The answer at *url*, or where that sends us: not without TLS if we came with it, and no secret goes along to
        another host. urllib3 would do the same, but reads what comes with a redirect to its end, if it has one.
        """
        start = urlsplit(url)
        for _ in range(_MOST_REDIRECTS + 1):
            at_home = urlsplit(url)[:2] == start[:2]
            response = ask(self._pool, method, url, {**headers, **(self._secrets if at_home else {})})
            target = response.get_redirect_location()
            if not target:
                return response
            response.close()
            url = urljoin(url, target)
            if urlsplit(url).scheme not in ("https", start.scheme):
                break
        raise RemoteError("forbidden", f"{said(response.status)}, which leads elsewhere")


class _Body(Iterator[bytes]):
    """The bytes of a response after the first *skip*. A class and no generator: one that was never begun would not let
    its connection go.
    """

    def __init__(self, response: BaseHTTPResponse, skip: int) -> None:
        self._response = response
        self._skip = skip

    def __next__(self) -> bytes:
        with troubles():
            while piece := self._response.read1(_READ_BYTES, decode_content=False):
                kept = piece[self._skip :]
                self._skip = max(0, self._skip - len(piece))
                if kept:
                    return kept
        self.close()
        raise StopIteration

    def close(self) -> None:
        self._response.close()
