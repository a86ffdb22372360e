"""The faults of a server, over HTTP and of a bucket: the same trouble, whatever was asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from remote_samples import digest_of, trouble_of, unheard, written
from servers.faulty import Fault, FaultyServer

from winml_dag.store.remote import bucket, http
from winml_dag.store.remote.protocol import MOST_RECORD_BYTES, Remote, Trouble
from winml_dag.store.remote.settings import open_remote

KEY = "a1" * 32
SMALL, MIDDLE = b"small", bytes(range(256)) * (1 << 12)
BIG = MIDDLE * 6
MODULES = {"http": http, "s3": bucket}


@pytest.fixture(params=MODULES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def module(kind: str) -> ModuleType:
    return MODULES[kind]


@pytest.fixture
def server(faulty_server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> FaultyServer:
    """A server with a record and a blob, and without faults. It emulates S3 for single objects."""
    faulty_server.reset()
    for prefix in ("/main", "/cache/team/main"):
        faulty_server.content |= {f"{prefix}/ac/{KEY}": b"the record", f"{prefix}/cas/{digest_of(BIG)[7:]}": BIG}
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-tests")
    return faulty_server


@pytest.fixture
def remote(kind: str, server: FaultyServer) -> Iterator[Remote]:
    remote = open_remote("s3://cache/team" if kind == "s3" else server.url, "main")
    yield remote
    remote.close()


def troubles_of_all(remote: Remote, folder: Path) -> set[Trouble]:
    small, big = written(folder / "small", SMALL), written(folder / "big", BIG)
    return {
        trouble_of(lambda: remote.record(KEY)),
        trouble_of(lambda: remote.put_record(KEY, b"data")),
        trouble_of(lambda: remote.has(digest_of(BIG))),
        trouble_of(lambda: remote.read(digest_of(BIG))),
        trouble_of(lambda: remote.put(digest_of(SMALL), small, unheard)),
        trouble_of(lambda: remote.put(digest_of(BIG), big, unheard)),
    }


STATUSES: list[tuple[Fault, Trouble]] = [
    (Fault.ERROR, "failing"),
    (Fault.BUSY, "failing"),
    (Fault.FULL, "full"),
    (Fault.TOO_LARGE, "full"),
    (Fault.FORBIDDEN, "forbidden"),
    (Fault.UNAUTHORIZED, "forbidden"),
    (Fault.BAD_REQUEST, "forbidden"),
    (Fault.RESET, "unreachable"),
]


@pytest.mark.parametrize(("fault", "trouble"), STATUSES, ids=lambda value: getattr(value, "name", value))
def test_fault_has_the_same_trouble_for_every_request(
    server: FaultyServer, remote: Remote, tmp_path: Path, fault: Fault, trouble: Trouble
) -> None:
    server.switch_on(fault)
    assert troubles_of_all(remote, tmp_path) == {trouble}
    # One attempt is a single one: obstore itself would retry ten times.
    assert len(server.requests) <= 7
    server.switch_off()
    assert remote.record(KEY) == b"the record"
    server.content.clear()
    server.switch_on(fault, method="PUT")
    middle = written(tmp_path / "middle", MIDDLE)
    assert trouble_of(lambda: remote.put(digest_of(MIDDLE), middle, unheard)) == trouble


def test_dropped_connection_is_unreachable(server: FaultyServer, remote: Remote, tmp_path: Path) -> None:
    server.switch_on(Fault.DROP, method="GET")
    assert trouble_of(lambda: remote.record(KEY)) == "unreachable"
    assert trouble_of(lambda: list(remote.read(digest_of(BIG)))) == "unreachable"
    server.content.clear()
    server.switch_on(Fault.DROP, method="PUT")
    middle = written(tmp_path / "middle", MIDDLE)
    assert trouble_of(lambda: remote.put(digest_of(MIDDLE), middle, unheard)) == "unreachable"
    assert server.content == {}


def test_silent_server_is_slow(
    module: ModuleType,
    server: FaultyServer,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ATTEMPT_SECONDS", 0.1)
    remote = request.getfixturevalue("remote")
    server.switch_on(Fault.SILENT)
    assert troubles_of_all(remote, tmp_path) == {"slow"}
    server.switch_off()
    server.content.clear()
    server.switch_on(Fault.SILENT, method="PUT")
    assert trouble_of(lambda: remote.put(digest_of(SMALL), tmp_path / "small", unheard)) == "slow"


def test_trickled_data_is_passed_on_immediately(server: FaultyServer, remote: Remote) -> None:
    """So that waiting code knows how slow it is, and does not have to wait for a whole piece."""
    server.switch_on(Fault.TRICKLE)
    pieces = remote.read(digest_of(BIG))
    assert next(pieces) + next(pieces) == BIG[:2]
    pieces.close()  # type: ignore[attr-defined]


def test_endless_response_is_read_only_to_its_limit(server: FaultyServer, remote: Remote) -> None:
    server.switch_on(Fault.ENDLESS)
    assert trouble_of(lambda: remote.record(KEY)) == "lying"
    assert server.bytes_sent() < 10 * MOST_RECORD_BYTES


def test_wrong_range_is_refused(server: FaultyServer, remote: Remote, kind: str) -> None:
    server.switch_on(Fault.WRONG_RANGE)
    assert trouble_of(lambda: remote.read(digest_of(BIG), 10)) == {"http": "lying", "s3": "failing"}[kind]
