"""The remotes of a call: their sources, precedence, and what a project may not configure for its users."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from winml_dag.errors import UsageError
from winml_dag.pipeline.remoteconfig import named_by, remote_settings
from winml_dag.pipeline.request import RemoteOptions
from winml_dag.store.remote.settings import Mode, TierSettings
from winml_dag.store.store import Store


@pytest.fixture(autouse=True)
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the user's configuration, which does not exist yet; the current folder is a project in a
    repository.
    """
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    (tmp_path / "repository" / "recipes").mkdir()
    monkeypatch.chdir(tmp_path / "repository")
    monkeypatch.setenv("WINML_DAG_CONFIG", str(tmp_path / "user.toml"))
    return tmp_path / "user.toml"


@pytest.fixture
def project_file(tmp_path: Path) -> Path:
    return tmp_path / "repository" / "winml_dag.toml"


def tiers(**options: object) -> tuple[TierSettings, ...]:
    settings = remote_settings(RemoteOptions(**options))  # type: ignore[arg-type]
    return () if settings is None else settings.tiers


def urls(**options: object) -> list[str]:
    return [tier.url for tier in tiers(**options)]


def test_no_remote_is_configured_by_default_or_by_empty_file(project_file: Path) -> None:
    assert not RemoteOptions().is_configured
    project_file.write_text("# later\n\n")
    assert not RemoteOptions().is_configured
    assert remote_settings(RemoteOptions()) is None


