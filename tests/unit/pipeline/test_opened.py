"""Opening a store, with and without remotes, its state after closing, and the check of a remote."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from servers.faulty import FaultyServer
from servers.nginx import nginx_server

from winml_dag.errors import UsageError
from winml_dag.pipeline.remotes import close_store, open_store
from winml_dag.pipeline.request import RemoteOptions
from winml_dag.store.remote import http, transfer
from winml_dag.store.remote.check import check_tier
from winml_dag.store.remote.settings import Mode, RemoteSettings, SigningKey, TierSettings, open_remote
from winml_dag.store.store import Store
from winml_dag.store.usage import read_statistics

KEY = "a" * 64


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINML_DAG_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("WINML_DAG_REMOTE_ACCEPT_UNSIGNED", "1")


def test_store_without_remote_is_local_and_imports_nothing_else(tmp_path: Path) -> None:
    assert type(open_store(tmp_path / "cache", RemoteOptions())) is Store
    assert type(open_store(tmp_path / "cache", RemoteOptions(mode="off"))) is Store
    script = """
import sys
from pathlib import Path
from winml_dag.pipeline.remotes import open_store
from winml_dag.pipeline.request import RemoteOptions
open_store(Path("cache"), RemoteOptions())
heavy = {"urllib3", "obstore", "pydantic", "tomllib", "winml_dag.store.remote"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_store_with_remote_uses_sha256_even_if_off(tmp_path: Path) -> None:
    for mode in ("read", "off"):
        store = open_store(tmp_path / mode, RemoteOptions((tmp_path.as_uri(),), mode))
        assert store.has_remotes
        assert store.function == "sha256"
        store.close()


def test_unsupported_remote_scheme_is_refused_before_missing_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WINML_DAG_REMOTE_ACCEPT_UNSIGNED")
    with pytest.raises(UsageError, match="No remote is reached by 'ftp://'"):
        open_store(tmp_path / "cache", RemoteOptions(("ftp://cache",)))


def test_remote_failure_is_logged_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ATTEMPT_SECONDS", 0.1)
    monkeypatch.setattr(transfer, "ATTEMPT_SECONDS", 0.1)
    store = open_store(tmp_path / "cache", RemoteOptions(("http://127.0.0.1:1",)))
    with caplog.at_level(logging.WARNING, "winml_dag"):
        assert store.record(KEY) is None
        assert store.record("b" * 64) is None
    assert [record.message.partition(" cannot")[0] for record in caplog.records] == ["The remote http://127.0.0.1:1"]
    close_store(store)
    assert read_statistics(store.folder, store.locks).traffic.left_alone == 1


def test_missing_write_permission_is_reported_per_namespace(tmp_path: Path) -> None:
    def may_write(url: str, namespace: str) -> bool:
        tier = TierSettings(url, Mode.READ_WRITE, namespace)
        settings = RemoteSettings((tier,), accept_unsigned=True)
        findings = list(check_tier(tier, settings, open_remote(url, namespace), tmp_path))
        return next(finding.is_well for finding in findings if finding.what == "write")

    with nginx_server(tmp_path / "nginx") as nginx:
        assert may_write(nginx.url, "main")
        assert not may_write(nginx.url_of("pull"), "main")
        assert may_write(nginx.url_of("pull"), "pull/12")
        assert may_write(nginx.url, "main")


def test_unsent_token_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: FaultyServer) -> None:
    def told(tier: TierSettings) -> list[str]:
        settings = RemoteSettings((tier,), accept_unsigned=True)
        findings = check_tier(tier, settings, open_remote(server.url), tmp_path)
        return [finding.advice for finding in findings if not finding.is_well]

    assert told(TierSettings(server.url)) == []
    monkeypatch.setenv("WINML_DAG_REMOTE_TOKEN", "a secret")
    assert told(TierSettings(server.url, gets_token=True)) == []
    assert told(TierSettings(server.url.replace("//", "//me:secret@"))) == []
    (advice,) = told(TierSettings(server.url))
    assert "WINML_DAG_REMOTE_TOKEN_HOST" in advice


def test_missing_trusted_keys_are_reported(tmp_path: Path) -> None:
    tier = TierSettings(tmp_path.as_uri(), trusted=frozenset({"main"}))
    settings = RemoteSettings((tier,), (SigningKey("pull", bytes(32)),))
    keys = next(iter(check_tier(tier, settings, open_remote(tier.url), tmp_path)))
    assert (keys.what, keys.is_well) == ("keys", False)
    assert "trusted with (main) none is here (pull)" in keys.text
