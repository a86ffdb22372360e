"""The page on how far it goes, and its picture, from what was measured."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import log10
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))

from tables import table  # noqa: E402

PAGE = ROOT / "docs" / "scaling.md"
PICTURE = ROOT / "docs" / "scaling.svg"
_COLOURS = ("#b45309", "#1d4ed8", "#047857")


def write_page(found: Mapping[str, Any]) -> None:
    PICTURE.write_text(picture(found["curve"]), encoding="utf-8")
    PAGE.write_text("\n\n".join(map(_filled, page(found).split("\n\n"))), encoding="utf-8")


def _filled(block: str) -> str:
    """A paragraph or list with lines as long as they may be; headings, tables and code as they are."""
    if block.startswith(("#", "|", "`", "!")):
        return block
    wrap = partial(textwrap.fill, width=120, break_long_words=False, break_on_hyphens=False)
    if not block.startswith("- "):
        return wrap(" ".join(block.split())) + "\n" * block.endswith("\n")
    items = " ".join(block.split()).removeprefix("- ").split(" - ")
    return "\n".join(wrap(f"- {item}", subsequent_indent="  ") for item in items)


def page(found: Mapping[str, Any]) -> str:
    sizes = [found[part] for part in sorted(found, key=len) if part.startswith("size")]
    cold, warm, edit = found["traffic"]
    length = cold["work"] / cold["ran"]
    dearest = max(run["schedule_us"] for one in sizes for run in one["runs"]) / 1e6
    of_a_run = cold["requests"] * cold["stages"] / cold["ran"]
    bytes_of_a_run = (cold["got"] + cold["put"]) * cold["stages"] / cold["ran"]
    return _PAGE.format(
        where=found["where"],
        kb_a_stage=f"{sizes[-1]['peak_bytes'] / sizes[-1]['stages'] / 1e3:.1f}",
        planned_stages=f"{sizes[0]['stages']:,}",
        planned_cells=f"{sizes[0]['planned_cells']:,}",
        most=f"{sizes[-1]['stages']:,}",
        length=f"{length:.2f}",
        sizes=sizes_table(sizes),
        runs=runs_table(sizes),
        traffic=traffic_table((cold, warm, edit)),
        warm_requests=f"{warm['requests']:.1f}",
        curve=curve_table(found["curve"]),
        limits=limits_table(found["limits"]),
        dearest=f"{dearest * 1000:.2f}",
        rate=f"{_round(1 / dearest):,}",
        busy=f"{_round(length / dearest):,}",
        busy_long=f"{_round(60 / dearest):,}",
        of_a_run=f"{of_a_run:.1f}",
        by_requests=f"{_round(2000 / of_a_run):,}",
        busy_requests=f"{_round(2000 / of_a_run * length):,}",
        busy_requests_long=f"{_round(2000 / of_a_run * 60):,}",
        kb_of_a_run=f"{bytes_of_a_run / 1000:,.0f}",
        by_bytes=f"{_round(1.25e9 / bytes_of_a_run):,}",
    )


def sizes_table(sizes: Sequence[Mapping[str, Any]]) -> str:
    head = ["stages", "cells", "planning", "merging", "looking up and reusing", "memory at most, GB"]
    rows = [
        (
            f"{one['stages']:,}",
            f"{one['cells']:,}",
            f"{one['plan_us']:.0f}" if one["cells"] == one["planned_cells"] else "",
            f"{one['merge_us']:.0f}",
            _spread([run["warm_us"] for run in one["runs"] if "warm_us" in run]),
            f"{one['peak_bytes'] / 1e9:.2f}",
        )
        for one in sizes
    ]
    return table(head, rows)


def runs_table(sizes: Sequence[Mapping[str, Any]]) -> str:
    head = ["stages", "machines", "scheduling, µs a stage", "stages a second", "took, s", "to the least", "at work"]
    rows = [
        (
            f"{run['stages']:,}",
            f"{run['machines']:,}",
            f"{run['schedule_us']:.0f}",
            f"{_round(1e6 / run['schedule_us']):,}",
            f"{run['seconds']:,.1f}",
            f"{run['seconds'] / run['least']:.3f}",
            f"{run['utilisation']:.0%}",
        )
        for one in sizes
        for run in one["runs"]
    ]
    return table(head, rows)


def traffic_table(runs: Iterable[Mapping[str, Any]]) -> str:
    names = {"cold": "from nothing", "warm": "nothing changed, new machine", "edit": "one field edited, new machine"}
    head = ["", "stages run", "requests a stage", "KB fetched a stage", "KB put a stage", "took, s"]
    rows = [
        (
            names[run["what"]],
            f"{run['ran']:,}",
            f"{run['requests']:.2f}",
            f"{run['got'] / 1e3:.1f}",
            f"{run['put'] / 1e3:.1f}",
            f"{run['seconds']:.1f}",
        )
        for run in runs
    ]
    return table(head, rows)


def curve_table(runs: Sequence[Mapping[str, Any]]) -> str:
    machines = sorted({run["machines"] for run in runs})
    by = {(run["stretch"], run["machines"]): run for run in runs}
    head = ["a stage takes", *(f"{number:,} machines" for number in machines)]
    rows = [
        (
            _seconds(runs, stretch),
            *(f"{by[stretch, number]['seconds']:,.0f} s, {_speed(by[stretch, number]):.0%}" for number in machines),
        )
        for stretch in sorted({run["stretch"] for run in runs})
    ]
    return table(head, rows)


def limits_table(runs: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        (run["what"], f"{run['seconds']:,.1f}", f"{run['seconds'] / run['least']:.2f}", f"{run['utilisation']:.0%}")
        for run in runs
    ]
    return table(["a hundred machines", "took, s", "to the least", "at work"], rows)


def picture(runs: Sequence[Mapping[str, Any]]) -> str:
    """How near to the fastest a run comes, by the number of machines, a line for each length of a stage."""
    machines = sorted({run["machines"] for run in runs})
    left, right, top, bottom = 60, 560, 40, 260

    def x(number: int) -> float:
        return left + (right - left) * log10(number / machines[0]) / log10(machines[-1] / machines[0])

    def y(share: float) -> float:
        return bottom - (bottom - top) * share

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 310" font-family="sans-serif" font-size="12">',
        '<rect width="720" height="310" fill="#ffffff"/>',
        '<text x="60" y="22" font-weight="bold">How near a run comes to the fastest that the graph allows</text>',
    ]
    for percent in (0, 25, 50, 75, 100):
        height = y(percent / 100)
        parts += [
            f'<line x1="{left}" x2="{right}" y1="{height:.1f}" y2="{height:.1f}" stroke="#d4d4d4"/>',
            f'<text x="{left - 8}" y="{height + 4:.1f}" text-anchor="end">{percent}%</text>',
        ]
    parts += [
        f'<text x="{x(number):.1f}" y="{bottom + 20}" text-anchor="middle">{number:,}</text>' for number in machines
    ]
    parts.append(f'<text x="{(left + right) / 2}" y="{bottom + 40}" text-anchor="middle">machines</text>')
    for colour, stretch in zip(_COLOURS, sorted({run["stretch"] for run in runs}), strict=True):
        line = sorted((run["machines"], _speed(run)) for run in runs if run["stretch"] == stretch)
        points = " ".join(f"{x(number):.1f},{y(share):.1f}" for number, share in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(number):.1f}" cy="{y(share):.1f}" r="3" fill="{colour}"/>' for number, share in line]
        height = y(line[-1][1]) + 4
        parts.append(
            f'<text x="{right + 10}" y="{height:.1f}" fill="{colour}">stages of {_seconds(runs, stretch)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _seconds(runs: Sequence[Mapping[str, Any]], stretch: float) -> str:
    run = next(run for run in runs if run["stretch"] == stretch)
    return f"{run['work'] / run['ran']:.2g} s"


def _speed(run: Mapping[str, Any]) -> float:
    """1 for a run that is as fast as chains and work allow."""
    return float(run["least"] / run["seconds"])


def _round(number: float) -> int:
    """Two digits: more would be noise."""
    return int(float(f"{number:.2g}"))


def _spread(figures: Sequence[float]) -> str:
    if not figures:
        return ""
    low, high = round(min(figures)), round(max(figures))
    return str(low) if low == high else f"{low} to {high}"


_PAGE = """\
# How far it goes

