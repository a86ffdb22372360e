"""``make bench-scale``: how far the planner and the scheduler go, played through with a clock that nothing waits for.

``python scale_bench.py [--write | --page] [PART]...`` measures the parts named, all without any, each in a process of
its own, and keeps what was found in ``scale/measured.json``. ``--write`` makes ``docs/scaling.md`` and its picture of
that, and ``--page`` does nothing else.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "scale"
sys.path.insert(0, str(HERE))

from graphs import STAGES_OF_A_GROUP, planned, together  # noqa: E402
from scalepage import write_page  # noqa: E402
from simulate import How, Left, Played, simulate  # noqa: E402
from world import Offer  # noqa: E402

MEASURED = HERE / "measured.json"
# The smallest number of groups with 10,000 stages.
GROUPS = 37
# A server in the same building: 2 ms, 2000 requests and 1.25 GB per second, and 125 MB per second per machine.
SERVER = Offer(0.002, 2000, 1.25e9, 125e6)
# As measured with a hundred machines: see the table of sizes.
OVERHEAD_SECONDS = 0.0003
MACHINES = (10, 30, 100, 300, 1000)
STRETCHES = (1, 10, 100)


def size(times: int, machines: tuple[int, ...], *, warm: bool = True) -> dict[str, Any]:
    """Measure planning, merging and scheduling of 10,064 stages *times* over, with a remote without costs."""
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(GROUPS, Path(folder))
    began = time.process_time()
    merged = together(plan.parts, times)
    merging = time.process_time() - began
    stages = len(merged.graph.nodes)
    told: dict[str, Any] = {
        "stages": stages,
        "cells": len(merged.ids),
        "planned_cells": plan.planned,
        "plan_us": plan.seconds / (GROUPS * STAGES_OF_A_GROUP) * 1e6,
        "merge_us": merging / stages * 1e6,
        "runs": [],
    }
    for number in machines:
        _say(f"{stages} stages on {number} machines")
        played, left = simulate(merged, How(number, jitter=0.3))
        run = _told(played)
        if warm:
            again, _ = simulate(merged, How(number), left)
            assert again.ran == 0
            run["warm_us"] = (again.ahead + again.scheduled) / stages * 1e6
        told["runs"].append(run)
        del left
    told["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return told


def traffic() -> list[dict[str, Any]]:
    """Measure remote traffic: from nothing, with nothing changed on a machine with an empty cache, and after an
    edit.
    """
    with tempfile.TemporaryDirectory() as folder:
        merged = together(planned(GROUPS, Path(folder) / "first").parts, 1)
        edited = together(planned(GROUPS, Path(folder) / "edited", edited=True).parts, 1)
    how = How(100, SERVER, OVERHEAD_SECONDS)
    cold, left = simulate(merged, how)
    warm, _ = simulate(merged, how, left)
    edit, _ = simulate(edited, how, left)
    return [{"what": what, **_told(run)} for what, run in (("cold", cold), ("warm", warm), ("edit", edit))]


def curve() -> list[dict[str, Any]]:
    """Simulate the same graph on increasing numbers of machines, with increasing durations."""
    with tempfile.TemporaryDirectory() as folder:
        merged = together(planned(GROUPS, Path(folder)).parts, 1)
    found = []
    for stretch in STRETCHES:
        for machines in MACHINES:
            _say(f"{machines} machines, work {stretch} times as long")
            played, _ = simulate(merged, How(machines, SERVER, OVERHEAD_SECONDS, stretch=stretch), Left())
            found.append({"stretch": stretch, **_told(played)})
    return found


def limits() -> list[dict[str, Any]]:
    """Simulate a hundred machines with one parameter at a time slower or larger."""
    with tempfile.TemporaryDirectory() as folder:
        merged = together(planned(GROUPS, Path(folder)).parts, 1)
    plain = How(100, SERVER, OVERHEAD_SECONDS)
    cases = {
        "as above": plain,
        "scheduler takes no time": How(100, SERVER),
        "scheduler takes 3 ms for a run": How(100, SERVER, 0.003),
        "answers after 20 ms": How(100, Offer(0.02, 2000, 1.25e9, 125e6), OVERHEAD_SECONDS),
        "answers after 100 ms": How(100, Offer(0.1, 2000, 1.25e9, 125e6), OVERHEAD_SECONDS),
        "200 requests a second": How(100, Offer(0.002, 200, 1.25e9, 125e6), OVERHEAD_SECONDS),
        "files 100 times as large": How(100, SERVER, OVERHEAD_SECONDS, grow=100),
        "files 1000 times as large, work 100 times": How(100, SERVER, OVERHEAD_SECONDS, stretch=100, grow=1000),
    }
    found = []
    for name, how in cases.items():
        _say(name)
        played, _ = simulate(merged, how)
        found.append({"what": name, **_told(played)})
    return found


PARTS: Mapping[str, Callable[[], Any]] = {
    "size 1": lambda: size(1, (10, 100, 1000)),
    "size 10": lambda: size(10, (10, 100, 1000)),
    "size 100": lambda: size(100, (1000,)),
    "traffic": traffic,
    "curve": curve,
    "limits": limits,
}


def _told(played: Played) -> dict[str, Any]:
    went = played.went
    return {
        "stages": played.stages,
        "ran": played.ran,
        "machines": played.machines,
        "seconds": played.seconds,
        "least": played.least,
        "work": played.work,
        "utilisation": played.utilisation,
        "schedule_us": played.scheduled / played.stages * 1e6,
        "ahead_us": played.ahead / played.stages * 1e6,
        "requests": went.requests / played.stages,
        "got": went.bytes_got / played.stages,
        "put": went.bytes_put / played.stages,
    }


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"Of {', '.join(PARTS)}.")
    parser.add_argument("--write", action="store_true", help="Write docs/scaling.md when all is measured.")
    parser.add_argument("--page", action="store_true", help="Write docs/scaling.md from what was measured before.")
    parser.add_argument("--one", choices=PARTS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(PARTS[asked.one]()))
        return
    for part in () if asked.page else asked.parts or PARTS:
        done = subprocess.run([sys.executable, __file__, "--one", part], stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
        found[part] = json.loads(done.stdout)
        found["where"] = f"{platform.system()}, {platform.machine()}, Python {platform.python_version()}"
        MEASURED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if asked.write or asked.page:
        write_page(json.loads(MEASURED.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
