"""The execution providers that a recipe may name, the devices each drives, and which environment has them.

Tables and file lookups only: onnxruntime is never imported here, because a plan needs these answers and must not wait
for it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from winml_dag.ep.elsewhere import is_elsewhere
from winml_dag.ep.environments import Environment, Named, look, named_environments
from winml_dag.ep.systemlibraries import NVIDIA_DRIVER, ROCM, TENSORRT_SDK, SystemLibrary
from winml_dag.ep.windowsml import is_windows, library_in_catalog
from winml_dag.errors import UsageError

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
_BY_DEVICE = {
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


def resolve_target(ep: str | None, device: str | None) -> Target:
    """The target that a recipe or command line means; neither given means the CPU.

    *device* is a device, ``auto`` or None, or an execution provider in place of one (``--device qnn``). A device
    without a provider goes to the first provider of the customary order that is installed and has the libraries that it
    needs, else to one that is installed and lacks fewest; of those in the catalog of Windows ML, only what it has for
    this machine counts. If there is none, it is the first, and :func:`require_installed` tells of all.

    Raises:
        UsageError: for an unknown name, or a device that the provider cannot drive.
    """
    ep = None if ep is None or ep.lower() == AUTO else ep
    device = None if device is None or device.lower() == AUTO else device.lower()
    if device is not None and device not in _BY_DEVICE:
        named = _ep_named_as_device(device)
        if ep is not None and find_ep(ep) != named:
            raise UsageError(f"Device {device!r} and execution provider {ep!r} contradict each other.")
        ep, device = named.name, None
    if ep is not None:
        return _target(find_ep(ep), device)
    if device is None:
        return Target(CPU, "cpu")
    candidates = _BY_DEVICE[device]
    found = min(filter(_drives, candidates), key=lambda ep: _lacking(ep, device), default=None)
    return Target(candidates[0], device, is_open=True) if found is None else Target(found, device)


def drivers_of(device: str) -> tuple[ExecutionProvider, ...]:
    """All that drive *device*, the one that is asked first at the front."""
    return _BY_DEVICE[device]


def _lacking(ep: ExecutionProvider, device: str) -> int:
    """How much of what *ep* needs for *device* is missing; another machine is not ours to judge."""
    if is_elsewhere(ep.alias):
        return 0
    if ep == QNN and device == "gpu":
        import platform  # of use here alone, and slow to import

        return int(platform.machine().lower() not in ("arm64", "aarch64"))  # the GPU of a Snapdragon
    return sum(not library.is_there() for library in ep.needs)


def _drives(ep: ExecutionProvider) -> bool:
    if not ep.packages or is_elsewhere(ep.alias):
        return True
    environment = environment_of(ep)
    package = package_of(ep, environment)
    if package is None or not package.catalog:
        return package is not None
    # One package brings the whole catalog. That of another environment cannot be asked.
    return environment is not None or library_in_catalog(ep.name) is not None


def _ep_named_as_device(device: str) -> ExecutionProvider:
    if found := _by_spelling().get(device):
        return found
    advice = nearest(device, [AUTO, *_BY_DEVICE, *(ep.alias for ep in EXECUTION_PROVIDERS)])
    raise UsageError(f"There is no device {device!r}.", advice=advice)


def _target(ep: ExecutionProvider, device: str | None) -> Target:
    if device is None:
        return Target(ep, ep.devices[0])
    if device not in ep.devices:
        raise UsageError(
            f"{ep.name} cannot drive device {device!r}.", advice=f"It drives: {', '.join(ep.devices)} (or {AUTO})."
        )
    return Target(ep, device)


def environment_of(ep: ExecutionProvider) -> Environment | None:
    """The Python environment that the user names for *ep*; None where it is this one.

    Raises:
        UsageError: for a configuration that names an unknown provider, or for *ep* what is no environment.
    """
    named = {each: _named_ep(each) for each in named_environments()}
    chosen = [each for each, known in named.items() if known == ep]
    if len(chosen) > 1 and chosen[0].source == chosen[1].source:
        raise UsageError(f"{chosen[0].where} and {chosen[1].where} are both for {ep.name}.", advice="Keep one of them.")
    return look(chosen[0]) if chosen else None


def _named_ep(named: Named) -> ExecutionProvider:
    try:
        ep = find_ep(named.ep)
    except UsageError as error:
        raise UsageError(f"{named.where}: {error.message}", advice=error.advice) from error
    if ep == CPU:
        raise UsageError(
            f"{named.where}: {CPU.name} is part of every onnxruntime and runs here.", advice="Leave it out."
        )
    return ep


def search_path(environment: Environment | None) -> tuple[Path, ...]:
    """Where packages are looked for in *environment*, or here."""
    if environment is None:
        return tuple(Path(entry or ".") for entry in sys.path)
    return environment.site_packages


def package_of(ep: ExecutionProvider, environment: Environment | None) -> Package | None:
    """The package by which *environment*, or this one, has *ep*; None when it does not, or needs none."""
    path = search_path(environment)
    return next((package for package in ep.packages if _is_there(package, path)), None)


def installed(ep: ExecutionProvider) -> bool:
    """Whether its environment has *ep*, going by files alone; whether its device is there, only a session tells.

    Raises:
        UsageError: as :func:`environment_of` does.
    """
    return not ep.packages or package_of(ep, environment_of(ep)) is not None


def environments_behind(target: Target) -> Iterator[Environment]:
    """Those that may have decided that it is *target*, or whether it is installed: what comes or goes there counts.

    Where a device alone is named, all that drive it are asked.
    """
    for ep in dict.fromkeys((target.ep, *_BY_DEVICE[target.device])):
        # One that cannot be used has decided nothing: where its provider is asked for, that is an error.
        with suppress(UsageError):
            if ep != CPU and (environment := environment_of(ep)) is not None:
                yield environment


def _is_there(package: Package, path: Iterable[Path]) -> bool:
    if package.catalog and not is_windows():
        return False
    if package.plugin:
        return package_folder(package.plugin, path) is not None
    # importlib.metadata would answer this too, but takes longer to import than a whole plan may take.
    stem = re.sub(r"[-_.]+", "_", package.distribution)
    return any(next(folder.glob(f"{stem}-*.dist-info"), None) is not None for folder in path if folder.is_dir())


def package_folder(module: str, path: Iterable[Path]) -> Path | None:
    """The folder of the top-level package *module*, without importing it (its import may load native libraries)."""
    return next((folder / module for folder in path if (folder / module / "__init__.py").is_file()), None)
