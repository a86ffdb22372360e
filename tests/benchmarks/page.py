"""The benchmark page: each program writes its own section and keeps the others."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
_BEFORE = "## Where it was measured\n"


def kept_section(page: str, heading: str) -> str:
    """Return the section of *page* under *heading*, with its heading; empty if missing."""
    begin = page.find(heading)
    if begin < 0:
        return ""
    end = page.find("\n## ", begin + 1)
    return page[begin:] if end < 0 else page[begin : end + 1]


def with_section(page: str, heading: str, text: str) -> str:
    """Replace the section under *heading* by *text*, or insert it before the description of the machine."""
    old = kept_section(page, heading)
    return page.replace(old, text) if old else page.replace(_BEFORE, f"{text}{_BEFORE}")


def publish(heading: str, text: str, *, writes: bool) -> None:
    """Replace the section of the page under *heading* by *text*; without *writes*, only print that."""
    if not writes:
        print(text)
        return
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), heading, text), encoding="utf-8")
    print(f"Wrote {PAGE}.")
