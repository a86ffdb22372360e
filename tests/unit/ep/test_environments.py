"""Providers from other environments, which the user names, and from the catalog of Windows ML."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from winml_dag.configuration import CONFIG_VARIABLE, ENVIRONMENTS_VARIABLE
from winml_dag.ep import availability, windowsml
from winml_dag.ep.availability import (
    environment_of,
    installed,
    libraries_of,
    package_of,
    require_installed,
    resolve_target,
)
from winml_dag.ep.providers.cuda import CUDA
from winml_dag.ep.providers.dml import DML
from winml_dag.ep.providers.migraphx import MIGRAPHX
from winml_dag.ep.providers.openvino import OPENVINO
from winml_dag.ep.registry import QNN, ExecutionProvider, Target
from winml_dag.errors import StageError, UsageError


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


def named(config: Path, folder: Path, ep: str = "openvino", more: str = "") -> str:
    """Write the configuration file, which names *folder* for *ep*, and return its text."""
    text = f"[ep.{ep}]\nenvironment = '{folder.as_posix()}'\n{more}"
    config.write_text(text, encoding="utf-8")
    return text


@pytest.mark.parametrize("name", ["openvino", "ov", "OpenVINOExecutionProvider"])
def test_environment_path_is_relative_to_config_file(config: Path, real: Path, name: str) -> None:
    named(config, Path(os.path.relpath(real, config.parent)), name)
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


def test_missing_home_or_config_file_means_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (CONFIG_VARIABLE, ENVIRONMENTS_VARIABLE, "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    assert environment_of(OPENVINO) is None
    # As in Python where neither the environment nor the system has a home folder.
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert environment_of(OPENVINO) is None
    monkeypatch.setenv(ENVIRONMENTS_VARIABLE, "openvino=~nobody/.venv")
    with pytest.raises(UsageError, match="which is not there"):
        environment_of(OPENVINO)


def test_config_edit_takes_effect_immediately(config: Path, real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = "[[remote]]\nurl = 'https://cache'\n[signing]\nkeys_file = 'keys'\n"
    named(config, real, more=remote)
    assert environment_of(OPENVINO) is not None
    # The environment that we run in is no other one.
    named(config, Path(sys.prefix))
    assert environment_of(OPENVINO) is None
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(real.parent))
    named(config, Path("~/.venv-openvino"))
    assert environment_of(OPENVINO) is not None
    config.write_text("", encoding="utf-8")
    assert environment_of(OPENVINO) is None
    config.unlink()
    with pytest.raises(UsageError, match=f"{CONFIG_VARIABLE} names .*, which is not there"):
        environment_of(OPENVINO)


def test_environment_variable_overrides_config_file(config: Path, real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named(config, Path("nowhere"), more=named(config, Path("nowhere"), "cuda"))
    monkeypatch.setenv(ENVIRONMENTS_VARIABLE, os.pathsep.join([f"ov={real}", f"qnn={real}"]))
    for ep in (OPENVINO, QNN):
        found = environment_of(ep)
        assert found is not None
        assert found.folder == real
    with pytest.raises(UsageError, match="nowhere, which is not there"):
        environment_of(CUDA)
    for text in ("openvino", "=/x", "openvino="):
        monkeypatch.setenv(ENVIRONMENTS_VARIABLE, text)
        with pytest.raises(UsageError, match=f"{ENVIRONMENTS_VARIABLE} has '{text}'"):
            environment_of(OPENVINO)


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
def test_invalid_config_is_refused_with_file_and_key(config: Path, text: str, message: str) -> None:
    config.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message) as caught:
        environment_of(OPENVINO)
    assert caught.value.exit_code == 2


@pytest.mark.skipif(sys.platform == "win32", reason="environments lie otherwise on Windows")
@pytest.mark.parametrize(
    ("folders", "marker", "outcome"),
    [
        pytest.param(("lib/python3.12",), "", ("lib/python3.12",), id="a conda environment"),
        pytest.param(
            ("lib/python3.11", "lib/python3.13", "lib64/python3.13"),
            "version_info = 3.13.1.final.0",
            ("lib/python3.13", "lib64/python3.13"),
            id="a Python that was replaced",
        ),
        (("lib/python3.10",), "version = 3.10.2", r"whose Python is 3\.10"),
        (("lib/python3.9",), "", r"whose Python is 3\.9"),
        ((), "version = 3.12.1", "no folder of packages"),
        (("lib/python3.12",), "version = 3.12.1\ninclude-system-site-packages = true", "packages of another Python"),
    ],
)
def test_site_packages_are_those_of_environment_python(
    config: Path, tmp_path: Path, folders: tuple[str, ...], marker: str, outcome: str | tuple[str, ...]
) -> None:
    folder = tmp_path / "there"
    for inside in ("bin", "conda-meta", *(f"{name}/site-packages" for name in folders)):
        (folder / inside).mkdir(parents=True)
    (folder / "bin" / "python").touch()
    if marker:
        (folder / "pyvenv.cfg").write_text(marker)
    elif folders == ("lib/python3.12",):
        (folder / "conda-meta" / "python-3.12.4-h5148396_1.json").touch()
    named(config, folder)
    if isinstance(outcome, str):
        with pytest.raises(UsageError, match=outcome):
            environment_of(OPENVINO)
    else:
        found = environment_of(OPENVINO)
        assert found is not None
        assert found.site_packages == tuple(folder / name / "site-packages" for name in outcome)


def test_environment_without_provider_is_refused(config: Path, real: Path) -> None:
    named(config, real, "cuda")
    assert not installed(CUDA)
    with pytest.raises(UsageError, match="no package in it brings that provider") as caught:
        require_installed(Target(CUDA, "gpu"), otherwise="Or leave it.")
    assert caught.value.advice == "Install onnxruntime-gpu there. Or leave it."


# The catalog exists only on Windows, so a test double of the same form replaces it. The library it gives to onnxruntime
# is a real one where available.

# Names and values as in the package windowsml 2.5.
CATALOG = """
import enum, os


