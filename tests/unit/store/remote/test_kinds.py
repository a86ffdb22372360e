"""What every remote does, whatever its kind: in memory, a folder, the test HTTP server and nginx, a bucket."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from remote_samples import digest_of, unheard, written
from servers.kinds import KINDS, Opener, remotes
from servers.s3 import S3

from winml_dag.errors import UsageError
from winml_dag.store.remote.protocol import Remote, RemoteError, blob_path, record_path
from winml_dag.store.remote.settings import open_remote, shown

KEY, OTHER_KEY = "a1" * 32, "b2" * 32
NOWHERE = "sha256:" + "0" * 64
# Larger than a single upload, so that it is sent like big blobs, and no multiple of a piece.
DATA = random.Random(8).randbytes((1 << 20) + 4321)


@pytest.fixture(scope="module")
def opener(tmp_path_factory: pytest.TempPathFactory, s3_running: S3) -> Iterator[Opener]:
    with remotes(tmp_path_factory.mktemp("remotes"), s3_running) as opener:
        yield opener


@pytest.fixture(params=KINDS)
def remote(request: pytest.FixtureRequest, opener: Opener) -> Iterator[Remote]:
    remote = opener(request.param)
    yield remote
    remote.close()


@pytest.fixture(scope="module", params=KINDS)
def with_blob(request: pytest.FixtureRequest, opener: Opener, tmp_path_factory: pytest.TempPathFactory) -> Remote:
    """A remote that contains ``DATA``."""
    remote = opener(request.param)
    assert remote.put(digest_of(DATA), written(tmp_path_factory.mktemp("blob") / "data", DATA), unheard)
    return remote


def test_first_record_is_kept(remote: Remote, tmp_path: Path) -> None:
    assert remote.record(KEY) is None
    assert remote.put_record(KEY, b"first")
    assert not remote.put_record(KEY, b"second")
    assert remote.record(KEY) == b"first"
    assert remote.record(OTHER_KEY) is None
    for offset in (0, 5):
        with pytest.raises(KeyError):
            remote.read(NOWHERE, offset)
    with pytest.raises(FileNotFoundError):
        remote.put(NOWHERE, tmp_path / "none", unheard)
    remote.close()
    assert remote.record(KEY) == b"first", "it may be used again"


@pytest.mark.parametrize("size", [0, 1, 1000, len(DATA)])
def test_blob_roundtrips(remote: Remote, tmp_path: Path, size: int) -> None:
    data = DATA[:size]
    digest, path, gone = digest_of(data), written(tmp_path / "data", data), list[int]()
    assert not remote.has(digest)

    assert remote.put(digest, path, gone.append)

    assert sum(gone) == size
    assert remote.has(digest)
    assert not remote.has(NOWHERE)
    pieces = list(remote.read(digest))
    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= 1 << 20 for piece in pieces)
    assert not remote.put(digest, path, gone.append)
    assert size < len(DATA) or sum(gone) == size, "a large one does not go again"


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(offset=some.one_of(some.integers(0, len(DATA) + 2), some.sampled_from([0, 1, len(DATA) - 1, len(DATA)])))
def test_blob_can_be_read_from_any_offset(with_blob: Remote, offset: int) -> None:
    assert b"".join(with_blob.read(digest_of(DATA), offset)) == DATA[offset:]


def test_reading_can_be_abandoned_at_any_time(with_blob: Remote) -> None:
    for _ in range(10):
        begun = with_blob.read(digest_of(DATA))
        next(begun)
        if hasattr(begun, "close"):
            begun.close()
        never_begun = with_blob.read(digest_of(DATA))
        if hasattr(never_begun, "close"):
            never_begun.close()
    assert b"".join(with_blob.read(digest_of(DATA))) == DATA


def test_parallel_lookups_are_answered(remote: Remote, tmp_path: Path) -> None:
    there = [b"blob %d" % number for number in range(12)]
    for data in there:
        remote.put(digest_of(data), written(tmp_path / "data", data), unheard)
    nowhere = [b"other %d" % number for number in range(12)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(remote.has, map(digest_of, there + nowhere))) == [True] * 12 + [False] * 12


# nginx has no such condition, as its page says, and moto checks and writes in two steps.
@pytest.mark.parametrize("kind", ["memory", "file", "http", "az"])
def test_one_of_many_concurrent_puts_wins(opener: Opener, kind: str) -> None:
    remote, together = opener(kind), threading.Barrier(8)

    def put(number: int) -> bool:
        together.wait(30)
        return remote.put_record(KEY, b"from %d" % number)

    with ThreadPoolExecutor(8) as pool:
        won = [number for number, has_won in enumerate(pool.map(put, range(8))) if has_won]
    assert len(won) == 1
    assert remote.record(KEY) == b"from %d" % won[0]


class GaveUp(Exception):
    """A caller no longer wants to wait for an upload."""


# In-memory uploads are immediate.
@pytest.mark.parametrize("kind", KINDS[1:])
def test_abandoned_put_leaves_nothing(opener: Opener, kind: str, tmp_path: Path) -> None:
    def give_up(_count: int) -> None:
        raise GaveUp

    remote, data = opener(kind), DATA * 8
    with pytest.raises((GaveUp, RemoteError)):
        remote.put(digest_of(data), written(tmp_path / "data", data), give_up)
    assert not remote.has(digest_of(data))
    assert remote.put(digest_of(data), tmp_path / "data", unheard)


def test_invalid_key_or_digest_is_not_a_path() -> None:
    for key in ("", "../" + "a" * 61, "A1" * 32, "a1" * 31, "a1" * 32 + "\n", "a1" * 33):
        with pytest.raises(ValueError, match="no key"):
            record_path(key)
    for digest in ("", "xxh3-128:" + "0" * 32, "sha256:../../etc/passwd", "0" * 64, NOWHERE + "/x"):
        with pytest.raises(ValueError, match="no sha256"):
            blob_path(digest)


def test_namespaces_are_isolated(tmp_path: Path) -> None:
    url = (tmp_path / "shared").as_uri()
    with closing(open_remote(url, "pull/12")) as theirs:
        theirs.put_record(KEY, b"theirs")
    assert open_remote(url, "main").record(KEY) is None
    assert open_remote(url, "pull/12").record(KEY) == b"theirs"
    assert (tmp_path / "shared/pull/12/ac" / KEY).read_bytes() == b"theirs"
    # A namespace may also be part of the URL.
    assert open_remote(f"{url}/pull/12/").record(KEY) == b"theirs"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/cache", "ftp://"),
        ("/srv/cache", "/srv/cache"),
        ("cache.example.org", "http://"),
        ("http:///cache", "names no host"),
        ("http://host:port/cache", "no URL"),
        ("http://me:secret@a host/cache", "'http://a host/cache' is no URL"),
        ("https://host/cache?token=abc", "WINML_DAG_REMOTE_TOKEN"),
        ("s3://", "s3:// names no bucket"),
        ("s3:///cache", "s3:///cache names no bucket"),
        ("s3://key:secret@bucket/cache", "s3://bucket/cache has a user or a password in it"),
        ("file:cache", "file:///srv/cache"),
        pytest.param(
            "file://srv/cache",
            "file:///srv/cache",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="a folder of the machine srv"),
        ),
        ("s3://bucket/../other", "not a path in a bucket"),
    ],
)
def test_unsupported_url_is_refused_with_advice(url: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        open_remote(url)
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "abc" not in str(refused.value)


@pytest.mark.parametrize("token", ["secret\nX-Other: 1", "secr€t"])
def test_invalid_token_is_refused_and_not_shown(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINML_DAG_REMOTE_TOKEN", token)
    with pytest.raises(UsageError, match="WINML_DAG_REMOTE_TOKEN has what no header can have") as refused:
        open_remote("http://127.0.0.1:9/cache", gets_token=True)
    assert token not in str(refused.value)


@pytest.mark.parametrize(
    "namespace", ["..", "main/..", "/main", "main/", "a//b", "a b", "main\n", ".", "a/../b", "-/é"]
)
def test_namespace_escaping_the_url_is_refused(namespace: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a namespace"):
        open_remote(tmp_path.as_uri(), namespace)


def test_shown_url_has_no_secret() -> None:
    assert shown("https://me:pass@host:8443/cache?sig=x#y") == "https://host:8443/cache"
    assert shown("s3://bucket/path") == "s3://bucket/path"
    assert shown("file:///srv/cache") == "file:///srv/cache"
