"""What distinguishes one machine from another for speed: part of the key of a measurement.

The host name is not part of it: identical machines share measurements, and a renamed machine keeps them. All values
come from the operating system, by calls that are fast and start no process.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from winml_dag.engine.memory import physical_memory_bytes
from winml_dag.frozen import frozen

_GIB = 1 << 30
# Windows device classes for GPUs and NPUs; each device is a numbered key.
_DEVICE_CLASSES = (
    r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}",
    r"SYSTEM\CurrentControlSet\Control\Class\{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}",
)


@frozen
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
