"""Axes that a Transpose leaves together, as one: without onnx, since analyze asks what would come of it."""

from __future__ import annotations

FROM_RANK = 5


def merged(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and order of a Transpose of *shape* by *order* with as few axes as it can be done with."""
    kept = [axis for axis in order if shape[axis] != 1] or [order[0]]
    groups: list[list[int]] = []
    place = {axis: number for number, axis in enumerate(sorted(kept))}
    for axis in kept:
        if groups and place[axis] == place[groups[-1][-1]] + 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    sizes = {group[0]: 1 for group in groups}
    for group in groups:
        for axis in group:
            sizes[group[0]] *= shape[axis]
    first = sorted(sizes)
    return tuple(sizes[axis] for axis in first), tuple(first.index(group[0]) for group in groups)
