from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from winml_dag.ep import provider
from winml_dag.ep.availability import Libraries, installed, libraries_of, require_installed, resolve_target
from winml_dag.ep.providers import tensorrt
from winml_dag.ep.registry import CPU, EXECUTION_PROVIDERS, QNN, Target, find_ep
from winml_dag.errors import UsageError

SPELLINGS = [(spelling, ep) for ep in EXECUTION_PROVIDERS for spelling in (ep.name, ep.alias, *ep.aliases)]


def test_a_provider_is_found_by_each_of_its_names_in_any_case():
    texts = [text.lower() for text, _ in SPELLINGS]
    assert len(texts) == len(set(texts))
    for text, ep in SPELLINGS:
        for change in (str.lower, str.upper, str.title):
            assert find_ep(change(text)) == ep
    with pytest.raises(UsageError, match="openvino") as caught:
        find_ep("openvin")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("ep", "device", "expected"),
    [
        (None, None, ("CPUExecutionProvider", "cpu")),
        (None, "auto", ("CPUExecutionProvider", "cpu")),
        ("auto", "auto", ("CPUExecutionProvider", "cpu")),
        (None, "cpu", ("CPUExecutionProvider", "cpu")),
        ("qnn", None, ("QNNExecutionProvider", "npu")),
        ("qnn", "auto", ("QNNExecutionProvider", "npu")),
        ("QNNExecutionProvider", "GPU", ("QNNExecutionProvider", "gpu")),
        (None, "qnn", ("QNNExecutionProvider", "npu")),
        ("qnn", "QNN", ("QNNExecutionProvider", "npu")),
        ("dml", None, ("DmlExecutionProvider", "gpu")),
        ("openvino", "cpu", ("OpenVINOExecutionProvider", "cpu")),
    ],
)
def test_a_target_is_what_provider_and_device_say_together(ep, device, expected):
    target = resolve_target(ep, device)
    assert (target.ep.name, target.device) == expected


def test_a_device_that_a_provider_cannot_drive_or_that_makes_no_sense_is_refused():
    for ep, device in product(EXECUTION_PROVIDERS, ("npu", "gpu", "cpu")):
        if device in ep.devices:
            assert resolve_target(ep.alias, device).device == device
        else:
            with pytest.raises(UsageError, match=device):
                resolve_target(ep.alias, device)
    for alias, device in (("cpu", "qnn"), (None, "np"), ("qnn", "tpu")):
        with pytest.raises(UsageError):
            resolve_target(alias, device)


def test_a_provider_that_is_not_here_is_refused_with_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    require_installed(Target(CPU, "cpu"))
    for ep in EXECUTION_PROVIDERS:
        if ep != CPU:
            assert not installed(ep)
            with pytest.raises(UsageError) as caught:
                require_installed(Target(ep, ep.devices[0]))
            assert caught.value.advice.startswith(ep.how_to_get)
            assert f"{ep.alias}=FOLDER" in caught.value.advice


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """Installs distributions, plug-ins (names without a version) and system libraries where they are searched for."""
    site, system = tmp_path / "site", tmp_path / "system"
    site.mkdir()
    system.mkdir()
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setattr(provider, "_LOADER_CACHE", tmp_path / "ld.so.cache")
    for variable in ("LD_LIBRARY_PATH", "PATH"):
        monkeypatch.setenv(variable, str(system))
    monkeypatch.setenv("SYSTEMROOT", str(tmp_path))

    def put(*names):
        for name in names:
            if name.startswith("onnxruntime_") and "-" not in name:
                (site / name).mkdir()
                (site / name / "__init__.py").touch()
            elif name.endswith(".dist-info"):
                (site / name).mkdir()
            else:
                (system / name).touch()

    return put


GPU = ("onnxruntime_gpu-1.31.1.dist-info",)
DRIVER = ("libcuda.so.1", "nvcuda.dll")
SDK = ("libnvinfer.so.10", "nvinfer_10.dll")
AMD = ("onnxruntime_migraphx-1.31.1.dist-info", "libamdhip64.so.6", "amdhip64_6.dll")


