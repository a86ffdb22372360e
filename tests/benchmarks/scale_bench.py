"""``make bench-scale``: how far the planner and the scheduler go, simulated with a clock that nothing waits for.

``scale_bench.py [sizes] [traffic] [machines] [limits]`` measures these tables of docs/scaling.md, all by default, and
writes them with ``--write``. Half an hour, and 5 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "scale"))

from graphs import STAGES_OF_A_GROUP, planned, together
from page import DOCS, publish, table
from simulate import How, Played, simulate
from world import Offer

from winml_dag.engine.graph import Merged

# The smallest number of groups with 10,000 stages.
GROUPS = 37
# How many times over, and the machines for each.
SIZES: Mapping[int, Sequence[int]] = {1: (10, 100, 1000), 10: (10, 100, 1000), 100: (1000,)}
# A server in the same building: 2 ms, 2000 requests and 1.25 GB per second, and 125 MB per second per machine.
SERVER = Offer(0.002, 2000, 1.25e9, 125e6)
# As measured with a hundred machines: see the table of sizes.
OVERHEAD_SECONDS = 0.0003
MACHINES = (10, 30, 100, 300, 1000)
STRETCHES = (1, 10, 100)
_PLAIN = How(100, SERVER, OVERHEAD_SECONDS)


def one_size(times: int) -> dict[str, Any]:
    """Measure planning, merging and scheduling of 10,064 stages *times* over, with a remote without costs."""
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(GROUPS, Path(folder))
    began = time.process_time()
    merged = together(plan.parts, times)
    merging = time.process_time() - began
    stages, again, runs = len(merged.graph.nodes), [], []
    for number in SIZES[times]:
        played, left = simulate(merged, How(number, jitter=0.3))
        warm, _ = simulate(merged, How(number), left)
        assert warm.ran == 0
        again.append(round((warm.ahead + warm.scheduled) / stages * 1e6))
        each = played.scheduled / stages
        figures = (
            f"{each * 1e6:.0f}",
            f"{1 / each:,.0f}",
            f"{played.seconds:,.1f}",
            f"{played.seconds / played.least:.3f}",
        )
        runs.append([f"{stages:,}", f"{number:,}", *figures, f"{played.utilisation:.0%}"])
    planning = f"{plan.seconds / (GROUPS * STAGES_OF_A_GROUP) * 1e6:.0f}" if times == 1 else None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    costs = (planning, f"{merging / stages * 1e6:.0f}", " to ".join(map(str, sorted({min(again), max(again)}))))
    return {"size": [f"{stages:,}", f"{len(merged.ids):,}", *costs, f"{peak / 1e9:.2f}"], "runs": runs}


def sizes() -> dict[str, str]:
    # Each in a process of its own, for its peak memory.
    command = [sys.executable, __file__, "--one"]
    found = [json.loads(subprocess.check_output([*command, str(times)])) for times in SIZES]
    head = ["stages", "cells", "planning", "merging", "looking up and reusing", "memory at most, GB"]
    runs = ["stages", "machines", "scheduling, µs a stage", "stages a second", "took, s", "to the least", "at work"]
    return {
        "sizes": table(head, [one["size"] for one in found]),
        "runs": table(runs, [run for one in found for run in one["runs"]]),
    }


def traffic() -> dict[str, str]:
    """From nothing, with nothing changed on a machine with an empty cache, and after an edit."""
    with tempfile.TemporaryDirectory() as folder:
        edited = together(planned(GROUPS, Path(folder), edited=True).parts, 1)
    cold, left = simulate(_graph(), _PLAIN)
    warm, _ = simulate(_graph(), _PLAIN, left)
    edit, _ = simulate(edited, _PLAIN, left)
    names = {"from nothing": cold, "nothing changed, new machine": warm, "one field edited, new machine": edit}
    head = ["", "stages run", "requests a stage", "KB fetched a stage", "KB put a stage", "took, s"]

    def row(name: str, run: Played) -> list[str]:
        each = (run.went.requests, run.went.bytes_got / 1e3, run.went.bytes_put / 1e3)
        requests, got, put = (figure / run.stages for figure in each)
        return [name, f"{run.ran:,}", f"{requests:.2f}", f"{got:.1f}", f"{put:.1f}", f"{run.seconds:.1f}"]

    return {"traffic": table(head, [row(name, run) for name, run in names.items()])}


def machines() -> dict[str, str]:
    """The same graph on more and more machines, with longer and longer work."""
    merged, rows = _graph(), []
    for stretch in STRETCHES:
        runs = [simulate(merged, How(number, SERVER, OVERHEAD_SECONDS, stretch=stretch))[0] for number in MACHINES]
        cells = [f"{run.seconds:,.0f} s, {run.least / run.seconds:.0%}" for run in runs]
        rows.append([f"{runs[0].work / runs[0].ran:.2g} s", *cells])
    return {"machines": table(["a stage takes", *(f"{number:,} machines" for number in MACHINES)], rows)}


def limits() -> dict[str, str]:
    """A hundred machines with one parameter at a time slower or larger."""
    merged = _graph()
    cases = {
        "as above": _PLAIN,
        "scheduler takes no time": How(100, SERVER),
        "scheduler takes 3 ms for a run": How(100, SERVER, 0.003),
        "answers after 20 ms": How(100, Offer(0.02, 2000, 1.25e9, 125e6), OVERHEAD_SECONDS),
        "answers after 100 ms": How(100, Offer(0.1, 2000, 1.25e9, 125e6), OVERHEAD_SECONDS),
        "200 requests a second": How(100, Offer(0.002, 200, 1.25e9, 125e6), OVERHEAD_SECONDS),
        "files 100 times as large": How(100, SERVER, OVERHEAD_SECONDS, grow=100),
        "files 1000 times as large, work 100 times": How(100, SERVER, OVERHEAD_SECONDS, stretch=100, grow=1000),
    }
    runs = {name: simulate(merged, how)[0] for name, how in cases.items()}
    rows = [
        [name, f"{run.seconds:,.1f}", f"{run.seconds / run.least:.2f}", f"{run.utilisation:.0%}"]
        for name, run in runs.items()
    ]
    return {"limits": table(["a hundred machines", "took, s", "to the least", "at work"], rows)}


def _graph() -> Merged:
    with tempfile.TemporaryDirectory() as folder:
        return together(planned(GROUPS, Path(folder)).parts, 1)


PARTS: Mapping[str, Callable[[], dict[str, str]]] = {
    "sizes": sizes, "traffic": traffic, "machines": machines, "limits": limits
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="Write docs/scaling.md.")
    parser.add_argument("--one", type=int, choices=SIZES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one_size(asked.one)))
        return
    for part in asked.parts or PARTS:
        publish(PARTS[part](), writes=asked.write, page=DOCS / "scaling.md")


if __name__ == "__main__":
    main()
