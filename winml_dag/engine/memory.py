"""Memory of this machine, the share that runs may take together, and the memory use of this process.

The peak does not come from ``ru_maxrss``: on Linux a new process inherits that of its parent.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from winml_dag.frozen import frozen

_GIB = 1 << 30
# Reserved for the system, for the user's other programs, and for the file cache, without which everything is slow.
_KEPT_SHARE = 10
_KEPT_LEAST, _KEPT_MOST = _GIB, 4 * _GIB


def memory_for_runs() -> int:
    """The bytes that all runs together may take: available memory less a reserve.

    The reserve is a tenth, at least 1 and at most 4 GiB, but no more than half.
    """
    there = min([physical_memory_bytes(), *container_limits()])
    kept = min(max(there // _KEPT_SHARE, _KEPT_LEAST), _KEPT_MOST, there // 2)
    return there - kept


def physical_memory_bytes() -> int:
    """The installed memory, whether or not this process may use all of it."""
    if sys.platform == "win32":
        found = _windows_memory_bytes()
    else:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return found


def container_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """The memory limits of the control groups of this process, on Linux; a container is such a group.

    A group is also limited by its parent groups.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield from _limits(root / "memory", path, "memory.limit_in_bytes")
        elif not controllers:
            yield from _limits(root, path, "memory.max")


def _limits(root: Path, path: str, name: str) -> Iterator[int]:
    group = root / path.strip("/")
    # In a container the path may be the one outside of it; its own group is then the root.
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # "max" is not a number
            yield int((folder / name).read_text(encoding="ascii"))
        if folder == root:
            return


def _windows_memory_bytes() -> int:
    import ctypes

    # MEMORYSTATUSEX: its size, the load in percent, the total bytes, and six more numbers.
    layout = struct.Struct("=IIQ6Q")
    status = ctypes.create_string_buffer(layout.pack(layout.size, *[0] * 8), layout.size)
    library: Any = ctypes
    return int(layout.unpack(status)[2]) if library.WinDLL("kernel32").GlobalMemoryStatusEx(status) else 0


@frozen
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
