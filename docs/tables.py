"""Tables of the generated reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Row: TypeAlias = tuple[str, ...]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def join(path: str, name: str) -> str:
    """The path of a field: ``quant.samples``; *path* is empty at the top."""
    return f"{path}.{name}" if path else name
