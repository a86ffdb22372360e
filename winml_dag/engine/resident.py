"""How much memory this process has resident, and had at most; None where the system does not tell.

Not ``ru_maxrss``: on Linux a new process inherits the peak of the one that started it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Resident:
    """Bytes, files that are mapped into memory included."""

    now: int | None
    peak: int | None


def resident() -> Resident:
    if sys.platform == "linux":
        return _linux()
    elif sys.platform == "win32":  # noqa: RET505 - the type checker takes what follows a return for unreachable
        return _windows()
    else:
        return _other()


def _linux() -> Resident:
    found = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            found[name] = int(value.split()[0]) * 1024
    return Resident(found.get("VmRSS"), found.get("VmHWM"))


def _windows() -> Resident:
    import ctypes
    from ctypes import wintypes

    class Counters(ctypes.Structure):
        _fields_ = (
            ("cb", wintypes.DWORD),
            ("PageFaultCount", wintypes.DWORD),
            ("PeakWorkingSetSize", ctypes.c_size_t),
            ("WorkingSetSize", ctypes.c_size_t),
            ("QuotaPeakPagedPoolUsage", ctypes.c_size_t),
            ("QuotaPagedPoolUsage", ctypes.c_size_t),
            ("QuotaPeakNonPagedPoolUsage", ctypes.c_size_t),
            ("QuotaNonPagedPoolUsage", ctypes.c_size_t),
            ("PagefileUsage", ctypes.c_size_t),
            ("PeakPagefileUsage", ctypes.c_size_t),
        )

    counters = Counters(cb=ctypes.sizeof(Counters))
    library: Any = ctypes
    kernel = library.WinDLL("kernel32")
    kernel.GetCurrentProcess.restype = wintypes.HANDLE
    kernel.K32GetProcessMemoryInfo.argtypes = (wintypes.HANDLE, ctypes.c_void_p, wintypes.DWORD)
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.cb):
        return Resident(None, None)
    return Resident(counters.WorkingSetSize, counters.PeakWorkingSetSize)


def _other() -> Resident:
    peak = None
    if sys.platform != "win32":
        import resource

        # Bytes on macOS, KiB elsewhere.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Resident(None, peak)
