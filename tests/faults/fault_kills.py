"""Several engines at once, and SIGKILL at random moments: for an engine, a worker, both, or one of several engines."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from fault_engine import Step, soon
from fault_lab import Engine, Lab, at_step, kill_oneself

# About how long a worker lives.
_WORKER_SECONDS = 0.01


def crowd(lab: Lab) -> Iterator[None]:
    """Run two to eight engines. The stages' own tally counts how often each ran."""
    while True:
        whole = lab.graphs.new(4, 7, fresh=1)
        lab.graphs.tally.write_text("")
        parts = [lab.graphs.part_of(whole) for _ in range(lab.chance.randint(2, 8))]
        engines = [lab.start(part) for part in parts]
        for part, engine in zip(parts, engines, strict=True):
            told = engine.wait()
            assert told is not None, "An engine was killed."
            assert told.done, f"An engine failed: {told.words}"
            lab.compare(part, told)
        runs = Counter(lab.graphs.tally.read_text().split())
        wanted = {step.id for part in parts for step in part} - {"source"}
        assert len(runs) == len(wanted), f"{len(wanted)} stages were wanted, and {len(runs)} ran."
        assert set(runs.values()) == {1}, f"Stages ran more than once: {runs.most_common(3)}"
        lab.check(whole)
        yield


def kill_engine(lab: Lab) -> Iterator[None]:
    """Kill the engine in one of three ways.

    They are: at a random system call; after a random delay, which also hits code between system calls; and while a
    stage hangs, whose worker must end with all its children.
    """
    whole = lab.run(lab.graphs.new())
    while True:
        steps = _next_graph(lab)
        moment = lab.chance.random()
        if moment < 0.4:
            engine = lab.start(steps, at_step(lab.chance.randint(1, whole.steps), kill_oneself))
            was_killed = engine.wait() is None
        elif moment < 0.8:
            was_killed = _kill_after_delay(lab, lab.start(steps), whole.seconds)
        else:
            steps[-1] = replace(steps[-1], work="misbehave", number=lab.graphs.fresh())
            with lab.asking_for(lab.chance.choice(["hang with children", "hang holding the lock"])) as begun:
                engine = lab.start(steps)
                assert soon(begun.exists)
                was_killed = _kill_after_delay(lab, engine, whole.seconds)
        lab.check(steps)
        if was_killed:
            yield


def kill_worker(lab: Lab) -> Iterator[None]:
    """Kill a worker. The engine continues, reports the stage, and records nothing for it."""
    while True:
        steps = _next_graph(lab)
        engine = lab.start(steps)
        victim = _some_worker(engine, lab.chance)
        _pass_time(lab.chance, _WORKER_SECONDS)
        _kill(victim)
        told = engine.wait()
        assert told is not None, "The engine died with its worker."
        hit = [name for name, error in told.errors.items() if "SIGKILL" in error]
        assert set(told.errors) == set(hit), f"A killed worker cost more than its stage: {told.errors}"
        lab.check(steps)
        if hit:
            yield


def kill_both(lab: Lab) -> Iterator[None]:
    """Kill the engine and all its workers, in random order."""
    whole = lab.run(lab.graphs.new())
    while True:
        steps = _next_graph(lab)
        engine = lab.start(steps)
        _pass_time(lab.chance, whole.seconds)
        workers = engine.workers()
        victims = [*workers, engine.pid]
        lab.chance.shuffle(victims)
        if not engine.has_ended():
            for victim in victims:
                _kill(victim)
        was_killed = engine.wait() is None
        lab.check(steps)
        if was_killed and workers:
            yield


def kill_one_of_many(lab: Lab) -> Iterator[None]:
    """Kill one of several engines with overlapping graphs. The others must not be affected."""
    run = lab.run(lab.graphs.new())
    while True:
        whole = _next_graph(lab)
        parts = [lab.graphs.part_of(whole) for _ in range(lab.chance.randint(2, 3))]
        engines = [lab.start(part) for part in parts]
        victim = lab.chance.randrange(len(engines))
        _pass_time(lab.chance, run.seconds)
        engines[victim].kill()
        answers = [engine.wait() for engine in engines]
        was_killed = answers.pop(victim) is None
        parts.pop(victim)
        for part, told in zip(parts, answers, strict=True):
            assert told is not None
            assert told.done, f"Another engine failed: {told.words}"
            lab.compare(part, told)
        lab.check(whole)
        if was_killed:
            yield


def _kill_after_delay(lab: Lab, engine: Engine, longest_seconds: float) -> bool:
    _pass_time(lab.chance, longest_seconds)
    engine.kill()
    return engine.wait() is None


def _next_graph(lab: Lab) -> list[Step]:
    if lab.chance.random() < 0.2:
        lab.graphs.edit_source()
    return lab.graphs.new()


def _some_worker(engine: Engine, chance: random.Random) -> int:
    """Return one of the first few workers that the engine starts."""
    seen: set[int] = set()
    wanted = chance.randint(1, 3)
    while len(seen) < wanted and not engine.has_ended():
        seen.update(engine.workers())
        threading.Event().wait(0.001)
    return max(seen, default=0)


def _pass_time(chance: random.Random, longest_seconds: float) -> None:
    threading.Event().wait(chance.uniform(0, longest_seconds))


def _kill(pid: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
