"""Random overlapping graphs, and the oracle: the expected output of their nodes, computed without engine and store."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fault_engine import Step
from fault_stages import content

SOURCE = "source"
# So few that graphs often repeat nodes of earlier ones.
_OLD_NUMBERS = 3


@dataclass
class Graphs:
    """Graphs over one source file and one tally, both in *folder*."""

    folder: Path
    chance: random.Random
    _last: int = field(default=100)

    def __post_init__(self) -> None:
        self.tally.touch()
        self.edit_source()

    @property
    def tally(self) -> Path:
        return self.folder / "tally"

    @property
    def source(self) -> Path:
        return self.folder / "source.txt"

    def edit_source(self) -> None:
        # Always the same length, so that size alone never reveals an edit.
        self.source.write_text(f"{self.chance.getrandbits(64):016x}")

    def new(self, least: int = 3, most: int = 5, *, fresh: float = 0.4) -> list[Step]:
        """Return a graph with at least one new node. Each of the others is new with probability *fresh*."""
        steps = [Step(SOURCE, "source", str(self.source))]
        count = self.chance.randint(least, most)
        fresh_at = self.chance.randrange(count)
        for place in range(count):
            is_fresh = place == fresh_at or self.chance.random() < fresh
            names = [SOURCE, *(f"{step.id}.out" for step in steps[1:])]
            inputs = self.chance.sample(names, self.chance.randint(0, min(2, len(names))))
            number = self.fresh() if is_fresh else self.chance.randrange(_OLD_NUMBERS)
            steps.append(Step(f"n{place}", "derive", str(self.tally), number, tuple(inputs)))
        return steps

    def part_of(self, steps: Sequence[Step]) -> list[Step]:
        """Return some of *steps* with their dependencies."""
        wanted = {step.id for step in self.chance.sample(steps[1:], self.chance.randint(1, len(steps) - 1))}
        for step in reversed(steps):
            if step.id in wanted:
                wanted |= {name.partition(".")[0] for name in step.inputs}
        return [step for step in steps if step.id in wanted or step.id == SOURCE]

    def fresh(self) -> int:
        """Return a number that no earlier step had."""
        self._last += 1
        return self._last


def expected(steps: Sequence[Step]) -> dict[str, dict[str, bytes]]:
    """Return the files of each node by id."""
    texts: dict[str, bytes] = {}
    files: dict[str, dict[str, bytes]] = {}
    for step in steps:
        if step.work == "source":
            texts[step.id] = Path(step.path).read_bytes()
        else:
            files[step.id] = content(step.number, [texts[name.removesuffix(".out")] for name in step.inputs])
            texts[step.id] = files[step.id]["text.txt"]
    return files
