"""This machine: what distinguishes it from others for speed, and the devices that execution providers find on it.

The former is part of the key of a measurement. The host name is not: identical machines share measurements, and a
renamed machine keeps them. All values come from the operating system, by calls that are fast and start no process. To
find devices, each provider is queried in its own process, so a crashing driver only affects its own result.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.engine.resources import physical_memory_bytes
from winml_dag.engine.stage import Node
from winml_dag.ep.availability import environment_of, package_of
from winml_dag.ep.environments import Environment
from winml_dag.ep.registry import CPU, ExecutionProvider, execution_providers, runtime_builds
from winml_dag.errors import UsageError
from winml_dag.installed import installed_distributions, normalised
from winml_dag.stages.devices import DEVICES

if TYPE_CHECKING:
    from winml_dag.engine.execute import LocalExecutor

_GIB = 1 << 30
# Windows device classes for GPUs and NPUs; each device is a numbered key.
_DEVICE_CLASSES = (
    r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}",
    r"SYSTEM\CurrentControlSet\Control\Class\{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}",
)
# Processes at once: each loads hundreds of megabytes of libraries.
_AT_ONCE = 4
_LONGEST_WORDS = 200


@dataclass(frozen=True)
class Host:
    """A machine.

    Attributes:
        system: operating system and architecture: ``linux x86_64``.
        processor: the model name that the processor reports.
        logical_cores: the number of cores; ``usable_cores``: how many of them this process may use.
        memory_gib: rounded, since the system reserves a varying amount.
        accelerators: GPUs and NPUs with their drivers, as the system names them.
    """

    system: str
    processor: str
    logical_cores: int
    usable_cores: int
    memory_gib: int
    accelerators: tuple[str, ...] = ()

    def identity(self, *, device: str) -> dict[str, str]:
        """Return the part of a measurement's key for *device*; accelerators are included unless it is the CPU."""
        named = {f"{device} device {at}": name for at, name in enumerate(self.accelerators) if device != "cpu"}
        return {
            "system": self.system,
            "processor": self.processor,
            "logical cores": str(self.logical_cores),
            "usable cores": str(self.usable_cores),
            "memory": f"{self.memory_gib} GiB",
            **named,
        }


def this_host() -> Host:
    """Return the current machine; unavailable values are ``unknown`` or 0."""
    return Host(
        system=f"{sys.platform} {platform.machine().lower()}",
        processor=_processor() or "unknown",
        logical_cores=os.cpu_count() or 0,
        usable_cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 0,
        memory_gib=round(physical_memory_bytes() / _GIB),
        accelerators=tuple(sorted(_accelerators())),
    )


