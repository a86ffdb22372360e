"""The execution providers that a recipe may name: packages, devices and what else sets one apart from the others.

Which of them can be used, :mod:`winml_dag.ep.availability` finds out. onnxruntime is never imported here, because a
plan needs these answers and must not wait for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from winml_dag.errors import UsageError

# What ldconfig has found in the system's folders, those of SDKs and drivers included.
_LOADER_CACHE = Path("/etc/ld.so.cache")


@dataclass(frozen=True)
class SystemLibrary:
    """One that no Python package brings: how its file's name begins on Linux, and on Windows."""

    linux: str
    windows: str

    def is_there(self) -> bool:
        if sys.platform == "win32":
            system = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32"
            return _is_in([*_folders("PATH"), system], f"{self.windows}*.dll")
        return _is_in(_folders("LD_LIBRARY_PATH"), f"{self.linux}*") or self._is_cached()

    def _is_cached(self) -> bool:
        try:
            return f"{self.linux}.".encode() in _LOADER_CACHE.read_bytes()
        except OSError:
            return False


def _folders(variable: str) -> list[Path]:
    return [Path(text) for text in os.environ.get(variable, "").split(os.pathsep) if text]


def _is_in(folders: list[Path], pattern: str) -> bool:
    return any(next(folder.glob(pattern), None) is not None for folder in folders if folder.is_dir())


NVIDIA_DRIVER = SystemLibrary("libcuda.so", "nvcuda")
TENSORRT_SDK = SystemLibrary("libnvinfer.so", "nvinfer")
ROCM = SystemLibrary("libamdhip64.so", "amdhip64")


AUTO = "auto"


@dataclass(frozen=True)
class Package:
    """One way in which an execution provider is installed.

    Attributes:
        distribution: what installers call it.
        plugin: the module whose ``get_library_path()`` names a library to register with onnxruntime.
        catalog: it asks the catalog of Windows ML where that library is. With neither, it is a build of onnxruntime
            that has the provider in it, and is installed in place of ``onnxruntime``.
    """

    distribution: str
    plugin: str = ""
    catalog: bool = False

    @property
    def is_runtime(self) -> bool:
        return not (self.plugin or self.catalog)


@dataclass(frozen=True)
class ExecutionProvider:
    """One execution provider of onnxruntime.

    Attributes:
        name: as onnxruntime spells it.
        alias: what users write.
        aliases: further spellings that are accepted.
        devices: what it can drive, the preferred one first.
        makes_ep_context: whether it can compile a model ahead of time into EPContext nodes.
        takes_onnx: whether ONNX models are shipped for it as they are, to be compiled, if at all, when they are loaded;
            not so where that takes minutes on the device.
        fixed_shapes: whether it takes models of fixed shapes only, whatever is done with them.
        for_this_machine: whether what it compiles, ahead or on load, is for the very device that it finds; QNN
            compiles for the chip that an option names.
        packages: each brings it; the first that is found counts. None when it is part of every onnxruntime.
        how_to_get: what to do when it is missing, as one sentence.
        ihv_type: the hardware vendor, as analysis results spell it.
        needs: libraries that have to be on the machine besides, such as a driver's.
    """

    name: str
    alias: str
    aliases: tuple[str, ...]
    devices: tuple[str, ...]
    makes_ep_context: bool
    takes_onnx: bool
    for_this_machine: bool
    packages: tuple[Package, ...]
    how_to_get: str
    ihv_type: str
    fixed_shapes: bool = False
    needs: tuple[SystemLibrary, ...] = ()


@dataclass(frozen=True)
class Target:
    """Where a model is to run. ``is_open``: no provider was named, and none that drives the device is installed."""

    ep: ExecutionProvider
    device: str
    is_open: bool = field(default=False, compare=False)


# The catalog has QNN, OpenVINO, VitisAI, NvTensorRTRTX and MIGraphX, for whoever has the hardware.
_WINDOWS_ML = Package("windowsml", plugin="windowsml", catalog=True)