class EpReadyState(enum.IntEnum):
    Ready = 0
    NotReady = 1
    NotPresent = 2


class ExecutionProvider:
    name = "QNNExecutionProvider"
    prepared = []

    @property
    def ready_state(self):
        return EpReadyState[os.environ["STATE"]]

    @property
    def library_path(self):
        return os.environ["LIBRARY"]

    def ensure_ready(self):
        self.prepared.append(self.name)


class EpCatalog:
    def find_all_providers(self):
        return [ExecutionProvider()]
"""


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with Windows ML, and QNN in its catalog. Returns the folder of the package."""
    (tmp_path / "windowsml").mkdir()
    (tmp_path / "windowsml" / "__init__.py").write_text(CATALOG)
    for module in (windowsml, availability):
        monkeypatch.setattr(module, "is_windows", lambda: True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("STATE", "Ready")
    monkeypatch.setenv("LIBRARY", str(tmp_path / "onnxruntime_providers_qnn.dll"))
    windowsml._catalog.cache_clear()
    yield tmp_path
    windowsml._catalog.cache_clear()
    sys.modules.pop("windowsml", None)


@pytest.mark.skipif(sys.platform == "win32", reason="there, the catalog is")
def test_windows_ml_is_refused_on_other_systems() -> None:
    with pytest.raises(StageError) as caught:
        windowsml.ready_library("QNNExecutionProvider")
    assert str(caught.value) == (
        "Windows ML, from which QNNExecutionProvider would come, is part of Windows. Run this stage there."
    )
    assert windowsml.library_in_catalog("QNNExecutionProvider") is None


@pytest.mark.usefixtures("catalog")
def test_catalog_is_used_when_no_package_has_provider() -> None:
    package = package_of(QNN, None)
    assert package is not None
    assert package.catalog
    assert installed(QNN)
    assert not installed(DML)  # no catalog has it: Windows ML's build of onnxruntime does
    assert installed(OPENVINO)  # which takes precedence for a GPU, if the catalog has it for this machine
    assert resolve_target(None, "gpu").ep == QNN
    assert resolve_target("openvino", "gpu").ep == OPENVINO


@pytest.mark.parametrize(
    ("state", "provider", "words"),
    [
        ("Ready", QNN, ""),
        ("NotReady", QNN, ""),
        ("NotPresent", QNN, "is not installed"),
        ("Ready", MIGRAPHX, f"has no {MIGRAPHX.name} for this machine"),
    ],
)
def test_catalog_library_is_prepared_without_download(
    catalog: Path, monkeypatch: pytest.MonkeyPatch, state: str, provider: ExecutionProvider, words: str
) -> None:
    monkeypatch.setenv("STATE", state)
    assert windowsml.library_in_catalog(QNN.name) == catalog / "onnxruntime_providers_qnn.dll"
    import windowsml as package

    if words:
        with pytest.raises(StageError, match=words) as caught:
            windowsml.ready_library(provider.name)
        assert "ensure_ready()" in caught.value.advice or provider == MIGRAPHX
        assert package.ExecutionProvider.prepared == []
    else:
        assert package.ExecutionProvider.prepared == []
        assert windowsml.ready_library(provider.name) == catalog / "onnxruntime_providers_qnn.dll"
        assert package.ExecutionProvider.prepared == [provider.name]


_USE = """
import dataclasses, os
import onnxruntime_qnn
os.environ["LIBRARY"] = str(onnxruntime_qnn.get_library_path())
from winml_dag.ep import availability, registry, session, windowsml
windowsml.is_windows = availability.is_windows = lambda: True
catalog = next(package for package in registry.QNN.packages if package.catalog)
qnn = dataclasses.replace(registry.QNN, packages=(catalog,))
session.session_options(registry.Target(qnn, "npu"), {})
import onnxruntime
assert qnn.name in {device.ep_name for device in onnxruntime.get_ep_devices()}
"""


@pytest.mark.skipif(not installed(QNN), reason="onnxruntime-qnn is not installed")
def test_catalog_library_works_in_onnxruntime(tmp_path: Path) -> None:
    (tmp_path / "windowsml").mkdir()
    (tmp_path / "windowsml" / "__init__.py").write_text(CATALOG)
    search = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search, "STATE": "NotReady"}
    done = subprocess.run([sys.executable, "-c", _USE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
