"""Fault injection at scale: ``python tests/faults/harness.py --kills 1000 [--seed N] [--only KIND]``.

Faults are injected in episodes. Each is a process with a cache of its own, which injects some faults one after the
other and checks everything after each. Its seed determines all randomness.
"""

from __future__ import annotations

import argparse
import gc
import os
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import groupby, islice
from multiprocessing import get_context
from pathlib import Path

import fault_attacks
import fault_damage
import fault_disks
import fault_kills
import fault_misdeeds
import fault_transfers
from fault_lab import Impossible, Lab

# They are forks of a process that has imported this module and nothing else.
_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["harness"])
# Kills lose nothing in memory either, and making and removing thousands of small files there takes a third less time.
_IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True)
class Kind:
    """``per_kill``: number of these faults per requested kill, but at least ``least``.

    ``at_once``: number per episode. A sweep covers all positions, so it is a single episode.
    """

    make: Callable[[Lab], Iterator[None]]
    per_kill: float
    at_once: int = 10
    least: int = 1


KINDS = {
    "full-disk": Kind(fault_disks.full_disk, 0.2, at_once=10_000),
    "no-more-files": Kind(fault_disks.no_more_files, 0.1, at_once=10_000),
    "kill-engine": Kind(fault_kills.kill_engine, 0.45),
    "kill-worker": Kind(fault_kills.kill_worker, 0.2),
    "kill-both": Kind(fault_kills.kill_both, 0.15),
    "kill-one-of-many": Kind(fault_kills.kill_one_of_many, 0.2),
    "kill-transfer": Kind(fault_transfers.kill_transfer, 0.1),
    "permission-lost": Kind(fault_disks.permission_lost, 0.06),
    "read-only": Kind(fault_disks.read_only, 0.01),
    "damage": Kind(fault_damage.damage, 0.15),
    "index-lost": Kind(fault_damage.index_lost, 0.06),
    "clock-jumps": Kind(fault_damage.clock_jumps, 0.04),
    "crowd": Kind(fault_kills.crowd, 0.04),
    "misdeeds": Kind(fault_misdeeds.misdeeds, 0.048, at_once=12, least=12),
    "attacks": Kind(fault_attacks.attacks, 10, at_once=300),
}


@dataclass(frozen=True)
class Episode:
    """*faults* faults of one kind from one seed."""

    kind: str
    seed: int
    faults: int

    @property
    def command(self) -> str:
        return f"python tests/faults/harness.py --only {self.kind} --seed {self.seed} --episode {self.faults}"


@dataclass(frozen=True)
class Outcome:
    """``failure`` is the traceback of a failure, ``impossible`` why these faults cannot be injected here."""

    episode: Episode
    survived: int
    seconds: float
    failure: str = ""
    impossible: str = ""


def share_out(kills: int, only: str | None = None) -> dict[str, int]:
    """Return the number of faults per kind in a run with *kills* kills, or that many of one kind."""
    if only is not None:
        return {only: kills}
    return {name: max(kind.least, round(kills * kind.per_kill)) for name, kind in KINDS.items()}


def episodes(faults: dict[str, int], seed: int) -> Iterator[Episode]:
    for name, count in faults.items():
        at_once = KINDS[name].at_once
        for number, begin in enumerate(range(0, count, at_once)):
            yield Episode(name, seed + number, min(at_once, count - begin))


def run(planned: Iterable[Episode], jobs: int) -> Iterator[Outcome]:
    """Run each in a separate process, *jobs* at a time, since a fault may take down its process."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(_run_apart, planned)


def _run_apart(episode: Episode) -> Outcome:
    with ProcessPoolExecutor(1, _FORKS) as process:
        try:
            return process.submit(run_here, episode).result()
        except BrokenProcessPool as error:
            return Outcome(episode, 0, 0, str(error))


def run_here(episode: Episode) -> Outcome:
    """Inject the faults of *episode* in this process."""
    gc.freeze()  # a collection in a fork would copy the pages of all that is imported
    started, survived = time.monotonic(), 0
    failure, impossible = "", ""
    with tempfile.TemporaryDirectory(prefix="faults-", dir=_IN_MEMORY) as folder:
        try:
            for _ in islice(KINDS[episode.kind].make(Lab(Path(folder), episode.seed)), episode.faults):
                survived += 1
        except Impossible as error:
            impossible = str(error)
        except Exception:
            failure = traceback.format_exc()
    return Outcome(episode, survived, time.monotonic() - started, failure, impossible)


def report(outcomes: Iterable[Outcome]) -> bool:
    """Print a table, a row per finished kind, with the failures and how to repeat them.

    Return whether nothing failed.
    """
    print(f"{'kind':<18}{'survived':>10}{'failed':>8}{'seconds':>9}")
    every: list[Outcome] = []
    for name, group in groupby(outcomes, key=lambda outcome: outcome.episode.kind):
        of_kind = list(group)
        every += of_kind
        print(_row(name, of_kind))
        if of_kind[0].impossible:
            print(f"  not possible here: {of_kind[0].impossible}")
        for outcome in of_kind:
            if outcome.failure:
                print(f"  {outcome.episode.command}\n{outcome.failure}")
        sys.stdout.flush()
    print(_row("all", every))
    return not any(outcome.failure for outcome in every)


def _row(name: str, outcomes: Sequence[Outcome]) -> str:
    survived = sum(outcome.survived for outcome in outcomes)
    failed = sum(bool(outcome.failure) for outcome in outcomes)
    return f"{name:<18}{survived:>10}{failed:>8}{sum(outcome.seconds for outcome in outcomes):>9.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Make faults of every kind and check that nothing breaks.")
    parser.add_argument("--kills", type=int, default=1000, help="how many processes to kill (default: 1000)")
    parser.add_argument("--seed", type=int, help="where all that is random comes from (default: a new one)")
    parser.add_argument("--only", choices=KINDS, help="faults of this kind only")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="episodes at a time")
    parser.add_argument("--episode", type=int, metavar="FAULTS", help="repeat one episode of --only, from its seed")
    asked = parser.parse_args()
    if sys.platform != "linux":
        parser.error("it needs Linux: fork, signals, mounts and /proc")
    seed = secrets.randbelow(10**6) if asked.seed is None else asked.seed
    if asked.episode is None:
        print(f"Seed {seed}.")
        outcomes = run(episodes(share_out(asked.kills, asked.only), seed), asked.jobs)
        return 0 if report(outcomes) else 1
    if asked.only is None:
        parser.error("--episode needs --only")
    return 0 if report([run_here(Episode(asked.only, seed, asked.episode))]) else 1


if __name__ == "__main__":
    sys.exit(main())
