"""How many of the worst nodes to keep in higher precision next: a pure function of what was tried.

Quality need not grow with every node that is kept. So what is found is a number that holds while one less does not,
both tried; the smallest of all such numbers if quality does grow, and not for sure if it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal


def next_counts(tried: Mapping[int, bool], most: int, method: Literal["bisect", "all"]) -> tuple[int, ...]:
    """The counts from 1 to *most* to try next; none when there is nothing left to learn. *tried*: which of the counts
    that were tried hold, 0 among them.

    ``bisect`` doubles the count until one holds, since few nodes most often do, then halves what lies between: about
    twice the logarithm of the answer in all.
    """
    if method == "all":
        return tuple(count for count in range(1, most + 1) if count not in tried)
    below, above = between(tried)
    if above is None:
        return () if below >= most else (min(max(1, 2 * below), most),)
    return () if above - below <= 1 else ((below + above) // 2,)


def between(tried: Mapping[int, bool]) -> tuple[int, int | None]:
    """The smallest count that holds, None without one, and before it the largest below it that does not."""
    above = min((count for count, holds in tried.items() if holds), default=None)
    below = max((count for count, holds in tried.items() if not holds and (above is None or count < above)), default=0)
    return below, above
