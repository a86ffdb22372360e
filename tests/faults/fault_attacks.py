"""Edits, kills and builds of a project in random order, also during builds: see ``tests/attacks``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from fault_lab import Lab

sys.path.append(str(Path(__file__).parents[1] / "attacks"))

from attack_schedule import prepare, steps


def attacks(lab: Lab) -> Iterator[None]:
    """Run one step of a schedule at a time. A failing schedule is reduced to a minimum."""
    prepare(lab.folder)
    while True:
        for _ in range(steps(lab.folder, lab.chance.getrandbits(32))):
            yield
