"""The page of benchmarks, of which each program writes its own part and keeps the others."""

from __future__ import annotations

_BEFORE = "## Where it was measured\n"


def kept_section(page: str, heading: str) -> str:
    """What *page* says under *heading*, with it; empty for one that says nothing."""
    begin = page.find(heading)
    if begin < 0:
        return ""
    end = page.find("\n## ", begin + 1)
    return page[begin:] if end < 0 else page[begin : end + 1]


def with_section(page: str, heading: str, text: str) -> str:
    """*page* with *text* in place of what it said under *heading*, or before the words on where it was measured."""
    old = kept_section(page, heading)
    return page.replace(old, text) if old else page.replace(_BEFORE, f"{text}{_BEFORE}")
