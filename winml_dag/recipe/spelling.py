"""What somebody may have meant who wrote a word that is not one of ours."""

from __future__ import annotations

from collections.abc import Iterable

# More than any list of ours has; the labels of an axis may be thousands.
_MOST_SHOWN = 200


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """``; did you mean 'samples'?`` for the nearest of *choices*, or nothing when none is near."""
    # Imported here, since only a mistake needs it.
    from difflib import get_close_matches

    by_folded = {choice.casefold(): choice for choice in choices}
    nearest = get_close_matches(str(word).casefold(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[nearest[0]]!r}?" if nearest else ""


def known_instead(word: object, choices: Iterable[str]) -> str:
    """Like :func:`did_you_mean`, but with all of *choices* when none is near, or the first of very many."""
    choices = tuple(choices)
    more = f" and {len(choices) - _MOST_SHOWN} more" if len(choices) > _MOST_SHOWN else ""
    return did_you_mean(word, choices) or f"; known are {', '.join(choices[:_MOST_SHOWN])}{more}"
