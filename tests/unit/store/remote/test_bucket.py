"""Buckets and folders: the classification of store faults, what is missing, and how big files are transferred."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
from remote_samples import digest_of, trouble_of, unheard, written
from servers.faulty import Fault, FaultyServer
from servers.s3 import BUCKET, S3, policies_of

from winml_dag.errors import UsageError
from winml_dag.store.remote import bucket
from winml_dag.store.remote.protocol import Remote, RemoteError
from winml_dag.store.remote.settings import open_remote

KEY = "a1" * 32
SMALL = b"small"
BIG = bytes(range(256)) * (6 << 12)
RECORD_PATH = f"/cache/team/main/ac/{KEY}"


def blob_path(data: bytes) -> str:
    return f"/cache/team/main/cas/{hashlib.sha256(data).hexdigest()}"


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def server(faulty_server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> FaultyServer:
    """A server that emulates S3 for single objects, with a record and a blob, and without faults."""
    faulty_server.reset()
    faulty_server.content |= {RECORD_PATH: b"the record", blob_path(BIG): BIG}
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-tests")
    return faulty_server


@pytest.fixture
def remote(server: FaultyServer) -> Remote:  # noqa: ARG001
    return open_remote("s3://cache/team", "main")


@pytest.fixture
def s3(s3_running: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """A running S3, with its credentials in the environment."""
    for name, value in s3_running.environment.items():
        monkeypatch.setenv(name, value)
    return s3_running


def test_concurrent_earlier_upload_wins(server: FaultyServer, remote: Remote, tmp_path: Path) -> None:
    """It did not exist when checked, but does when uploaded."""
    server.switch_on(Fault.CONFLICT, method="PUT")
    server.content.clear()
    middle = BIG[: 1 << 20]
    assert not remote.put(digest_of(middle), written(tmp_path / "middle", middle), unheard)
    assert not remote.put_record(KEY, b"data")


def test_big_file_is_uploaded_in_parts(s3: S3, tmp_path: Path) -> None:
    remote = open_remote(f"{s3.url}/parts", "main")
    gone: list[int] = []
    path = written(tmp_path / "big", BIG)
    assert remote.put(digest_of(BIG), path, gone.append)
    assert sum(gone) == len(BIG)
    # Progress is reported during the upload, which distinguishes slow from dead.
    assert len(gone) > 1
    assert b"".join(remote.read(digest_of(BIG))) == BIG
    assert not remote.put(digest_of(BIG), path, gone.append)


@pytest.mark.usefixtures("s3")
def test_missing_bucket_is_reported(tmp_path: Path) -> None:
    remote = open_remote("s3://none-such", "main")
    path = written(tmp_path / "big", BIG)
    for ask in (
        lambda: remote.record(KEY),
        lambda: remote.put_record(KEY, b"data"),
        lambda: remote.read(digest_of(BIG)),
    ):
        with pytest.raises(RemoteError, match="has no such bucket") as raised:
            ask()
        assert raised.value.trouble == "forbidden"
    assert trouble_of(lambda: remote.put(digest_of(BIG), path, unheard)) == "forbidden"


def test_missing_credentials_are_reported(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials are last searched for on Amazon's machines; this server has none."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID"):
        open_remote("s3://cache/team")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.url)
    server.switch_on(Fault.FORBIDDEN)
    remote = open_remote("s3://cache/team", "main")
    with pytest.raises(RemoteError, match="wants credentials, and the environment has none") as raised:
        remote.record(KEY)
    assert raised.value.trouble == "forbidden"


def test_obstore_failure_is_a_remote_error(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    # Its token is an empty line.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.url)
    assert trouble_of(lambda: open_remote("s3://cache/team", "main").record(KEY)) == "failing"


def test_documented_policies_limit_pull_requests_to_their_namespace(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs/how-to/share-a-cache.md").read_text(encoding="utf-8")
    of_main, of_pull = (
        json.loads(block.replace("my-bucket", BUCKET))
        for block in re.findall(r"^```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    )
    with policies_of(s3, {"main": of_main, "pull": of_pull}) as users:

        def opened(user: str, namespace: str) -> Remote:
            for name, value in users[user].items():
                monkeypatch.setenv(name, value)
            return open_remote(f"{s3.url}/winml", namespace)

        assert opened("main", "main").put_record(KEY, b"of main")
        assert opened("pull", "main").record(KEY) == b"of main"
        # A missing object is reported as missing, not as forbidden.
        assert not opened("pull", "main").has(digest_of(SMALL))
        assert opened("pull", "main").record("b2" * 32) is None
        assert trouble_of(lambda: opened("pull", "main").put_record("b2" * 32, b"of a pull request")) == "forbidden"
        assert opened("pull", "pull/12").put_record(KEY, b"of a pull request")
        assert opened("pull", "pull/12").record(KEY) == b"of a pull request"


def test_missing_azure_and_google_settings_are_reported_before_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_remote("az://container/cache")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(written(tmp_path / "key.json", b"{}")))
    with pytest.raises(UsageError, match="GOOGLE_APPLICATION_CREDENTIALS"):
        open_remote("gs://bucket/cache")


def test_google_never_overwrites(server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it can be emulated: small objects, and without signatures."""
    account = {
        "gcs_base_url": server.url,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    monkeypatch.setenv("GCS_ENDPOINT", server.url)
    monkeypatch.setitem(bucket._ENDPOINTS, "gs", ("GCS_ENDPOINT",))
    remote = open_remote("gs://cache/team", "main")
    assert remote.record(KEY) == b"the record"
    assert not remote.put_record(KEY, b"second")
    assert remote.put_record("b2" * 32, b"first")
    assert remote.put(digest_of(SMALL), written(tmp_path / "small", SMALL), unheard)
    assert not remote.put(digest_of(SMALL), tmp_path / "small", unheard)
    assert b"".join(remote.read(digest_of(SMALL), 2)) == SMALL[2:]


def test_folder_is_created_on_first_put(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    remote = open_remote(folder.as_uri(), "main")
    assert remote.record(KEY) is None
    assert not remote.has(digest_of(SMALL))
    assert not folder.exists()
    assert remote.put_record(KEY, b"data")
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        str(Path("main", "ac", KEY))
    ]


def test_unmounted_share_is_unreachable_and_not_created(tmp_path: Path) -> None:
    remote = open_remote((tmp_path / "not-mounted" / "shared").as_uri(), "main")
    for ask in (lambda: remote.record(KEY), lambda: remote.put_record(KEY, b"data")):
        with pytest.raises(RemoteError, match="not-mounted, which is not there") as raised:
            ask()
        assert raised.value.trouble == "unreachable"
    assert not (tmp_path / "not-mounted").exists()


def test_folder_name_with_url_escapes_works(tmp_path: Path) -> None:
    folder = tmp_path / "a cache, 100% ours"
    assert open_remote(folder.as_uri()).put_record(KEY, b"data")
    assert (folder / "ac" / KEY).read_bytes() == b"data"
