"""A check of a remote reports whether the current user may write, whatever files of others exist there."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.faulty import FaultyServer
from servers.nginx import nginx_server

from winml_dag.pipeline.remotes import check_tier
from winml_dag.store.remote.settings import Mode, RemoteSettings, SigningKey, TierSettings, open_remote


def test_who_may_not_write_is_told_so_also_where_somebody_has_written_before(tmp_path: Path) -> None:
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


def test_that_a_token_is_not_sent_is_told_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with FaultyServer() as server:

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


def test_who_is_trusted_is_told_where_only_other_keys_are_here(tmp_path: Path) -> None:
    tier = TierSettings(tmp_path.as_uri(), trusted=frozenset({"main"}))
    settings = RemoteSettings((tier,), (SigningKey("pull", bytes(32)),))
    keys = next(iter(check_tier(tier, settings, open_remote(tier.url), tmp_path)))
    assert (keys.what, keys.is_well) == ("keys", False)
    assert "trusted with (main) none is here (pull)" in keys.text