One scheduler on one machine decides on every stage of a build, also when a [cluster](how-to/use-a-cluster.md)
runs them, and a [remote](how-to/share-a-cache.md) has what they make. This page says how many stages and machines
that is good for, what gives out first, and what to do then.

## How this was found

By simulation: the planner, the look ahead in a remote and the scheduler are those that builds use, and run for real.
Only work, files, the network and the choice of a worker are played. A run takes as long as it took when
`recipes/sweeps/small.yaml` was built and recorded (`tests/benchmarks/scale/recorded.json`), and its files are as
large as they were; then a heap of moments says which ends next, and the clock jumps there. Requests and bytes are
counted by the rules of the protocol: which record is asked for when, which blob is looked for, fetched or put.

The graph is that sweep with more and more seeds for its random weights. {planned_stages} stages are {planned_cells}
cells that were all planned. Larger graphs are copies of these with other keys: the same shapes, merged and scheduled
like any other, not planned again. A stage that was recorded takes {length} s on average, since the models are tiny;
so the scheduler has much more to do for a machine than with real ones. Times on the clock do not depend on the
machine that simulates; processor times do: {where}, two busy processors.

Not in the figures is what writes to this machine's disk (a record is a file and a row of the index), what puts folders
in place, and dask's own messages, with a thread here for each run that goes on elsewhere. So rates of the scheduler are
what is possible at most.

