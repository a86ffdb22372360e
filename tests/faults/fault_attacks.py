"""Edits, kills and builds of a project in random order, also during builds: see ``tests/attacks``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from fault_lab import Lab


def attacks(lab: Lab) -> Iterator[None]:
    """Run one step of a schedule at a time. A failing schedule is reduced to a minimum."""
    # Imported here: hypothesis would be a third of what the processes of all other kinds are forks of.
    sys.path.append(str(Path(__file__).parents[1] / "attacks"))
    from attack_schedule import prepare, steps

    prepare(lab.folder)
    while True:
        for _ in range(steps(lab.folder, lab.chance.getrandbits(32))):
            yield
