"""Other environments that the user names: where they are configured, what is read of them, and what is rejected."""

from __future__ import annotations

import os
import sys
import venv
from pathlib import Path

import pytest

from winml_dag.configuration import CONFIG_VARIABLE, ENVIRONMENTS_VARIABLE
from winml_dag.ep.availability import environment_of, installed, libraries_of, package_of, require_installed
from winml_dag.ep.environments import Environment
from winml_dag.ep.providers.cuda import CUDA
from winml_dag.ep.providers.openvino import OPENVINO
from winml_dag.ep.registry import QNN, Target
from winml_dag.errors import UsageError

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="environments lie otherwise on Windows")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv with the installed metadata of two builds of onnxruntime."""
    folder = tmp_path_factory.mktemp("real") / ".venv-openvino"
    venv.create(folder, with_pip=False, symlinks=sys.platform != "win32")
    packages = next(path for path in folder.rglob("site-packages") if path.is_dir())
    for name in ("onnxruntime_openvino-1.24.1.dist-info", "onnxruntime/capi"):
        (packages / name).mkdir(parents=True)
    (packages / "onnxruntime" / "__init__.py").touch()
    (packages / "onnxruntime" / "capi" / "libopenvino.so.2541").write_bytes(b"library")
    return folder


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file to write; the variable with higher precedence is empty."""
    monkeypatch.delenv(ENVIRONMENTS_VARIABLE, raising=False)
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config.toml"))
    return tmp_path / "config.toml"


def write(config: Path, text: str) -> None:
    config.write_text(text, encoding="utf-8")


