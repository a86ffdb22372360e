"""A decision tree of measurements, which tests one feature after the other until the remaining ones agree.

A feature is tested only if measured outcomes differ by it. So an untested feature did not matter in any measurement,
and a leaf is valid for every measurement with the same answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import log2

from winml_dag.ep.support.features import ABSENT, UNKNOWN, Feature, is_first, is_size

Features = Mapping[str, Feature]
# A safety limit for readers of tables: measured trees are half as deep.
_DEEPEST = 40
_SIZES_COUNT = 0.4
_FIRST_COUNT = 1.5
_OPEN_SIZES_COUNT = 5.0


@dataclass(frozen=True, slots=True)
class Leaf:
    """How many measurements had each outcome; more than one if no feature separates them."""

    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Question:
    """For a text ``value``: whether the feature equals it. For a number: whether it is at most that; no, if absent."""

    feature: str
    value: Feature
    yes: Tree
    no: Tree


Tree = Leaf | Question


def grow(rows: Sequence[tuple[Features, str]]) -> Tree:
    """Return the tree of *rows*, each the features of a case and its outcome.

    The same rows in the same order result in the same tree; of two features that separate them equally well, the first
    one encountered is used.
    """
    return _grow(rows, 0)


def walk(tree: Tree, case: Features) -> Iterator[tuple[Leaf, tuple[str, ...]]]:
    """Yield the leaves that *case* reaches, with the answers on the way; several if a feature of it is unknown."""
    yield from _walk(tree, case, ())


def _walk(tree: Tree, case: Features, path: tuple[str, ...]) -> Iterator[tuple[Leaf, tuple[str, ...]]]:
    if isinstance(tree, Leaf):
        yield tree, path
        return
    has = case.get(tree.feature, ABSENT)
    if has == UNKNOWN:
        yield from _walk(tree.yes, case, path)
        yield from _walk(tree.no, case, path)
    elif _holds(has, tree.value):
        yield from _walk(tree.yes, case, (*path, _told(tree, "yes")))
    else:
        yield from _walk(tree.no, case, (*path, _told(tree, "no")))


def _told(question: Question, answer: str) -> str:
    if isinstance(question.value, str):
        value = question.value or "none"
        return f"{question.feature} {'is' if answer == 'yes' else 'is not'} {value}"
    return f"{question.feature} {'<=' if answer == 'yes' else '>'} {question.value:g}"


def _holds(has: Feature, value: Feature) -> bool:
    if isinstance(value, str):
        return has == value
    return not isinstance(has, str) and has <= value


def _grow(rows: Sequence[tuple[Features, str]], depth: int) -> Tree:
    counts = Counter(outcome for _, outcome in rows)
    leaf = Leaf(tuple(sorted(counts.items())))
    if len(counts) == 1 or depth == _DEEPEST:
        return leaf
    best = _best(rows, counts)
    if best is None:
        return leaf
    feature, value = best
    sides: tuple[list[tuple[Features, str]], list[tuple[Features, str]]] = ([], [])
    for row in rows:
        sides[0 if _holds(row[0].get(feature, ABSENT), value) else 1].append(row)
    return Question(feature, value, _grow(sides[0], depth + 1), _grow(sides[1], depth + 1))


def _best(rows: Sequence[tuple[Features, str]], counts: Counter[str]) -> tuple[str, Feature] | None:
    names = dict.fromkeys(name for features, _ in rows for name in features)
    best: tuple[str, Feature] | None = None
    whole = _entropy(counts) * len(rows)
    least = whole - 1e-9
    for name in names:
        for value, left in _splits(rows, name):
            size = left.total()
            rest = counts - left
            cost = _entropy(left) * size + _entropy(rest) * (len(rows) - size)
            cost = whole - (whole - cost) * _weight(name)
            if cost < least - 1e-9:
                best, least = (name, value), cost
    return best


def _weight(name: str) -> float:
    """Return the weight of a question about *name*.

    There are many sizes, some of which match the outcome by chance. And a provider that does not support open sizes
    does so for no type, though few types are measured with them.
    """
    if name == "dynamic":
        return _OPEN_SIZES_COUNT
    return _FIRST_COUNT if is_first(name) else _SIZES_COUNT if is_size(name) else 1.0


def _splits(rows: Sequence[tuple[Features, str]], name: str) -> Iterator[tuple[Feature, Counter[str]]]:
    """Yield each possible question about *name*, with the outcomes of those that answer yes."""
    by_value: dict[Feature, Counter[str]] = {}
    for features, outcome in rows:
        by_value.setdefault(features.get(name, ABSENT), Counter())[outcome] += 1
    if len(by_value) == 1:
        return
    for text in sorted(value for value in by_value if isinstance(value, str) and value != UNKNOWN):
        yield text, by_value[text]
    numbers = sorted(value for value in by_value if not isinstance(value, str))
    below: Counter[str] = Counter()
    for number, after in zip_longest(numbers, numbers[1:]):
        below = below + by_value[number]
        if after is not None or ABSENT in by_value:
            # In the middle: a value between two measured values belongs to the nearer one.
            yield number if after is None else _between(number, after), below


def _between(below: float, above: float) -> float:
    if isinstance(below, int) and isinstance(above, int):
        return (below + above) // 2
    return (below + above) / 2


def _entropy(counts: Counter[str]) -> float:
    total = counts.total()
    return -sum(count / total * log2(count / total) for count in counts.values() if count)