def _processor() -> str:
    name = ""
    with suppress(OSError, ValueError):
        if sys.platform == "linux":
            name = _linux_processor(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
        elif sys.platform == "win32":
            winreg: Any = importlib.import_module("winreg")
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0") as key:
                name = str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
        elif sys.platform == "darwin":
            name = _sysctl("machdep.cpu.brand_string")
    return name


def _linux_processor(cpuinfo: str) -> str:
    """Return the model name; ARM has none, only numbers for implementer and part."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        field, _, value = line.partition(":")
        fields.setdefault(field.strip(), value.strip())
    if name := fields.get("model name"):
        return " ".join(name.split())
    numbers = [
        fields[field] for field in ("CPU implementer", "CPU part", "CPU variant", "CPU revision") if field in fields
    ]
    return " ".join(["arm", *numbers]) if numbers else ""


def _sysctl(name: str) -> str:
    import ctypes

    libc = ctypes.CDLL(None)
    buffer, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    if libc.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, 0):
        return ""
    return buffer.value.decode("utf-8", "replace")


def _accelerators() -> Iterator[str]:
    yield from _linux_accelerators(Path("/sys/class"))  # other systems do not have this folder
    for path in _DEVICE_CLASSES if sys.platform == "win32" else ():
        with suppress(OSError):
            yield from _windows_devices(path)


def _linux_accelerators(classes: Path) -> Iterator[str]:
    """Yield vendor and device as PCI numbers, and the driver: ``0x1002:0x744c amdgpu``."""
    found = set()
    for entry in (*classes.glob("drm/card*/device"), *classes.glob("accel/accel*/device")):
        with suppress(OSError):
            numbers = ":".join((entry / name).read_text(encoding="ascii").strip() for name in ("vendor", "device"))
            driver = (entry / "driver").resolve().name if (entry / "driver").exists() else ""
            # A card has one entry for itself and one for each of its outputs.
            found.add((entry.resolve(), f"{numbers} {driver}".rstrip()))
    yield from (name for _, name in sorted(found))


def _windows_devices(path: str) -> Iterator[str]:
    winreg: Any = importlib.import_module("winreg")
    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as devices:
        for at in range(winreg.QueryInfoKey(devices)[0]):
            with suppress(OSError), winreg.OpenKey(devices, winreg.EnumKey(devices, at)) as device:
                name = winreg.QueryValueEx(device, "DriverDesc")[0]
                yield f"{name} {winreg.QueryValueEx(device, 'DriverVersion')[0]}"


@dataclass(frozen=True)
class Device:
    """A device as onnxruntime reports it. ``type`` is cpu, gpu or npu; ids are those of the bus, 0 without one."""

    type: str
    vendor: str = ""
    vendor_id: int = 0
    device_id: int = 0
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ProviderFound:
    """What was found for one execution provider.

    Attributes:
        installed: whether a package with it is installed.
        why_not: why it cannot be used, as a sentence; empty if it can.
        how: how to fix that; empty if it can be used.
        package: the distribution that provides it, and its version.
        runtime: the distribution of onnxruntime that loads it, and its version.
        environment: the other Python environment that has it; None for this one.
        sdk_version: that of the hardware vendor's SDK; empty if unknown.
        devices: the devices it finds; for a provider that is built into onnxruntime, those that a session could be made
            for.
        refused: devices that it should drive but does not, with the reason.
    """

    ep: ExecutionProvider
    installed: bool
    why_not: str = ""
    how: str = ""
    package: tuple[str, str] | None = None
    runtime: tuple[str, str] | None = None
    environment: Path | None = None
    sdk_version: str = ""
    devices: tuple[Device, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_available(self) -> bool:
        return not self.why_not

    @property
    def emulates_npu(self) -> bool:
        """Whether it emulates the NPU: emulators report themselves as a CPU."""
        types = {device.type for device in self.devices}
        return "npu" in self.ep.emulates and bool(types) and "npu" not in types


@dataclass(frozen=True)
class DetectedDevices:
    """All providers, and what is wrong with the configuration of their environments; empty if nothing is."""

    providers: tuple[ProviderFound, ...]
    problem: str = ""

    def drivers(self) -> dict[Device, list[ProviderFound]]:
        """Return every device that a provider finds, with all providers that drive it.

        A device with only a type counts as the only known device of that type, if there is exactly one.
        """
        known = {device for provider in self.providers for device in provider.devices if device.vendor}
        found: dict[Device, list[ProviderFound]] = {}
        for provider in self.providers:
            for device in provider.devices:
                alike = [other for other in known if other.type == device.type]
                which = alike[0] if len(alike) == 1 and not device.vendor else device
                found.setdefault(which, []).append(provider)
        return found


def detect_devices(providers: Iterable[ExecutionProvider] | None = None) -> DetectedDevices:
    """Look for *providers*, by default all, and query those that are installed."""
    # Imported here, as below: to know the machine, nothing is started.
    from concurrent.futures import ThreadPoolExecutor

    from winml_dag.engine.execute import LocalExecutor

    problems: dict[str, None] = {}
    executor = LocalExecutor()

    def look(ep: ExecutionProvider) -> ProviderFound:
        try:
            environment = None if ep == CPU else environment_of(ep)
        except UsageError as error:
            problems[str(error)] = None
            environment = None
        return _found(ep, environment, executor)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            found = tuple(pool.map(look, execution_providers() if providers is None else providers))
        except BaseException:
            executor.stop()
            raise
    return DetectedDevices(found, " ".join(problems))


def _found(ep: ExecutionProvider, environment: Environment | None, executor: LocalExecutor) -> ProviderFound:
    present = installed_distributions(None if environment is None else environment.site_packages)
    folder = None if environment is None else environment.folder
    runtime = _first_present(present, (*runtime_builds(), "onnxruntime"))
    package = package_of(ep, environment)
    if package is None and ep.packages:
        where = "here" if folder is None else f"in {folder}"
        return ProviderFound(ep, installed=False, why_not=f"It is not installed {where}.", how=ep.how_to_get,
                             runtime=runtime, environment=folder)  # fmt: skip
    brings = runtime if package is None else _first_present(present, (package.distribution,))
    facts, why_not, how = _ask(ep, environment, executor)
    devices = tuple(
        Device(each["type"], each["vendor"], each["vendor_id"], each["device_id"], tuple(each["metadata"].items()))
        for each in facts.get("devices", ())
    )
    tried: Mapping[str, str] = facts.get("tried", {})
    devices += tuple(Device(name) for name, why in tried.items() if not why)
    if not why_not and not devices:
        why_not = next(iter(tried.values()), "It is installed and finds no device on this machine.")
        how = f"It drives {', '.join(ep.devices)}: run it on a machine that has one."
    return ProviderFound(
        ep,
        installed=True,
        why_not=why_not,
        how=how,
        package=brings,
        runtime=runtime,
        environment=folder,
        sdk_version=facts.get("sdk_version", ""),
        devices=devices,
        refused={name: why for name, why in tried.items() if why},
    )


def _ask(
    ep: ExecutionProvider, environment: Environment | None, executor: LocalExecutor
) -> tuple[Mapping[str, Any], str, str]:
    """Return the facts that a provider's process finds, its error, which is empty if it succeeded, and advice."""
    import tempfile

    from winml_dag.engine.exchange import LOG_FILE, RESULT_FILE, log_tail
    from winml_dag.engine.execute import Job

    node = Node(
        id=DEVICES.name,
        stage=DEVICES,
        config={"execution_provider": ep.name},
        inputs={},
        interpreter=None if environment is None else environment.python,
    )
    # Windows may still hold files open after the process ends; the system removes them later.
    with tempfile.TemporaryDirectory(prefix="winml-dag-sys-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        outcome = executor.run(Job(node, folder, DEVICES.timeout_seconds))
        if not outcome.error or (folder / RESULT_FILE).exists():
            return outcome.metrics, outcome.error, outcome.advice
        # It crashed or hung. Its log is removed with the folder.
        last = "".join(log_tail(folder / LOG_FILE, 1)).strip()
        return {}, outcome.error, f"Its last words: {last[:_LONGEST_WORDS]}" if last else ""


def _first_present(present: Mapping[str, str], names: Iterable[str]) -> tuple[str, str] | None:
    return next(((name, present[normalised(name)]) for name in names if normalised(name) in present), None)
