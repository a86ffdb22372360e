"""Sizes, durations and counts in the form that people use, ``10GiB`` and ``30d``: strict parsing, and formatting."""

from __future__ import annotations

import re

from winml_dag.errors import UsageError

_SIZES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_DURATIONS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_TEXT = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,6})?) ?(?P<unit>[A-Za-z]+)")


def parse_size(text: str, what: str) -> int:
    """The size in bytes of *text*, such as ``10GiB``, ``1.5 GB`` or ``0``. *what* names an option or a variable.

    Raises:
        UsageError: for anything else; the unit of a number is never guessed.
    """
    if text.strip() == "0":
        return 0
    return int(_parse(text, what, _SIZES, "a size", "10GiB", "B, KB, MB, GB, TB, KiB, MiB, GiB or TiB"))


def parse_duration(text: str, what: str) -> float:
    """The duration in seconds of *text*, such as ``30d`` or ``12h``. Raises as :func:`parse_size` does."""
    units = "s (seconds), m (minutes), h (hours), d (days) or w (weeks)"
    return _parse(text, what, _DURATIONS, "a duration", "30d", units)


def _parse(text: str, what: str, units: dict[str, int], kind: str, example: str, known: str) -> float:
    found = _TEXT.fullmatch(text.strip())
    if found is None or found["unit"] not in units:
        raise UsageError(
            f"{what}: {text!r} is not {kind}.", advice=f"Write a number and {known} after it, such as {example}."
        )
    return float(found["number"]) * units[found["unit"]]


def size_text(count: int) -> str:
    """A size for people: ``12.3 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def duration_text(seconds: float) -> str:
    """A duration for people, in its two largest units: ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def counted(count: int, noun: str) -> str:
    """``1 record``, ``2 records``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