def test_precedence_is_option_environment_project_user(
    user_file: Path, project_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_file.write_text('[[remote]]\nurl = "https://user"\n')
    assert (urls(), named_by(RemoteOptions())) == (["https://user"], str(user_file))
    project_file.write_text('[[remote]]\nurl = "https://project"\n')
    assert (urls(), named_by(RemoteOptions())) == (["https://project"], str(project_file))
    monkeypatch.setenv("WINML_DAG_REMOTE", " https://near  https://far ")
    assert (urls(), named_by(RemoteOptions())) == (["https://near", "https://far"], "WINML_DAG_REMOTE")
    option = ("https://option",)
    assert (urls(urls=option), named_by(RemoteOptions(option))) == (["https://option"], "--remote")


def test_mode_defaults_to_read(project_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project_file.write_text('[[remote]]\nurl = "https://a"\n[[remote]]\nurl = "https://b"\nmode = "read-write"\n')
    assert [tier.mode for tier in tiers()] == [Mode.READ, Mode.READ_WRITE]
    monkeypatch.setenv("WINML_DAG_REMOTE_MODE", "read")
    assert [tier.mode for tier in tiers()] == [Mode.READ, Mode.READ]
    assert [tier.mode for tier in tiers(mode="off")] == [Mode.OFF, Mode.OFF]


def test_environment_sets_namespace_of_all_remotes(project_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project_file.write_text('[[remote]]\nurl = "https://a"\nnamespace = "main"\n')
    assert tiers()[0].namespace == "main"
    monkeypatch.setenv("WINML_DAG_REMOTE_NAMESPACE", "pull/12")
    assert tiers()[0].namespace == "pull/12"
    monkeypatch.setenv("WINML_DAG_REMOTE_NAMESPACE", "../main")
    with pytest.raises(UsageError, match=r"WINML_DAG_REMOTE_NAMESPACE is '\.\./main', which is not a namespace"):
        tiers()


@pytest.mark.parametrize("variable", ["WINML_DAG_REMOTE_MODE", "WINML_DAG_REMOTE_ACCEPT_UNSIGNED"])
def test_invalid_variable_is_refused_by_name(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "reed")
    with pytest.raises(UsageError, match=f"{variable} is 'reed'"):
        tiers(urls=("https://a",))


def test_remote_mode_without_remote_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--remote-mode read-write was given, and there is no remote\. Name one"):
        tiers(mode="read-write")
    assert tiers(mode="off") == ()


class TestAFolderThatOnlyTheProjectNames:
    """Otherwise the author of the project would choose which folder of its users is written to."""

    @pytest.fixture
    def names(self, tmp_path: Path, project_file: Path) -> Callable[..., None]:
        (tmp_path / "outside").mkdir()
        (project_file.parent / "link").symlink_to(tmp_path / "outside", target_is_directory=True)

        def names(url: str, mode: str = "read-write") -> None:
            project_file.write_text(f'[[remote]]\nurl = "{url}"\nmode = "{mode}"\n')

        return names

    @pytest.mark.parametrize("url", ["{up}/outside", "{here}/../outside", "{here}/link", "{here}/link/new", "/etc"])
    @pytest.mark.parametrize("scheme", ["file://", "FILE://localhost", "File://"])
    def test_project_remote_outside_project_is_refused(
        self, names: Callable[..., None], tmp_path: Path, project_file: Path, scheme: str, url: str
    ) -> None:
        names(scheme + url.format(up=tmp_path.as_posix(), here=project_file.parent.as_posix()))
        with pytest.raises(UsageError, match=r"winml_dag\.toml.*outside of the project") as raised:
            tiers()
        assert "config.toml" in raised.value.advice or "user.toml" in raised.value.advice

    def test_project_remote_outside_project_is_refused_with_separate_mode(
        self, names: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names(f"file://{tmp_path.as_posix()}/outside", "read")
        assert [tier.mode for tier in tiers()] == [Mode.READ]
        with pytest.raises(UsageError, match="outside of the project"):
            tiers(mode="read-write")
        monkeypatch.setenv("WINML_DAG_REMOTE_MODE", "read-write")
        with pytest.raises(UsageError, match="outside of the project"):
            tiers()
        assert [tier.mode for tier in tiers(mode="off")] == [Mode.OFF]

    @pytest.mark.parametrize(("name", "more"), [("ac", ""), ("cas", ""), ("link", 'namespace = "link"\n')])
    def test_project_remote_with_link_inside_is_refused(
        self, names: Callable[..., None], project_file: Path, name: str, more: str
    ) -> None:
        names(f"file://{project_file.parent.as_posix()}")
        project_file.write_text(project_file.read_text() + more)
        (project_file.parent / "link").rename(project_file.parent / name)
        with pytest.raises(UsageError, match="outside of the project"):
            tiers()

    def test_remote_inside_project_or_named_by_user_is_writable(
        self, names: Callable[..., None], tmp_path: Path, project_file: Path, user_file: Path
    ) -> None:
        names(f"file://{project_file.parent.as_posix()}/shared")
        assert [tier.mode for tier in tiers()] == [Mode.READ_WRITE]
        outside = f"file://{tmp_path.as_posix()}/outside"
        names(outside)
        assert [tier.url for tier in tiers(urls=(outside,), mode="read-write")] == [outside]
        user_file.write_text(f'[[remote]]\nurl = "{outside}"\nmode = "read-write"\n')
        assert [tier.mode for tier in tiers()] == [Mode.READ_WRITE]


class TestTheProject:
    def test_project_file_is_searched_from_recipe_folder_to_repository_root(
        self, tmp_path: Path, project_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project_file.write_text('[[remote]]\nurl = "https://project"\n')
        monkeypatch.chdir(tmp_path)
        recipes = project_file.parent / "recipes"
        assert urls(folder=recipes) == ["https://project"]
        (recipes / "winml_dag.toml").write_text('[[remote]]\nurl = "https://nearer"\n')
        assert urls(folder=recipes) == ["https://nearer"]
        # That of the current folder is the fallback.
        monkeypatch.chdir(project_file.parent)
        (tmp_path / "elsewhere").mkdir()
        assert urls(folder=tmp_path / "elsewhere") == ["https://project"]

    def test_project_file_is_not_searched_above_folder_without_repository(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Folders above may belong to anybody, as in a temporary folder."""
        (tmp_path / "shared").mkdir()
        (tmp_path / "winml_dag.toml").write_text('[[remote]]\nurl = "https://anybody"\n')
        monkeypatch.chdir(tmp_path / "shared")
        if any(os.path.lexists(folder / ".git") for folder in (tmp_path, *tmp_path.parents)):
            pytest.skip("temporary folders are in a repository here")
        assert urls(folder=tmp_path / "shared") == []

    def test_project_file_cannot_set_signing(self, project_file: Path) -> None:
        project_file.write_text('[[remote]]\nurl = "https://a"\n[signing]\naccept_unsigned = true\n')
        with pytest.raises(UsageError, match="the authors of a project would decide"):
            tiers()

    def test_project_file_cannot_widen_user_settings_of_same_remote(self, user_file: Path, project_file: Path) -> None:
        user_file.write_text('[[remote]]\nurl = "https://a"\nmode = "read"\ntrusted = ["main", "old"]\n')
        project_file.write_text('[[remote]]\nurl = "https://a"\nmode = "read-write"\n')
        assert tiers()[0].mode is Mode.READ
        assert tiers()[0].trusted == {"main", "old"}
        project_file.write_text('[[remote]]\nurl = "https://a"\nmode = "off"\ntrusted = ["main", "theirs"]\n')
        assert tiers()[0].mode is Mode.OFF
        assert tiers()[0].trusted == {"main"}
        project_file.write_text('[[remote]]\nurl = "https://A/"\nmode = "read-write"\n')
        assert tiers()[0].mode is Mode.READ
        # Nor by omitting the user name.
        user_file.write_text('[[remote]]\nurl = "https://me:secret@a"\n')
        assert tiers()[0].mode is Mode.READ

    def test_project_remote_gets_token_only_if_user_allows_host(
        self, user_file: Path, project_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user_file.write_text('[[remote]]\nurl = "https://a"\n')
        project_file.write_text('[[remote]]\nurl = "https://A/"\n[[remote]]\nurl = "https://b:8443/cache"\n')
        assert [tier.gets_token for tier in tiers()] == [True, False]
        for host in ("b", "B:8443"):
            monkeypatch.setenv("WINML_DAG_REMOTE_TOKEN_HOST", host)
            assert [tier.gets_token for tier in tiers()] == [False, True]
        monkeypatch.setenv("WINML_DAG_REMOTE_TOKEN_HOST", "b.example.com")
        assert not any(tier.gets_token for tier in tiers(urls=("https://b", "https://a@b.example.com.c")))


class TestTheUser:
    def test_user_file_sets_keys_and_accept_unsigned(self, user_file: Path) -> None:
        keys = user_file.parent / "keys"
        keys.write_text("team:" + "A" * 43 + "=\n")
        keys.chmod(0o600)
        user_file.write_text('[[remote]]\nurl = "https://a"\n[signing]\nkeys_file = "keys"\naccept_unsigned = true\n')
        settings = remote_settings(RemoteOptions())
        assert settings is not None
        assert [key.id for key in settings.keys] == ["team"]
        assert settings.accept_unsigned

    def test_environment_overrides_user_signing(self, user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        user_file.write_text('[[remote]]\nurl = "https://a"\n[signing]\naccept_unsigned = true\n')
        monkeypatch.setenv("WINML_DAG_REMOTE_ACCEPT_UNSIGNED", "0")
        settings = remote_settings(RemoteOptions())
        assert settings is not None
        assert not settings.accept_unsigned

    def test_user_file_may_contain_provider_sections(self, user_file: Path) -> None:
        user_file.write_text('[ep.openvino]\nenvironment = "/venv"\n')
        assert not RemoteOptions().is_configured
        user_file.write_text('[ep.openvino]\nenvironment = "/venv"\n[[remote]]\nurl = "https://a"\n')
        assert urls() == ["https://a"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[remote]]\nurl = "https://a"\n\n[[remote]]\nurl = "https://b"\nmoed = 1\n', ":6: remote[1].moed: unknown"),
        ('[[remote]]\nurl = "https://a"\nmoed = "read"\n', "did you mean 'mode'?"),
        ('[[remote]]\nurl = "https://a"\nzzz = 1\n', "known are url, mode, namespace, trusted"),
        ('[[remote]]\nurl = "https://a"\nmode = "write"\n', ":3: remote[0].mode: 'write' is not one of read"),
        ('[[remote]]\nurl = 7\n', ":2: remote[0].url: expected text, got 7"),
        ('[[remote]]\nurl = "cache.example.com"\n', ":2: remote[0].url: this is not an address"),
        ('[[remote]]\nmode = "read"\n', "remote[0].url: is required"),
        ('[[remote]]\nurl = "https://a"\nnamespace = "a//b"\n', "'a//b' is not a namespace"),
        ('[[remote]]\nurl = "https://a"\ntrusted = "main"\n', ":3: remote[0].trusted: expected a list"),
        ('[[remotes]]\nurl = "https://a"\n', ":1: remotes: unknown key; did you mean 'remote'?"),
        ('# ours\n\nurl = "https://a"\n', ":3: url: unknown key; known are remote"),
        ('remote = "https://a"\n', ":1: remote: expected a list, got 'https://a'"),
        ('base = 1\n[[remote]]\nurl = "https://a"\n', ":1: base: unknown key; known are remote"),
        ("[[remote]]\nurl = \n", "cannot be read"),
    ],
)  # fmt: skip
def test_invalid_file_is_refused_with_line(text: str, told: str, project_file: Path) -> None:
    project_file.write_text(text)
    with pytest.raises(UsageError) as refused:
        tiers()
    assert str(project_file) in str(refused.value)
    assert told in str(refused.value)


def test_unreadable_file_is_reported(user_file: Path) -> None:
    user_file.mkdir()
    with pytest.raises(UsageError, match=r"user\.toml cannot be read"):
        tiers()


def test_existing_plain_cache_gets_sha256_subfolder_for_remotes(project_file: Path, tmp_path: Path) -> None:
    def folder(**options: object) -> Path:
        return RemoteOptions(**options).store_folder(tmp_path / "cache")  # type: ignore[arg-type]

    assert folder(urls=("https://a",)) == tmp_path / "cache"
    Store(tmp_path / "cache")
    assert folder() == tmp_path / "cache"
    assert folder(urls=("https://a",)) == folder(urls=("https://b",), mode="off") == tmp_path / "cache" / "sha256"
    project_file.write_text('[[remote]]\nurl = "https://a"\n')
    assert folder() == tmp_path / "cache" / "sha256"
    project_file.write_text("# [[remote]]\n")
    assert folder() == tmp_path / "cache"
