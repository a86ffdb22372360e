"""Which cells are meant by the labels of their values: ``when``, ``exclude`` and ``--filter`` choose alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Choice:
    """By axis, labels and patterns of which one has to match; of no axis, all cells."""

    patterns: Mapping[str, tuple[str, ...]]

    def takes(self, values: Mapping[str, str]) -> bool:
        return all(matches(values.get(axis, ""), patterns) for axis, patterns in self.patterns.items())


def matches(label: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(label, pattern) for pattern in patterns)
