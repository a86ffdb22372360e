"""Records that will be asked for soon, by name: read some hundreds at a time, each kept until it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from winml_dag.store.record import Record

# So many rows are one statement, and so many records little memory.
_AT_ONCE = 500

Read: TypeAlias = Callable[[Sequence[str]], Mapping[str, Record]]


@dataclass(frozen=True)
class Found:
    """What was read for a name; *record* None when there is nothing."""

    record: Record | None


class Expected:
    """Reads with *read* what belongs to *names*, which are asked for in about this order."""

    def __init__(self, names: Sequence[str], read: Read) -> None:
        self._names = names
        self._read = read
        self._places = {name: place for place, name in enumerate(names)}
        self._here: dict[str, Record | None] = {}

    def take(self, name: str) -> Found | None:
        """What was read for *name*, once; None when it is not expected."""
        place = self._places.pop(name, None)
        if place is None:
            return None
        if name not in self._here:
            start = place - place % _AT_ONCE
            names = [other for other in self._names[start : start + _AT_ONCE] if other in self._places or other == name]
            records = self._read(names)
            self._here.update((other, records.get(other)) for other in names)
        return Found(self._here.pop(name))

    def forget(self, name: str) -> None:
        """What was read for *name* is no longer so."""
        self._places.pop(name, None)
        self._here.pop(name, None)
