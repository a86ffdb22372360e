"""Suggestions for an unknown word."""

from __future__ import annotations

from collections.abc import Iterable

# More than any built-in list has; the labels of an axis may be thousands.
_MOST_SHOWN = 200


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """Return ``; did you mean 'samples'?`` for the nearest of *choices*, or nothing if none is near."""
    # Imported here, because only errors need it.
    from difflib import get_close_matches

    by_folded = {choice.casefold(): choice for choice in choices}
    nearest = get_close_matches(str(word).casefold(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[nearest[0]]!r}?" if nearest else ""


def known_instead(word: object, choices: Iterable[str]) -> str:
    """Call :func:`did_you_mean`; if none is near, list all of *choices*, or the first of very many."""
    choices = tuple(choices)
    more = f" and {len(choices) - _MOST_SHOWN} more" if len(choices) > _MOST_SHOWN else ""
    return did_you_mean(word, choices) or f"; known are {', '.join(choices[:_MOST_SHOWN])}{more}"
