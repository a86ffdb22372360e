"""HTTP: the classification of server faults, limits on what is read, and who receives secrets."""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from remote_samples import trouble_of, unheard
from servers.faulty import Fault, FaultyServer
from servers.nginx import Nginx, nginx_server

from winml_dag.store.remote import http
from winml_dag.store.remote.protocol import MOST_RECORD_BYTES, Remote, RemoteError
from winml_dag.store.remote.settings import open_remote

KEY = "a1" * 32
DATA = bytes(range(256)) * 3000
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
RECORD_PATH, BLOB_PATH = f"/main/ac/{KEY}", f"/main/cas/{DIGEST.removeprefix('sha256:')}"

Ask = Callable[[Remote], object]


@pytest.fixture
def server(faulty_server: FaultyServer) -> FaultyServer:
    """A server with a record and a blob, and without faults."""
    faulty_server.reset()
    faulty_server.content |= {RECORD_PATH: b"the record", BLOB_PATH: DATA}
    return faulty_server


@pytest.fixture
def remote(server: FaultyServer) -> Iterator[Remote]:
    remote = open_remote(server.url, "main")
    yield remote
    remote.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    return path


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with nginx_server(tmp_path_factory.mktemp("nginx") / "server") as nginx:
        yield nginx


def test_http_status_is_reported(server: FaultyServer, remote: Remote) -> None:
    server.switch_on(Fault.BUSY)
    with pytest.raises(RemoteError, match=r"^answered 503 Service Unavailable$"):
        remote.record(KEY)