## Planning and scheduling

Processor time in microseconds for each stage of the merged graph, and the most memory that the process took, with
the plans, the store and the network that it simulates. "Looking up and reusing" is a second run with nothing left to
do.

{sizes}

All of it is linear in the graph. Memory is {kb_a_stage} KB a stage at the largest, mostly what is kept of each
result until the end: its record, with ingredients and digests.

Runs from nothing, with a remote that costs nothing: "took" is on the virtual clock, "the least" the larger of all
work on all machines and the longest chain.

{runs}

Where a run takes longer than the least, the graph is too small for so many machines: what is left at the end is a
chain.

## What goes to a remote

{planned_stages} stages on 100 machines, each with an empty cache at first. The server answers after 2 ms, takes
2000 requests and moves 1.25 GB in a second, 125 MB for each machine. The scheduler takes 0.3 ms of the clock for
each run.

{traffic}

A new machine on which nothing changed asks for each record once and for each blob once whether it is there,
{warm_requests} requests a stage, and fetches the final files alone. Stages that turn out to be equal are asked for
once.

A run asks for more: its worker looks for the record, fetches what its machine has not got, puts blobs and record, and
the build's machine makes sure that they are there.

## The curve

The same graph and server, and work that takes 1, 10 and 100 times as long as it was recorded: seconds on the clock,
and how near that is to the fastest that is possible, be it by all work on all machines or by the longest chain.

{curve}

At 300 machines all work and the longest chain take about equally long: then no order has both.

![How near a run comes to the fastest that the graph allows, by the number of machines](scaling.svg)

## What gives out first

One thing at a time slower or larger, on 100 machines:

{limits}

- **The scheduler.** It takes up to {dearest} ms for a stage, so it starts about {rate} a second: enough for {busy}
  machines with stages of {length} s, and for {busy_long} with stages of a minute. Beyond that, divide the sweep:
  `--shard 1/4` on four machines makes four schedulers with a cluster each, which share by the remote and know nothing
  of each other.
- **dask.** On a cluster its scheduler comes beside ours, in a process of its own. It takes about 2 ms a stage, and 5
  with a thousand workers to choose from: 200 stages a second, which is enough for 80 machines with stages of 0.41 s,
  and for 12,000 with stages of a minute.
- **The way to the remote.** The scheduler waits for an answer before it places what has become possible; all that
  ended meanwhile is asked for at once. Short stages and slow answers go together badly. Put a level between: a server
  in the same building as the cluster, before the one far away. Stages that take minutes do not notice.
- **Requests.** They are what gives out first with short stages. A run costs {of_a_run} of them, so a server that takes
  2000 a second serves {by_requests} runs a second: {busy_requests} machines with stages of {length} s, as the curve
  shows, and {busy_requests_long} with stages of a minute. Then use more servers: a level for each group of machines,
  with the common one behind it; or `file://` on a file system that all machines share, where a question is a `stat`.
- **Bytes.** A run moves {kb_of_a_run} KB here, and 1.25 GB a second are {by_bytes} runs a second. It grows with the
  models: a model of 1 GB moves a few GB a stage, in and out. Then the lines are what to pay for, or larger machines,
  on which more stages find their inputs where they are.
- **Memory.** {kb_a_stage} KB a stage on the machine that schedules. A million stages fit; divide by shards before
  ten.
- **Planning.** Each cell is planned for itself, in one process, on each call that changes it. Shards divide that too.

## Measure it yourself

```sh
make bench-scale
```

It takes about half an hour, most of it for the million, and writes this page. A part of it alone:
`tests/benchmarks/scale_bench.py` names them. A graph of 2000 stages is simulated with the tests.
"""
