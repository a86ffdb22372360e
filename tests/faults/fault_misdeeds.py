"""Stages that crash, hang, flood, leave daemons or write to other folders: only they fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from fault_graph import SOURCE
from fault_lab import Lab
from fault_stages import MISDEEDS

# Expected error per misdeed. Those not listed must do no harm.
_ERRORS = {
    "crash": "SIGSEGV",
    "abort": "SIGABRT",
    "leave without a result": "exit code 3",
    "hang with children": "longer than its limit of",
    "hang holding the lock": "longer than its limit of",
    "edit the source": "changed while it was being used",
    "answer nonsense": "its result cannot be read",
    "remove everything": "ended with exit code",
    "put out a link": "is a link",
}
_TOUCH_THE_SOURCE = {"edit the source"}
_LIMIT_SECONDS = 0.4
_LARGEST_LOG = 16 << 20


def misdeeds(lab: Lab) -> Iterator[None]:
    """Let one stage of a graph misbehave, in every way in turn, and behave in the next build."""
    names = list(MISDEEDS)
    lab.chance.shuffle(names)
    while True:
        for name in names:
            steps = lab.graphs.new()
            place = lab.chance.randrange(1, len(steps))
            culprit = replace(
                steps[place],
                work="misbehave",
                number=lab.graphs.fresh(),
                inputs=(SOURCE,) if name in _TOUCH_THE_SOURCE else steps[place].inputs,
                timeout_seconds=_LIMIT_SECONDS if "hang" in name else 600.0,
            )
            steps[place] = culprit
            with lab.asking_for(name):
                told = lab.run(steps)
            if name not in _ERRORS:
                assert told.done, f"{name!r} did harm: {told.words}"
            else:
                assert culprit.id in told.errors, f"{name!r} went unnoticed."
                # Other readers of the source must notice its edit too.
                others = [step.id for step in steps if name not in _TOUCH_THE_SOURCE or SOURCE not in step.inputs]
                assert not set(told.errors) & set(others) - {culprit.id}, f"{name!r} cost others: {told.errors}"
                for error in told.words:
                    assert re.search(_ERRORS[name], error), f"{name!r}: {error}"
            large = [path for path in lab.cache.rglob("*") if path.stat().st_size > _LARGEST_LOG]
            assert not large, f"{name!r} left files as large as it liked: {large}"
            lab.check(steps)
            yield
