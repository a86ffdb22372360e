"""Which libraries of drivers and SDKs the system's loader would find, by files alone.

No library is loaded: a plan must not wait for one, nor crash with it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

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