@pytest.mark.parametrize(
    ("there", "alias"),
    [
        (GPU + DRIVER, "cuda"),
        ((*GPU, *DRIVER, "libnvinfer_plugin.so.10"), "cuda"),
        (GPU + DRIVER + SDK, "tensorrt"),
        (GPU, "cuda"),
        (GPU + SDK, "tensorrt"),
        ((*GPU, *DRIVER, "onnxruntime_ep_nv_tensorrt_rtx"), "nvtensorrtrtx"),
        ((*GPU, *DRIVER, "onnxruntime_qnn"), "cuda"),
        (("onnxruntime_qnn", *DRIVER), "qnn"),
        (("onnxruntime_ep_openvino", *GPU), "openvino"),
        ((*AMD, "onnxruntime_qnn"), "migraphx"),
    ],
)
def test_a_device_alone_goes_to_what_is_installed_and_has_its_libraries(packages, there, alias):
    packages(*there)
    target = resolve_target(None, "gpu")
    assert (target.ep.alias, target.device, target.is_open) == (alias, "gpu", False)


@pytest.mark.skipif(sys.platform == "win32", reason="ldconfig is of Linux")
@pytest.mark.usefixtures("packages")
def test_a_library_that_ldconfig_knows_is_there(tmp_path):
    (tmp_path / "ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\0libcuda.so.1\0/usr/lib/libcuda.so.1\0")
    assert provider.NVIDIA_DRIVER.is_there()
    assert not tensorrt.SDK.is_there()


@pytest.mark.usefixtures("packages")
def test_a_device_that_nothing_installed_drives_lists_what_could_be():
    target = resolve_target(None, "gpu")
    assert target.is_open
    with pytest.raises(UsageError, match="No execution provider that drives the gpu is installed here") as caught:
        require_installed(target)
    for alias in ("openvino", "migraphx", "tensorrt", "nvtensorrtrtx", "cuda", "qnn", "dml"):
        assert f"{alias}: {find_ep(alias).how_to_get.rstrip('.')}" in caught.value.advice


def test_a_provider_is_found_by_its_package_and_its_libraries_by_name_order(monkeypatch, tmp_path):
    package = tmp_path / "onnxruntime_qnn"
    runtime = tmp_path / "onnxruntime" / "capi"
    for folder in (package / "libs", runtime):
        folder.mkdir(parents=True)
    (tmp_path / "onnxruntime" / "__init__.py").touch()
    for name in ("__init__.py", "libQnnHtp.so", "QnnHtp.dll", "libs/libA.so.1.7", "LICENSE"):
        (package / name).write_bytes(b"")
    for name in ("libonnxruntime.so.1.31.1", "onnxruntime_providers_cuda.dll", "build_info.py"):
        (runtime / name).write_bytes(b"")
    (tmp_path / "onnxruntime_gpu-1.31.1.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "missing"), str(tmp_path)])

    assert installed(QNN)
    assert installed(find_ep("cuda"))
    assert not installed(find_ep("dml"))
    assert libraries_of(QNN, None).names() == ["QnnHtp.dll", "libQnnHtp.so", "libs/libA.so.1.7"]
    assert libraries_of(QNN, None).folders == (package, package / "libs")
    # A provider built into onnxruntime comes with that build's libraries.
    assert libraries_of(find_ep("cuda"), None).names() == ["libonnxruntime.so.1.31.1", "onnxruntime_providers_cuda.dll"]
    assert libraries_of(find_ep("dml"), None) == Libraries()


def test_asking_for_targets_imports_no_runtime():
    code = (
        "import sys\n"
        "from winml_dag.ep import availability, provider\n"
        "import winml_dag.stages.compile, winml_dag.stages.validate\n"
        "target = availability.resolve_target('qnn', None)\n"
        "provider.complete_options(target, {})\n"
        "availability.installed(target.ep)\n"
        "availability.libraries_of(target.ep, availability.environment_of(target.ep))\n"
        "heavy = {'onnxruntime', 'onnxruntime_qnn', 'onnx', 'numpy', 'importlib.metadata', 'tomllib', 'platformdirs'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path.cwd(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
