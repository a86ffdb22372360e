"""The harness with some kills, some attack steps, and a fault of every other kind: see ``harness.py``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fault_engine import Step
from fault_lab import Lab
from harness import Episode, episodes, run, run_here, share_out

from winml_dag.store.store import Store

# Kills differ only in their moment; each fault of the other kinds picks one of several actions.
KILLS = {kind: faults for kind, faults in share_out(20).items() if kind.startswith("kill-")}
FAULTS = {**share_out(50), **KILLS, "attacks": 40}
SEED = 1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "faults"), FAULTS.items())
def test_injected_faults_break_nothing(kind: str, faults: int) -> None:
    outcomes = list(run(episodes({kind: faults}, SEED), jobs=1))
    for outcome in outcomes:
        assert not outcome.failure, f"{outcome.episode.command}\n{outcome.failure}"
    if outcomes[0].impossible:
        pytest.skip(outcomes[0].impossible)
    assert sum(outcome.survived for outcome in outcomes) == faults


def test_wrong_outputs_fail_the_check(tmp_path: Path) -> None:
    """A store that is intact in itself, but has the result of another key under one key."""
    lab = Lab(tmp_path, SEED)
    steps = [
        Step("source", "source", str(lab.graphs.source)),
        *(Step(f"n{number}", "derive", str(lab.graphs.tally), number) for number in (1, 2)),
    ]
    told = lab.build(steps)
    store = Store(lab.cache)
    right, wrong = (store.record(told.keys[node]) for node in ("n1", "n2"))
    assert right is not None
    assert wrong is not None
    store.records.write(replace(right, outputs=wrong.outputs))
    store.close()
    with pytest.raises(AssertionError, match="n1 has wrong bytes"):
        lab.check(steps)


def test_failure_is_reported_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fault_kills.Counter", lambda _: {})
    outcome = run_here(Episode("crowd", 5, 2))
    assert outcome.survived == 0
    assert "stages were wanted, and 0 ran" in outcome.failure
    assert outcome.episode.command == "python tests/faults/harness.py --only crowd --seed 5 --episode 2"
