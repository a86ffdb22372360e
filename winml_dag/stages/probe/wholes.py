"""What tells forms of a pattern apart. Whoever asks about a pattern and whoever measures one come through here."""

from __future__ import annotations

from winml_dag.ep.support.case import AttributeValue


def turned_attributes(split: tuple[int, ...], order: tuple[int, ...]) -> tuple[tuple[str, AttributeValue], ...]:
    """Of a Reshape to *split*, a Transpose by *order* and a Reshape. An axis of size 1 that stays in its place can be
    left out.
    """
    still = sum(size == 1 and order[place] == place for place, size in enumerate(split))
    return ("rank", len(split)), ("still", min(still, 1)), ("wide", sum(size != 1 for size in split))
