"""The report's pages under test, and how a test opens one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

Open = Callable[..., "Page"]


@dataclass(frozen=True)
class Pages:
    """The files to open, by name; ``small`` is a report with everything it may contain."""

    folder: Path

    def address(self, name: str) -> str:
        return (self.folder / f"{name}.html").as_uri()
