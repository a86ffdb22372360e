"""How often two models choose the same class: what a classifier is used for, which a cosine does not tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SCORES = "logits"


@dataclass(frozen=True)
class Agreement:
    """In ``agreed`` of ``of`` decisions the class with the highest score was the same."""

    agreed: int
    of: int


def class_scores(names: Sequence[str], *, classifies: bool) -> frozenset[str]:
    """Which of the outputs *names* are scores of classes: those called logits, else the first one of a classifier.

    Positions of an answer (``start_logits``) count too: which position wins is the decision then.
    """
    found = frozenset(name for name in names if name == _SCORES or name.endswith(f"_{_SCORES}"))
    return found or frozenset(names[:1] if classifies else ())


def top1(reference: NDArray[np.generic], candidate: NDArray[np.generic]) -> Agreement | None:
    """Compare the decisions of two outputs of one shape; None when they are none, for want of two classes.

    The classes are the last axis, or of four axes the second: scores of pixels. Where several classes of the reference
    share the highest score, any of them is right. Decisions in which the reference is no number are left out; those in
    which the candidate is none are wrong.
    """
    return _best_among(reference, candidate, 1)


def top5(reference: NDArray[np.generic], candidate: NDArray[np.generic]) -> Agreement | None:
    """How often the reference's best class is among the candidate's best five; else as :func:`top1`. None when there
    are no more than five classes.
    """
    return _best_among(reference, candidate, 5)


def _best_among(reference: NDArray[np.generic], candidate: NDArray[np.generic], most: int) -> Agreement | None:
    if reference.ndim == 0 or reference.dtype.kind != "f" or candidate.dtype.kind != "f":
        return None
    axis = 1 if reference.ndim == 4 else -1
    if reference.shape[axis] <= most:
        return None
    expected, found = np.moveaxis(reference, axis, -1), np.moveaxis(candidate, axis, -1)
    known = ~np.isnan(expected).any(axis=-1)
    best = expected.max(axis=-1, keepdims=True)
    chosen = (
        found.argmax(axis=-1, keepdims=True)
        if most == 1
        else np.argpartition(-found.astype(np.float64), most)[..., :most]
    )
    right = (np.take_along_axis(expected, chosen, axis=-1) == best).any(axis=-1)
    # Where it sorts NaN would be taken for a choice.
    decided = ~np.isnan(found).any(axis=-1)
    return Agreement(int((right & known & decided).sum()), int(known.sum()))
