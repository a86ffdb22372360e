"""Tables, and the pages they are written to: each between ``<!-- measured: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import os
import platform
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "benchmarks.md"
_PACKAGES = ("winml_dag", "torch", "transformers", "onnx", "onnxruntime", "onnxruntime-qnn")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table. The first column is text, the others are numbers; None is an empty cell."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join('' if cell is None else str(cell) for cell in line)} |" for line in lines)


def where() -> str:
    """Return a sentence with the date, the machine and the versions of a measurement."""
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    machine = f"{os.cpu_count()} processors under {platform.system()}, {platform.machine()}"
    text = f"Measured on {date.today().isoformat()}, on {machine}, with Python {platform.python_version()}, {packages}."
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def measured(page: Path, name: str) -> str:
    """Return what *page* has under *name*; empty if it has nothing."""
    found = _block(name).search(page.read_text(encoding="utf-8"))
    return found["text"] if found else ""


def publish(texts: Mapping[str, str], *, writes: bool, page: Path = PAGE) -> None:
    """Print *texts* by name, and with *writes* put them into *page*."""
    content = page.read_text(encoding="utf-8")
    for name, text in texts.items():
        print(f"\n{text}", flush=True)
        block = _block(name)
        assert block.search(content), f"{page} has no place for {name}"
        new = f"<!-- measured: {name} -->\n\n{text}\n\n<!-- end -->"
        content = block.sub(lambda _, new=new: new, content)  # type: ignore[misc]
    if writes:
        page.write_text(content, encoding="utf-8")
        print(f"\nWrote {page}.")


def _block(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- measured: {name} -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)
