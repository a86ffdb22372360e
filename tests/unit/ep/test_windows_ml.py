"""Providers from the Windows ML catalog.

The catalog exists only on Windows, so a test double of the same form replaces it. The library it gives to onnxruntime
is a real one where available.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from winml_dag.ep import availability, windowsml
from winml_dag.ep.availability import installed, package_of, resolve_target
from winml_dag.ep.providers.dml import DML
from winml_dag.ep.providers.migraphx import MIGRAPHX
from winml_dag.ep.providers.openvino import OPENVINO
from winml_dag.ep.registry import QNN, ExecutionProvider
from winml_dag.errors import StageError

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
def test_elsewhere_it_is_refused_in_one_sentence() -> None:
    with pytest.raises(StageError) as caught:
        windowsml.ready_library("QNNExecutionProvider")
    assert str(caught.value) == (
        "Windows ML, from which QNNExecutionProvider would come, is part of Windows. Run this stage there."
    )
    assert windowsml.library_in_catalog("QNNExecutionProvider") is None


@pytest.mark.usefixtures("catalog")
def test_the_catalog_counts_where_no_package_brings_the_provider() -> None:
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
def test_what_is_on_this_machine_is_made_ready_and_nothing_is_downloaded(
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
def test_a_library_from_the_catalog_serves_onnxruntime(tmp_path: Path) -> None:
    (tmp_path / "windowsml").mkdir()
    (tmp_path / "windowsml" / "__init__.py").write_text(CATALOG)
    search = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search, "STATE": "NotReady"}
    done = subprocess.run([sys.executable, "-c", _USE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
