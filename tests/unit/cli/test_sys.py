"""``winml-dag sys``: what this machine has, as reported by the providers themselves, none of which can crash it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from winml_dag.cli import main, run
from winml_dag.ep.providers.migraphx import MIGRAPHX
from winml_dag.ep.providers.openvino import OPENVINO
from winml_dag.ep.registry import CPU, EXECUTION_PROVIDERS, QNN
from winml_dag.pipeline.host import ProviderFound, detect_devices

ROOT = Path(__file__).parents[3]
PLUGIN = OPENVINO.packages[1].plugin


@pytest.fixture(autouse=True)
def _without_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("WINML_DAG_CONFIG", raising=False)
    monkeypatch.delenv("WINML_DAG_EP_ENVIRONMENTS", raising=False)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ProviderFound]:
    """Returns what is detected of OpenVINO when its package has the given code."""

    def found(code: str) -> ProviderFound:
        (tmp_path / "packages" / PLUGIN).mkdir(parents=True)
        (tmp_path / "packages" / PLUGIN / "__init__.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path / "packages")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
        (openvino,) = detect_devices([OPENVINO]).providers
        return openvino

    return found


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """Return ``sys --format json`` from a separate process, which must not import what its children load."""
    code = (
        "import sys\nfrom winml_dag.cli import run\n"
        "code = run(['sys', '--format', 'json'])\n"
        "heavy = [name for name in ('onnxruntime', 'onnx', 'torch', 'numpy', 'pydantic') if name in sys.modules]\n"
        "assert not heavy, heavy\nsys.exit(code)"
    )
    environment = {**os.environ, "WINML_DAG_EP_ENVIRONMENTS": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_sys_command_does_not_shadow_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["winml-dag", "sys", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().out.split()[:3]) == (0, ["Usage:", "winml-dag", "sys"])


def test_versions_and_machine_are_reported(told: dict[str, Any]) -> None:
    assert told["python"]["version"] == platform.python_version()
    assert told["packages"]["onnxruntime"] == onnxruntime.__version__
    assert told["logical_cores"] >= told["usable_cores"] >= 1
    assert told["memory_gib"] >= 1
    assert [each["name"] for each in told["execution_providers"]] == [ep.name for ep in EXECUTION_PROVIDERS]


def test_cpu_provider_is_available(told: dict[str, Any]) -> None:
    cpu = next(each for each in told["execution_providers"] if each["alias"] == "cpu")
    assert (cpu["available"], cpu["devices"]) == (True, ["cpu"])
    assert cpu["package"]["version"] == onnxruntime.__version__
    assert any(device["type"] == "cpu" and "cpu" in device["execution_providers"] for device in told["devices"])


def test_missing_provider_is_listed_with_install_hint(told: dict[str, Any]) -> None:
    missing = [each for each in told["execution_providers"] if not each["installed"]]
    assert missing
    for each in missing:
        assert (each["available"], each["why_not"]) == (False, "It is not installed here.")
        assert each["how_to_get"]


def test_qnn_reports_sdk_and_npu_emulation(told: dict[str, Any]) -> None:
    qnn_package = pytest.importorskip("onnxruntime_qnn")
    qnn = next(each for each in told["execution_providers"] if each["alias"] == "qnn")
    assert qnn["package"] == {"name": "onnxruntime-qnn", "version": qnn_package.__version__}
    assert qnn["sdk_version"] == qnn_package.build_and_package_info.qnn_version
    assert qnn["available"]
    assert qnn["emulates_npu"] == ("npu" not in qnn["devices"])


def test_crashing_provider_does_not_affect_others(plugin: Callable[[str], ProviderFound]) -> None:
    found = plugin(
        "import faulthandler, sys\n"
        "print('the driver is of another age', file=sys.stderr, flush=True)\n"
        "faulthandler._sigsegv()\n"
    )
    assert found.installed
    assert not found.is_available
    assert found.why_not.startswith("Its process ended with ")
    assert found.how == "Its last words: the driver is of another age"
    (cpu,) = detect_devices([CPU]).providers
    assert cpu.is_available


def test_unloadable_library_becomes_one_sentence(plugin: Callable[[str], ProviderFound]) -> None:
    found = plugin("def get_library_path():\n    return '/nowhere/libopenvino.so'\n")
    assert found.why_not.startswith("OpenVINOExecutionProvider does not load here: ")
    assert "\n" not in found.why_not


def test_invalid_ep_environment_is_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINML_DAG_EP_ENVIRONMENTS", f"migraphx={tmp_path / 'none'}")
    found = detect_devices([MIGRAPHX, CPU])
    assert f"names {tmp_path / 'none'}, which is not there" in found.problem
    assert [each.is_available for each in found.providers] == [False, True]


@pytest.mark.parametrize(
    ("environment", "package", "runtime"),
    [
        (".venv-openvino", "onnxruntime-openvino", "onnxruntime-openvino"),
        (".venv-openvino-plugin", "onnxruntime-ep-openvino", "onnxruntime"),
    ],
)
def test_openvino_is_detected_in_its_environment(
    environment: str, package: str, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ROOT / environment
    if not (folder / "with-openvino").is_file():
        pytest.skip("make ep-openvino has not made its environments")
    monkeypatch.setenv("WINML_DAG_EP_ENVIRONMENTS", f"openvino={folder}")
    (found,) = detect_devices([OPENVINO]).providers
    assert found.environment == folder
    assert found.package is not None
    assert found.runtime is not None
    assert (found.package[0], found.runtime[0]) == (package, runtime)
    assert found.sdk_version.startswith("20")
    if (
        sys.platform == "linux" and "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    ):  # elsewhere the plugin finds no device
        assert "cpu" in {device.type for device in found.devices}
    if package == runtime:
        assert {device.type for device in found.devices} | found.refused.keys() == {"npu", "gpu", "cpu"}


def test_lists_are_printed_in_every_format(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = detect_devices([QNN, CPU])
    monkeypatch.setattr("winml_dag.pipeline.host.detect_devices", lambda: found)

    def says(*arguments: str) -> str:
        assert run(["sys", *arguments]) == 0
        return capsys.readouterr().out

    whole = says()
    aliases = [each.ep.alias for each in found.providers]
    listed = says("--list-ep")
    assert [line.split()[0] for line in listed.splitlines()] == aliases
    assert all(f"  {line}" in whole for line in listed.splitlines())
    assert says("--list-device").startswith("cpu ")
    assert [each["alias"] for each in json.loads(says("--list-ep", "-f", "json"))["execution_providers"]] == aliases
    assert "execution_providers" not in json.loads(says("--list-device", "-f", "json"))
    available = " ".join(each.ep.alias for each in found.providers if each.is_available)
    assert says("--list-ep", "-f", "compact") == f"{available}\n"
    (line,) = says("-f", "compact").splitlines()
    assert f"ep: {available}" in line
