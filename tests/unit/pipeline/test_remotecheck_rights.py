"""A check of a remote tells whether this very user may write, whatever others have left there."""

from __future__ import annotations

from pathlib import Path

from servers.nginx import nginx_server

from winml_dag.pipeline.remotecheck import check_level
from winml_dag.store.remote.backends import open_remote
from winml_dag.store.remote.settings import LevelSettings, Mode, RemoteSettings


def test_who_may_not_write_is_told_so_also_where_somebody_has_written_before(tmp_path: Path) -> None:
    def may_write(url: str, namespace: str) -> bool:
        level = LevelSettings(url, Mode.READ_WRITE, namespace)
        settings = RemoteSettings((level,), accept_unsigned=True)
        findings = list(check_level(level, settings, open_remote(url, namespace), tmp_path))
        return next(finding.is_well for finding in findings if finding.what == "write")

    with nginx_server(tmp_path / "nginx") as nginx:
        assert may_write(nginx.url, "main")
        assert not may_write(nginx.url_of("pull"), "main")
        assert may_write(nginx.url_of("pull"), "pull/12")
        assert may_write(nginx.url, "main")