def test_without_a_configuration_everything_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (CONFIG_VARIABLE, ENVIRONMENTS_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("XDG_CONFIG_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    assert environment_of(OPENVINO) is None


@pytest.mark.parametrize("name", ["openvino", "ov", "OpenVINOExecutionProvider"])
def test_an_environment_is_named_in_a_file_relative_to_it(config: Path, real: Path, name: str) -> None:
    write(config, f"[ep.{name}]\nenvironment = '{Path(os.path.relpath(real, config.parent)).as_posix()}'\n")
    found = environment_of(OPENVINO)
    assert found is not None
    assert found.folder.resolve() == real.resolve()
    assert found.python.is_file()
    assert [path.name for path in found.site_packages] == ["site-packages"]
    assert environment_of(QNN) is None
    package = package_of(OPENVINO, found)
    assert package is not None
    assert package.distribution == "onnxruntime-openvino"
    assert installed(OPENVINO)
    assert libraries_of(OPENVINO, found).names() == ["libopenvino.so.2541"]


def test_the_home_folder_may_be_written_as_a_tilde(config: Path, real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(real.parent))
    write(config, '[ep.openvino]\nenvironment = "~/.venv-openvino"\n')
    assert environment_of(OPENVINO) is not None


def test_a_user_without_a_home_has_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (CONFIG_VARIABLE, ENVIRONMENTS_VARIABLE, "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    # As in Python where neither the environment nor the system has a home folder.
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert environment_of(OPENVINO) is None
    monkeypatch.setenv(ENVIRONMENTS_VARIABLE, "openvino=~nobody/.venv")
    with pytest.raises(UsageError, match="which is not there"):
        environment_of(OPENVINO)


def test_the_variable_has_precedence_over_the_file(config: Path, real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(config, '[ep.openvino]\nenvironment = "nowhere"\n[ep.cuda]\nenvironment = "nowhere"\n')
    monkeypatch.setenv(ENVIRONMENTS_VARIABLE, os.pathsep.join([f"ov={real}", f"qnn={real}"]))
    for ep in (OPENVINO, QNN):
        found = environment_of(ep)
        assert found is not None
        assert found.folder == real
    with pytest.raises(UsageError, match="nowhere, which is not there"):
        environment_of(CUDA)


def test_the_environment_that_we_run_in_is_no_other_one(config: Path) -> None:
    write(config, f"[ep.qnn]\nenvironment = '{Path(sys.prefix).as_posix()}'\n")
    assert environment_of(QNN) is None


def test_the_file_may_speak_of_remotes_too(config: Path, real: Path) -> None:
    remote = "[[remote]]\nurl = 'https://cache'\n[signing]\nkeys_file = 'keys'\n"
    write(config, f"[ep.openvino]\nenvironment = '{real.as_posix()}'\n{remote}")
    assert environment_of(OPENVINO) is not None


def test_an_edit_of_the_file_is_seen_at_once(config: Path, real: Path) -> None:
    write(config, f"[ep.openvino]\nenvironment = '{real.as_posix()}'\n")
    assert environment_of(OPENVINO) is not None
    write(config, "")
    assert environment_of(OPENVINO) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ep.openvino", r"config\.toml cannot be read: Expected"),
        ("[tools]\n", r"config\.toml has the key 'tools', which is not known"),
        ("ep = 1\n", r"ep is not a table"),
        ("[ep]\nopenvino = '/x'\n", r"ep\.openvino is not a table"),
        ("[ep.openvino]\npython = '/x'\n", r"has the key 'ep\.openvino\.python'"),
        ("[ep.openvino]\n", r"ep\.openvino needs environment"),
        ("[ep.openvino]\nenvironment = 7\n", r"ep\.openvino needs environment"),
        ("[ep.openvin]\nenvironment = '.'\n", r"ep\.openvin\.environment in .*: There is no execution provider"),
        ("[ep.cpu]\nenvironment = '.'\n", r"ep\.cpu\.environment in .*: CPUExecutionProvider is part of every"),
        ("[ep.ov]\nenvironment = '.'\n[ep.openvino]\nenvironment = '.'\n", r"are both for OpenVINO"),
        ("[ep.openvino]\nenvironment = 'gone'\n", r"ep\.openvino\.environment in .*config\.toml names .*gone, which"),
        ("[ep.openvino]\nenvironment = '.'\n", r"which is not a Python environment"),
    ],
)
def test_what_a_file_cannot_say_is_one_sentence_with_file_and_key(config: Path, text: str, message: str) -> None:
    write(config, text)
    with pytest.raises(UsageError, match=message) as caught:
        environment_of(OPENVINO)
    assert caught.value.exit_code == 2


def test_a_file_that_is_named_has_to_be_there(config: Path) -> None:
    with pytest.raises(UsageError, match=f"{CONFIG_VARIABLE} names .*, which is not there"):
        environment_of(OPENVINO)
    assert not config.exists()


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("text", ["openvino", "=/x", "openvino="])
def test_a_variable_that_names_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(ENVIRONMENTS_VARIABLE, text)
    with pytest.raises(UsageError, match=f"{ENVIRONMENTS_VARIABLE} has '{text}'"):
        environment_of(OPENVINO)


def made(folder: Path, *names: str, marker: str | None = None) -> Path:
    for name in names:
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    if marker is not None:
        (folder / "pyvenv.cfg").write_text(marker)
    return folder


def named(config: Path, folder: Path) -> Environment | None:
    write(config, f"[ep.openvino]\nenvironment = '{folder.as_posix()}'\n")
    return environment_of(OPENVINO)


@posix_only
def test_a_conda_environment_is_one_too(config: Path, tmp_path: Path) -> None:
    names = ("bin/python", "lib/python3.12/site-packages/", "conda-meta/python-3.12.4-h5148396_1.json")
    found = named(config, made(tmp_path / "conda", *names))
    assert found is not None
    assert found.site_packages == (tmp_path / "conda" / "lib/python3.12/site-packages",)


@posix_only
def test_packages_of_a_python_that_was_replaced_are_not_looked_at(config: Path, tmp_path: Path) -> None:
    names = ("bin/python", "lib/python3.11/site-packages/", "lib/python3.13/site-packages/", "lib64/python3.13/")
    folder = made(tmp_path / "both", *names, "lib64/python3.13/site-packages/", marker="version_info = 3.13.1.final.0")
    found = named(config, folder)
    assert found is not None
    assert found.site_packages == tuple(folder / name / "python3.13/site-packages" for name in ("lib", "lib64"))


@posix_only
@pytest.mark.parametrize(
    ("names", "marker", "message"),
    [
        (("bin/python", "lib/python3.10/site-packages/"), "version = 3.10.2", r"whose Python is 3\.10"),
        (("bin/python", "lib/python3.9/site-packages/"), None, r"whose Python is 3\.9"),
        (("bin/python",), "version = 3.12.1", r"no folder of packages"),
        (
            ("bin/python", "lib/python3.12/site-packages/"),
            "version = 3.12.1\ninclude-system-site-packages = true",
            r"also uses the packages of another Python",
        ),
    ],
)
def test_an_environment_that_workers_cannot_run_in_is_refused(
    config: Path, tmp_path: Path, names: tuple[str, ...], marker: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        named(config, made(tmp_path / "unfit", *names, marker=marker))


def test_an_environment_without_the_provider_is_told_apart_from_none(config: Path, real: Path) -> None:
    write(config, f"[ep.cuda]\nenvironment = '{real.as_posix()}'\n")
    assert not installed(CUDA)
    with pytest.raises(UsageError, match="no package in it brings that provider") as caught:
        require_installed(Target(CUDA, "gpu"), otherwise="Or leave it.")
    assert caught.value.advice == "Install onnxruntime-gpu there. Or leave it."
