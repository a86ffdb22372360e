"""The page on scaling, and its picture, from the measurements."""

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
    """Wrap a paragraph or list; headings, tables and code are unchanged."""
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
    """Draw the speed relative to the optimum by number of machines, with a line per stage length."""
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
    """Return 1 for a run that is as fast as the longest chain and the total work allow."""
    return float(run["least"] / run["seconds"])


def _round(number: float) -> int:
    """Round to two digits: more would be noise."""
    return int(float(f"{number:.2g}"))


def _spread(figures: Sequence[float]) -> str:
    if not figures:
        return ""
    low, high = round(min(figures)), round(max(figures))
    return str(low) if low == high else f"{low} to {high}"


_PAGE = """\
# Scaling: how many stages and machines

One scheduler on one machine decides every stage of a build, also when a [cluster](how-to/use-a-cluster.md) runs the
stages and a [remote](how-to/share-a-cache.md) stores the results. This page shows how many stages and machines it
supports, and what the bottlenecks are.

## Method

Simulation: planner, remote lookups and scheduler are the real code. Only work, files, the network and the choice of a
worker are simulated. Stages take as long, and files are as large, as recorded when `recipes/sweeps/small.yaml` was
built (`tests/benchmarks/scale/recorded.json`). Requests and bytes are counted by the rules of the protocol.

The graph is that sweep with increasing numbers of seeds for random weights. {planned_stages} stages are {planned_cells}
cells, all planned. Larger graphs are copies of these with other keys, which are merged and scheduled but not planned
again. A recorded stage takes {length} s on average, since the models are tiny, so the scheduler has more work per
machine than with real models. Simulated times do not depend on the machine; processor times do: {where}, two busy
processors.

Not included: writing to the local disk (a record is a file and a row of the index), restoring output folders, and
dask's own messages. So scheduler rates are upper limits.

## Planning and scheduling

Processor time in microseconds per stage of the merged graph, and peak memory of the process, including the simulation.
"Looking up and reusing" is a second run with nothing to do.

{sizes}

Everything is linear in the graph. Memory is at most {kb_a_stage} KB per stage, mostly the records.

Runs from scratch, with a remote that costs nothing. "took" is simulated time, "the least" the larger of total work
divided by machines and the longest chain.

{runs}

Where a run takes longer than the least, the graph is too small for so many machines: a chain remains at the end.

## Traffic to a remote

{planned_stages} stages on 100 machines with empty caches. The server answers after 2 ms, takes 2000 requests per second
and transfers 1.25 GB/s, 125 MB/s per machine. The scheduler takes 0.3 ms per run.

{traffic}

A new machine with nothing changed asks once per record and once per blob, {warm_requests} requests per stage, and
downloads only final files. A run needs more: its worker looks up the record, downloads missing inputs and uploads blobs
and record, and the build checks that they are there.

## Number of machines

The same graph and server, with work that takes 1, 10 and 100 times as long as recorded: seconds, and the share of the
optimum given by total work or the longest chain.

{curve}

At 300 machines, total work divided by machines equals the longest chain, so no order is optimal for both.

![Share of the optimum by the number of machines](scaling.svg)

## Bottlenecks

One property at a time slower or larger, on 100 machines:

{limits}

- **Scheduler.** Up to {dearest} ms per stage, about {rate} stages per second: enough for {busy} machines with stages of
  {length} s, and {busy_long} with stages of a minute. Beyond that, shard the sweep: `--shard 1/4` on four machines
  gives four schedulers with a cluster each, which share results through the remote.
- **dask.** Its scheduler adds about 2 ms per stage, and 5 with a thousand workers: 200 stages per second, enough for 80
  machines with stages of 0.41 s, and for 12,000 with stages of a minute.
- **Latency of the remote.** The scheduler waits for an answer before it starts the next stages. With short stages and a
  slow remote, put a nearer remote before it. Stages that take minutes are not affected.
- **Requests.** The first bottleneck with short stages: {of_a_run} requests per run, so a server with 2000 requests per
  second supports {by_requests} runs per second: {busy_requests} machines with stages of {length} s, and
  {busy_requests_long} with stages of a minute. Use more servers: one per group of machines before the common one, or
  `file://` on a shared file system, where a request is a `stat`.
- **Bandwidth.** A run transfers {kb_of_a_run} KB here; 1.25 GB/s are {by_bytes} runs per second. It grows with the
  models: a model of 1 GB transfers a few GB per stage. Use faster networks, or larger machines, which find more inputs
  locally.
- **Memory.** {kb_a_stage} KB per stage on the scheduling machine: enough for a million stages.
- **Planning.** Cells are planned one by one in one process, on each call that changes them. Shards help here too.

## Measure it yourself

```sh
make bench-scale
```

It takes about half an hour and writes this page. `tests/benchmarks/scale_bench.py --help` lists single measurements.
The tests simulate a graph of 2000 stages.
"""
