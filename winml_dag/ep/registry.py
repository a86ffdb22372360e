"""The execution providers that a recipe may name, the devices each drives, and whether this environment has them.

Tables and file lookups only: onnxruntime is never imported here, because a plan needs these answers and must not wait
for it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from winml_dag.ep.environments import Environment, look, named_environments
from winml_dag.errors import UsageError

AUTO = "auto"


@dataclass(frozen=True)
class ExecutionProvider:
    """One execution provider of onnxruntime.

    Attributes:
        name: as onnxruntime spells it.
        alias: what users write.
        aliases: further spellings that are accepted.
        devices: what it can drive, the preferred one first.
        makes_ep_context: whether it can compile a model ahead of time into EPContext nodes.
        distribution: the package that brings it; None when it is part of onnxruntime.
        plugin_module: the module whose ``get_library_path()`` names a library to register; empty for a provider that
            is built into its own build of onnxruntime.
        how_to_get: what to do when it is missing, as one sentence.
        ihv_type: the hardware vendor, as analysis results spell it.
    """

    name: str
    alias: str
    aliases: tuple[str, ...]
    devices: tuple[str, ...]
    makes_ep_context: bool
    distribution: str | None
    plugin_module: str
    how_to_get: str
    ihv_type: str


@dataclass(frozen=True)
class Target:
    """Where a model is to run."""

    ep: ExecutionProvider
    device: str


CPU = ExecutionProvider(
    name="CPUExecutionProvider",
    alias="cpu",
    aliases=(),
    devices=("cpu",),
    makes_ep_context=False,
    distribution=None,
    plugin_module="",
    how_to_get="It is part of onnxruntime.",
    ihv_type="Microsoft",
)
QNN = ExecutionProvider(
    name="QNNExecutionProvider",
    alias="qnn",
    aliases=(),
    devices=("npu", "gpu"),
    makes_ep_context=True,
    distribution="onnxruntime-qnn",
    plugin_module="onnxruntime_qnn",
    how_to_get="Install it with: pip install winml_dag[qnn]",
    ihv_type="QC",
)
OPENVINO = ExecutionProvider(
    name="OpenVINOExecutionProvider",
    alias="openvino",
    aliases=("ov",),
    devices=("npu", "gpu", "cpu"),
    makes_ep_context=True,
    distribution="onnxruntime-ep-openvino",
    plugin_module="onnxruntime_ep_openvino",
    how_to_get="On a machine with Intel hardware, install it with: pip install onnxruntime-ep-openvino",
    ihv_type="Intel",
)
VITISAI = ExecutionProvider(
    name="VitisAIExecutionProvider",
    alias="vitisai",
    aliases=("vitis",),
    devices=("npu",),
    makes_ep_context=True,
    distribution="onnxruntime-vitisai",
    plugin_module="",
    how_to_get="It comes with AMD's Ryzen AI software for Windows; run this target on such a machine.",
    ihv_type="AMD",
)
CUDA = ExecutionProvider(
    name="CUDAExecutionProvider",
    alias="cuda",
    aliases=(),
    devices=("gpu",),
    makes_ep_context=False,
    distribution="onnxruntime-gpu",
    plugin_module="",
    how_to_get="On a machine with an NVIDIA GPU, install onnxruntime-gpu in place of onnxruntime.",
    ihv_type="NVIDIA",
)
DML = ExecutionProvider(
    name="DmlExecutionProvider",
    alias="dml",
    aliases=("directml",),
    devices=("gpu",),
    makes_ep_context=False,
    distribution="onnxruntime-directml",
    plugin_module="",
    how_to_get="DirectML needs Windows; there, install onnxruntime-directml in place of onnxruntime.",
    ihv_type="Microsoft",
)
NV_TENSORRT_RTX = ExecutionProvider(
    name="NvTensorRTRTXExecutionProvider",
    alias="nvtensorrtrtx",
    aliases=("nv_tensorrt_rtx",),
    devices=("gpu",),
    makes_ep_context=True,
    distribution="onnxruntime-ep-nv-tensorrt-rtx",
    plugin_module="onnxruntime_ep_nv_tensorrt_rtx",
    how_to_get="On a machine with an NVIDIA RTX GPU, install it with: pip install onnxruntime-ep-nv-tensorrt-rtx",
    ihv_type="NVIDIA",
)
MIGRAPHX = ExecutionProvider(
    name="MIGraphXExecutionProvider",
    alias="migraphx",
    aliases=(),
    devices=("gpu",),
    makes_ep_context=False,
    distribution="onnxruntime-migraphx",
    plugin_module="",
    how_to_get="On a machine with an AMD GPU, install onnxruntime-migraphx in place of onnxruntime.",
    ihv_type="AMD",
)
TENSORRT = ExecutionProvider(
    name="TensorrtExecutionProvider",
    alias="tensorrt",
    aliases=("trt",),
    devices=("gpu",),
    makes_ep_context=False,
    distribution="onnxruntime-gpu",
    plugin_module="",
    how_to_get="On a machine with an NVIDIA GPU and TensorRT, install onnxruntime-gpu in place of onnxruntime.",
    ihv_type="NVIDIA",
)

EXECUTION_PROVIDERS = (QNN, OPENVINO, VITISAI, CPU, CUDA, DML, NV_TENSORRT_RTX, MIGRAPHX, TENSORRT)

# Distributions that are installed in place of ``onnxruntime``: then their version is that of the one runtime there is.
RUNTIME_BUILDS = tuple(
    sorted({ep.distribution for ep in EXECUTION_PROVIDERS if ep.distribution and not ep.plugin_module})
)

# Who is asked first when a recipe names a device only.
_BY_DEVICE = {
    "npu": (QNN, OPENVINO, VITISAI),
    "gpu": (OPENVINO, MIGRAPHX, TENSORRT, NV_TENSORRT_RTX, QNN, DML),
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
    without a provider goes to the first provider of the customary order that is installed; if none is, to the first,
    whose absence :func:`require_installed` then explains.

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
    return Target(next((candidate for candidate in candidates if installed(candidate)), candidates[0]), device)


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
    named = [(find_named_ep(each.ep, each.where), each) for each in named_environments()]
    chosen = next((each for known, each in named if known == ep), None)
    return None if chosen is None else look(chosen)


def find_named_ep(text: str, where: str) -> ExecutionProvider:
    """The provider that a configuration means by *text*; *where* it stands, for complaints.

    Raises:
        UsageError: when there is none, or when it is the CPU, which every environment has.
    """
    try:
        ep = find_ep(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", advice=error.advice) from error
    if ep == CPU:
        raise UsageError(f"{where}: {CPU.name} is part of every onnxruntime and runs here.", advice="Leave it out.")
    return ep


def installed(ep: ExecutionProvider) -> bool:
    """Whether this environment has *ep*, going by files alone; whether its device is there, only a session tells."""
    if ep.plugin_module:
        return package_folder(ep.plugin_module) is not None
    return ep.distribution is None or _has_distribution(ep.distribution)


def package_folder(module: str) -> Path | None:
    """The folder of the top-level package *module*, without importing it (its import may load native libraries)."""
    for entry in sys.path:
        folder = Path(entry or ".") / module
        if (folder / "__init__.py").is_file():
            return folder
    return None


def _has_distribution(name: str) -> bool:
    # importlib.metadata would answer this too, but takes longer to import than a whole plan may take.
    stem = re.sub(r"[-_.]+", "_", name)
    return any(
        next(Path(entry).glob(f"{stem}-*.dist-info"), None) is not None for entry in sys.path if Path(entry).is_dir()
    )


def require_installed(ep: ExecutionProvider, *, otherwise: str = "") -> None:
    """Refuse a target that this environment cannot serve.

    Raises:
        UsageError: with one sentence on how to get *ep*, or where else to run, and with what to do *otherwise*.
    """
    if not installed(ep):
        raise UsageError(f"{ep.name} is not installed here.", advice=f"{ep.how_to_get} {otherwise}".rstrip())