def test_buffered_upload_bytes_do_not_count_as_sent(
    server: FaultyServer, remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system would buffer 3 MB at once; a line that needs half a minute for them would look dead at the end."""
    monkeypatch.setattr(http, "ATTEMPT_SECONDS", 0.1)
    server.switch_on(Fault.DEAF, method="PUT")
    path, gone = tmp_path / "big", list[int]()
    path.write_bytes(bytes(16 << 20))
    assert trouble_of(lambda: remote.put("sha256:" + "0" * 64, path, gone.append)) == "slow"
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        assert sum(gone) < 1 << 20


@pytest.mark.parametrize("fault", [Fault.ENDLESS, Fault.ENDLESS_CHUNKS])
def test_endless_response_is_read_only_to_its_limit(server: FaultyServer, remote: Remote, fault: Fault) -> None:
    server.switch_on(fault)
    assert trouble_of(lambda: remote.record(KEY)) == "lying"
    pieces = remote.read(DIGEST)
    assert sum(len(next(pieces)) for _ in range(3)) <= 3 << 20
    pieces.close()  # type: ignore[attr-defined]
    # Data in system buffers counts as sent too.
    assert server.bytes_sent() < 20 * MOST_RECORD_BYTES


def test_missing_range_support_discards_the_beginning(server: FaultyServer, remote: Remote) -> None:
    server.switch_on(Fault.NO_RANGES)
    assert b"".join(remote.read(DIGEST, 700_001)) == DATA[700_001:]
    assert b"".join(remote.read(DIGEST, len(DATA) + 1)) == b""


def test_server_refusing_conditions_is_queried_first(server: FaultyServer, remote: Remote, file: Path) -> None:
    server.switch_on(Fault.REFUSES_CONDITIONS)
    server.content.clear()
    assert remote.put_record(KEY, b"first")
    assert not remote.put_record(KEY, b"second")
    assert remote.put(DIGEST, file, unheard)
    assert server.content == {RECORD_PATH: b"first", BLOB_PATH: DATA}
    # It has said so once.
    assert server.count("PUT") == 3


def test_server_ignoring_conditions_is_not_overwritten(server: FaultyServer, remote: Remote) -> None:
    server.switch_on(Fault.IGNORES_CONDITIONS)
    assert not remote.put_record(KEY, b"second")
    assert server.content[RECORD_PATH] == b"the record"


def test_missing_folder_creation_is_distinguished_from_conflict(
    server: FaultyServer, remote: Remote, file: Path
) -> None:
    server.switch_on(Fault.CONFLICT, method="PUT")
    assert not remote.put_record(KEY, b"there already")
    server.content.clear()
    with pytest.raises(RemoteError, match="makes no folders"):
        remote.put_record(KEY, b"data")
    assert trouble_of(lambda: remote.put(DIGEST, file, unheard)) == "forbidden"


def test_connections_are_reused_after_missing_entries(server: FaultyServer, remote: Remote) -> None:
    before = server.connections
    for number in range(10):
        assert remote.record(KEY) == b"the record"
        assert remote.record(f"{number:064x}") is None
        assert remote.has(DIGEST)
        assert not remote.put_record(KEY, b"data")
        assert b"".join(remote.read(DIGEST)) == DATA
    assert server.connections - before == 1


def test_password_is_sent_only_to_its_host(server: FaultyServer) -> None:
    with FaultyServer() as other:
        other.content["/elsewhere"] = b"the record"
        url = server.url.replace("http://", "http://me:p%40ss@")
        server.redirects[RECORD_PATH] = f"{other.url}/elsewhere"
        remote = open_remote(url, "main")
        assert remote.record(KEY) == b"the record"
        assert "Authorization" not in other.requests[0].headers
        expected = "Basic " + base64.b64encode(b"me:p@ss").decode()
        assert server.requests[0].headers["Authorization"] == expected
        # It is needed after a redirect to the same host.
        server.redirects[RECORD_PATH] = BLOB_PATH
        server.wants = expected
        assert remote.record(KEY) == DATA
        # Uploads do not follow redirects to other hosts.
        other.content.clear()
        server.redirects[BLOB_PATH] = f"{other.url}/elsewhere"
        assert trouble_of(lambda: remote.put_record(KEY, b"data")) == "forbidden"
        assert {request.method for request in other.requests} <= {"GET", "HEAD"}
        remote.close()


def test_token_comes_from_environment(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.wants = "Bearer of-good-news"
    assert trouble_of(lambda: open_remote(server.url, "main", gets_token=True).record(KEY)) == "forbidden"
    monkeypatch.setenv("WINML_DAG_REMOTE_TOKEN", "of-good-news\n")
    assert open_remote(server.url, "main", gets_token=True).record(KEY) == b"the record"
    assert trouble_of(lambda: open_remote(server.url, "main").record(KEY)) == "forbidden"


def test_redirect_loop_ends(server: FaultyServer, remote: Remote) -> None:
    server.redirects[RECORD_PATH] = f"{server.url}{RECORD_PATH}"
    assert trouble_of(lambda: remote.record(KEY)) == "forbidden"
    assert server.count("GET") < 10


def test_proxy_comes_from_environment(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server.content[f"http://cache.invalid{RECORD_PATH}"] = b"through the proxy"
    assert open_remote("http://cache.invalid", "main").record(KEY) == b"through the proxy"
    assert open_remote(server.url, "main").record(KEY) == b"the record"


def test_certificate_is_verified_and_downgrade_refused(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with FaultyServer(context) as secure:
        secure.content[RECORD_PATH] = b"the record"
        url = secure.url.replace("127.0.0.1", "localhost")
        with pytest.raises(RemoteError, match="cannot be trusted") as refused:
            open_remote(url, "main").record(KEY)
        assert refused.value.trouble == "forbidden"

        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        remote = open_remote(url, "main")
        assert remote.record(KEY) == b"the record"

        secure.redirects[RECORD_PATH] = f"{server.url}{RECORD_PATH}"
        assert trouble_of(lambda: remote.record(KEY)) == "forbidden"
        assert server.requests == []
        remote.close()


def self_signed(folder: Path) -> Path:
    """Create a certificate for localhost with its key, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "localhost.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


def test_nginx_limits_pull_requests_to_their_namespace(nginx: Nginx) -> None:
    theirs, ours = nginx.url_of("pull"), nginx.url
    assert open_remote(theirs, "pull/12").put_record(KEY, b"of a pull request")
    assert trouble_of(lambda: open_remote(theirs, "main").put_record(KEY, b"of a pull request")) == "forbidden"
    assert trouble_of(lambda: open_remote(nginx.url_of_readers, "pull/12").put_record(DIGEST[7:], b"x")) == "forbidden"
    assert open_remote(nginx.url_of_readers, "main").record(KEY) is None
    assert open_remote(ours, "main").put_record(KEY, b"of main")
    assert open_remote(theirs, "main").record(KEY) == b"of main"


@pytest.mark.parametrize(
    "path", ["/pull/../main/ac/", "/pull/%2e%2e/main/ac/", "/pull//../main/ac/", "/pull/12/../../main/ac/"]
)
def test_nginx_refuses_path_traversal_out_of_namespace(nginx: Nginx, path: str) -> None:
    import http.client

    key = hashlib.sha256(path.encode()).hexdigest()
    user = base64.b64encode(nginx.url_of("pull").removeprefix("http://").partition("@")[0].encode()).decode()
    connection = http.client.HTTPConnection(nginx.host)
    connection.request("PUT", f"{path}{key}", b"poison", {"Authorization": f"Basic {user}"})
    assert connection.getresponse().status in (401, 403)
    connection.close()
    assert not (nginx.folder / "main/ac" / key).exists()


def test_nginx_keeps_the_first_writer(nginx: Nginx) -> None:
    import http.client

    assert open_remote(nginx.url, "first").put_record(KEY, b"first")
    user = base64.b64encode(nginx.url.removeprefix("http://").partition("@")[0].encode()).decode()
    connection = http.client.HTTPConnection(nginx.host)
    connection.request("PUT", f"/first/ac/{KEY}", b"second", {"Authorization": f"Basic {user}"})
    assert connection.getresponse().status == 409
    connection.close()
    assert open_remote(nginx.url, "first").record(KEY) == b"first"
