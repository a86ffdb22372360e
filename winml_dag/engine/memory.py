"""The memory use of this process.

The peak does not come from ``ru_maxrss``: on Linux a new process inherits that of its parent.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Resident:
    """Current and peak resident memory of this process in bytes, mapped files included.

    A value is None if the system does not report it.
    """

    now: int | None
    peak: int | None


def resident() -> Resident:
    if sys.platform == "linux":
        return _linux()
    elif sys.platform == "win32":  # noqa: RET505 - the type checker considers code after a return unreachable
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

    # PROCESS_MEMORY_COUNTERS: its size, page faults, the peak and the current working set, and six more sizes.
    layout = struct.Struct("@IINN6N")
    counters = ctypes.create_string_buffer(layout.pack(layout.size, *[0] * 9), layout.size)
    library: Any = ctypes
    kernel = library.WinDLL("kernel32")
    kernel.GetCurrentProcess.restype = wintypes.HANDLE
    kernel.K32GetProcessMemoryInfo.argtypes = (wintypes.HANDLE, ctypes.c_void_p, wintypes.DWORD)
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), counters, layout.size):
        return Resident(None, None)
    _, _, peak, now, *_ = layout.unpack(counters)
    return Resident(now, peak)


def _other() -> Resident:
    peak = None
    if sys.platform != "win32":
        import resource

        # Bytes on macOS, KiB elsewhere.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Resident(None, peak)
