"""The record that is nearest to something never built: a first build that is nearly another one says so.

Only those who explain look for it. A build has no use for it, and would look through records for each of its stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from winml_dag.canonical import JsonObject, JsonValue, canonical_json
from winml_dag.engine.change import Change, Inputs, changes_between, summed_up
from winml_dag.store.record import Ingredients, Record
from winml_dag.store.store import Store

# The newest records of a stage that are looked at: enough for a sweep, and read and compared in 16 ms.
MOST_RECORDS = 100


@dataclass(frozen=True)
class Nearest:
    """A record, and what differs from it."""

    cache_key: str
    made_at: str
    made_by: str
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        return f"{self.name}: {summed_up(self.changes)}"

    @property
    def name(self) -> str:
        """``3f2a81c0 (made 2026-11-20 by winml_dag 0.1.0)``."""
        return f"{self.cache_key[:8]} (made {self.made_at.partition('T')[0]} by {self.made_by})"

    def to_json(self) -> JsonObject:
        changes = [change.to_json() for change in self.changes]
        return {"cache_key": self.cache_key, "made_at": self.made_at, "made_by": self.made_by, "changes": changes}


class NearRecords:
    """Finds nearest records; those of a stage are read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_stage: dict[str, tuple[_Candidate, ...]] = {}

    def nearest(self, wanted: Ingredients, inputs: Inputs, last: Record | None) -> Nearest | None:
        """The record of the same stage that differs in the fewest ingredients; of equals that with more inputs in
        common, then the newest. None when none is nearer than *last*, or what is nearest is not much like it.
        """
        traits = _traits(wanted)
        near = min(self._of(wanted.stage), key=lambda candidate: candidate.distance(traits), default=None)
        if near is None or near.distance(traits)[0] > len(near.traits & traits):
            return None
        if last is not None and _Candidate(last).distance(traits)[0] <= near.distance(traits)[0]:
            return None
        record = near.record
        changes = changes_between(record, wanted, inputs)
        # None: it has another key only because keys are made in another way now.
        return Nearest(record.cache_key, record.made_at, record.made_by, changes) if changes else None

    def _of(self, stage: str) -> tuple[_Candidate, ...]:
        if stage not in self._by_stage:
            records = sorted(self._store.records_of(stage, MOST_RECORDS), key=lambda record: record.made_at)
            # The newest first: of equals, min takes the first.
            self._by_stage[stage] = tuple(map(_Candidate, reversed(records)))
        return self._by_stage[stage]


@dataclass(frozen=True)
class _Candidate:
    record: Record

    @cached_property
    def traits(self) -> frozenset[tuple[str, str]]:
        return _traits(self.record.ingredients)

    def distance(self, traits: frozenset[tuple[str, str]]) -> tuple[int, int]:
        """How many ingredients differ, and how many of these are inputs."""
        differing = {name for name, _ in self.traits ^ traits}
        return len(differing), sum(name.startswith(_INPUT) for name in differing)


_INPUT = "input "


def _traits(made: Ingredients) -> frozenset[tuple[str, str]]:
    """Each ingredient as a name and a text, so that comparing two is an operation on sets: it is done thousands of
    times where looking at fields one by one would take ten times as long."""
    return frozenset(
        [
            ("version", str(made.version)),
            *_leaves("config", made.config),
            *((f"{_INPUT}{slot}", digest) for slot, digest in made.inputs.items()),
            *((f"tool {name}", version) for name, version in made.toolchain.items()),
        ]
    )


def _leaves(path: str, value: JsonValue) -> list[tuple[str, str]]:
    if not isinstance(value, Mapping):
        return [(path, canonical_json(value))]
    return [leaf for name, inner in value.items() for leaf in _leaves(f"{path}.{name}", inner)]
