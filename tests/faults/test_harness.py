"""The harness with fifty kills, and a fault of every other kind: see ``harness.py``."""

from __future__ import annotations

import pytest
from harness import episodes, run, share_out

KILLS = 50
SEED = 1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "faults"), share_out(KILLS).items())
def test_nothing_breaks(kind: str, faults: int) -> None:
    outcomes = list(run(episodes({kind: faults}, SEED), jobs=1))
    for outcome in outcomes:
        assert not outcome.failure, f"{outcome.episode.command}\n{outcome.failure}"
    if outcomes[0].impossible:
        pytest.skip(outcomes[0].impossible)
    assert sum(outcome.survived for outcome in outcomes) == faults