CPU = ExecutionProvider(
    name="CPUExecutionProvider",
    alias="cpu",
    aliases=(),
    devices=("cpu",),
    makes_ep_context=False,
    takes_onnx=True,
    for_this_machine=False,
    packages=(),
    how_to_get="It is part of onnxruntime.",
    ihv_type="Microsoft",
)
QNN = ExecutionProvider(
    name="QNNExecutionProvider",
    alias="qnn",
    aliases=(),
    devices=("npu", "gpu"),
    makes_ep_context=True,
    takes_onnx=False,
    fixed_shapes=True,
    for_this_machine=False,
    packages=(Package("onnxruntime-qnn", plugin="onnxruntime_qnn"), _WINDOWS_ML),
    how_to_get="Install it with: pip install winml_dag[qnn]",
    ihv_type="QC",
)
OPENVINO = ExecutionProvider(
    name="OpenVINOExecutionProvider",
    alias="openvino",
    aliases=("ov",),
    devices=("npu", "gpu", "cpu"),
    makes_ep_context=True,
    takes_onnx=True,
    for_this_machine=True,
    packages=(
        Package("onnxruntime-openvino"),
        Package("onnxruntime-ep-openvino", plugin="onnxruntime_ep_openvino"),
        _WINDOWS_ML,
    ),
    how_to_get="Install it with: pip install winml_dag[openvino]",
    ihv_type="Intel",
)
VITISAI = ExecutionProvider(
    name="VitisAIExecutionProvider",
    alias="vitisai",
    aliases=("vitis",),
    devices=("npu",),
    makes_ep_context=True,
    takes_onnx=False,
    fixed_shapes=True,
    for_this_machine=True,
    packages=(Package("onnxruntime-vitisai"), _WINDOWS_ML),
    how_to_get="It comes with AMD's Ryzen AI software for Windows, and with Windows ML (pip install windowsml); run "
    "this target on such a machine.",
    ihv_type="AMD",
)
CUDA = ExecutionProvider(
    name="CUDAExecutionProvider",
    alias="cuda",
    aliases=(),
    devices=("gpu",),
    makes_ep_context=False,
    takes_onnx=True,
    for_this_machine=True,
    packages=(Package("onnxruntime-gpu"),),
    how_to_get="On a machine with an NVIDIA GPU, install onnxruntime-gpu in place of onnxruntime, or in an environment "
    "of its own.",
    ihv_type="NVIDIA",
    needs=(NVIDIA_DRIVER,),
)
DML = ExecutionProvider(
    name="DmlExecutionProvider",
    alias="dml",
    aliases=("directml",),
    devices=("gpu",),
    makes_ep_context=False,
    takes_onnx=True,
    for_this_machine=True,
    packages=(Package("onnxruntime-windowsml"), Package("onnxruntime-directml")),
    how_to_get="DirectML needs Windows; there, install onnxruntime-windowsml in place of onnxruntime.",
    ihv_type="Microsoft",
)
NV_TENSORRT_RTX = ExecutionProvider(
    name="NvTensorRTRTXExecutionProvider",
    alias="nvtensorrtrtx",
    aliases=("nv_tensorrt_rtx",),
    devices=("gpu",),
    makes_ep_context=True,
    takes_onnx=True,
    for_this_machine=True,
    packages=(
        Package("onnxruntime-ep-nv-tensorrt-rtx-cu13", plugin="onnxruntime_ep_nv_tensorrt_rtx"),
        Package("onnxruntime-ep-nv-tensorrt-rtx-cu12", plugin="onnxruntime_ep_nv_tensorrt_rtx"),
        Package("onnxruntime-trt-rtx"),
        _WINDOWS_ML,
    ),
    how_to_get="On a machine with an NVIDIA RTX GPU, install it with: pip install onnxruntime-ep-nv-tensorrt-rtx",
    ihv_type="NVIDIA",
    needs=(NVIDIA_DRIVER,),
)
MIGRAPHX = ExecutionProvider(
    name="MIGraphXExecutionProvider",
    alias="migraphx",
    aliases=(),
    devices=("gpu",),
    makes_ep_context=False,
    takes_onnx=True,
    for_this_machine=True,
    packages=(Package("onnxruntime-migraphx"), _WINDOWS_ML),
    how_to_get="On a machine with an AMD GPU, install onnxruntime-migraphx in place of onnxruntime, or in an "
    "environment of its own.",
    ihv_type="AMD",
    needs=(ROCM,),
)
TENSORRT = ExecutionProvider(
    name="TensorrtExecutionProvider",
    alias="tensorrt",
    aliases=("trt",),
    devices=("gpu",),
    makes_ep_context=False,
    takes_onnx=True,
    for_this_machine=True,
    packages=(Package("onnxruntime-gpu"),),
    how_to_get="On a machine with an NVIDIA GPU and TensorRT, install onnxruntime-gpu in place of onnxruntime, or in "
    "an environment of its own.",
    ihv_type="NVIDIA",
    needs=(NVIDIA_DRIVER, TENSORRT_SDK),
)

EXECUTION_PROVIDERS = (QNN, OPENVINO, VITISAI, CPU, CUDA, DML, NV_TENSORRT_RTX, MIGRAPHX, TENSORRT)

# Distributions that are installed in place of ``onnxruntime``: then their version is that of the one runtime there is.
RUNTIME_BUILDS = tuple(
    sorted({package.distribution for ep in EXECUTION_PROVIDERS for package in ep.packages if package.is_runtime})
)

# Who is asked first when a recipe names a device only. onnxruntime-gpu brings TensorRT and CUDA: the faster one counts
# where the SDK that it needs is there.
DEVICES = {
    "npu": (QNN, OPENVINO, VITISAI),
    "gpu": (OPENVINO, MIGRAPHX, TENSORRT, NV_TENSORRT_RTX, CUDA, QNN, DML),
    "cpu": (CPU,),
}


def nearest(text: str, known: Iterable[str]) -> str:
    """Advice with the spelling closest to *text*, or with all of *known* when none is close."""
    import difflib  # costs as much as all else here, and is needed for errors only

    names = sorted(set(known))
    close = difflib.get_close_matches(text, names, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(names)}."


@cache
def _by_spelling() -> dict[str, ExecutionProvider]:
    return {spelling.lower(): ep for ep in EXECUTION_PROVIDERS for spelling in (ep.name, ep.alias, *ep.aliases)}


def find_ep(text: str) -> ExecutionProvider:
    """The execution provider of that name or alias, in upper or lower case.

    Raises:
        UsageError: when there is none, with the nearest spelling.
    """
    if found := _by_spelling().get(text.lower()):
        return found
    spellings = (spelling for ep in EXECUTION_PROVIDERS for spelling in (ep.name, ep.alias))
    raise UsageError(f"There is no execution provider {text!r}.", advice=nearest(text, spellings))


def is_arm() -> bool:
    """Whether this is a machine of the kind that has Qualcomm's NPU; elsewhere QNN emulates it."""
    import platform  # slow to import, and of use here alone

    return platform.machine().lower() in ("arm64", "aarch64")


def is_emulated(target: Target) -> bool:
    """Whether it is QNN's NPU on a processor that no machine with that NPU has: its results count, its times do not."""
    return target.ep == QNN and target.device == "npu" and not is_arm()
