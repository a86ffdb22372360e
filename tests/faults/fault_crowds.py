"""Several engines at once on one cache, with overlapping graphs: shared stages run once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fault_lab import Lab


def crowd(lab: Lab) -> Iterator[None]:
    """Run two to eight engines. The stages' own tally counts how often each ran."""
    while True:
        whole = lab.graphs.new(4, 7, fresh=1)
        lab.graphs.tally.write_text("")
        parts = [lab.graphs.part_of(whole) for _ in range(lab.chance.randint(2, 8))]
        engines = [lab.start(part) for part in parts]
        for part, engine in zip(parts, engines, strict=True):
            told = engine.wait()
            assert told is not None, "An engine was killed."
            assert told.done, f"An engine failed: {told.words}"
            lab.compare(part, told)
        runs = Counter(lab.graphs.tally.read_text().split())
        wanted = {step.id for part in parts for step in part} - {"source"}
        assert len(runs) == len(wanted), f"{len(wanted)} stages were wanted, and {len(runs)} ran."
        assert set(runs.values()) == {1}, f"Stages ran more than once: {runs.most_common(3)}"
        lab.check(whole)
        yield
