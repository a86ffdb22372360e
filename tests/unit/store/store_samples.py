"""Keys and helpers shared by the tests of the store."""

from __future__ import annotations

from pathlib import Path

KEY = "0123456789abcdef" * 4
OTHER_KEY = "fedcba9876543210" * 4


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below *folder*, by relative name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
