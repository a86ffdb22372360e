"""In which order the stages of a sweep begin, and what that costs: played through for a sweep of 136 configurations.

``python order_bench.py [--runs N]`` prints one JSON object. The graph is what ``build`` would run, 8 models in 17
combinations of precision and execution provider. What a stage is expected to take is what it took of all-MiniLM-L6-v2,
with 22M parameters, times the size of the model; what it does take differs from that by up to a third. Nothing runs but
the clock. The models stand in another order in each run.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.engine import resources
from winml_dag.engine.eta import chains, repeats
from winml_dag.engine.graph import Merged, Part, merge
from winml_dag.engine.resources import Admission, Capacity, ReadyQueue, ResourceRequest
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.store.store import Store

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scenarios"))
from onnx_samples import perceptron

COMBINATIONS = [
    *[("cpu", each) for each in ("fp32", "fp16", "w16a16", "w8a16", "w16a8", "w8a8", "dynamic", "w4a32", "w4a16")],
    *[("qnn", each) for each in ("fp16", "w16a16", "w8a16", "w8a8", "w4a16")],
    *[("openvino", each) for each in ("fp32", "fp16", "w8a8")],
]
# Parameters, in units of 22M.
SIZES = (1.0, 1.0, 1.2, 2.5, 3.0, 5.0, 14.0, 25.0)
SECONDS = {
    "optimize": 1.4, "analyze": 0.28, "calibrate": 5.3, "quantize": 4.2, "compile": 2.0, "validate": 9.1,
    "finalize": 0.4,
}  # fmt: skip
ORDERS = ("part by part", "longest chain first", "winml-dag")
SHARES = {"part by part": float("inf"), "longest chain first": 0.0, "winml-dag": resources._SHARE}


@dataclass(frozen=True)
class Played:
    """Seconds until everything has ended, and the mean time until a model is done."""

    whole: float
    mean: float


def the_sweep(folder: Path) -> Merged:
    """Return the merged graph of all configurations; parts are labelled ``<model>/<ep>/<precision>``."""
    store = Store(folder / "cache")
    parts = []
    for number in range(len(SIZES)):
        model = perceptron(folder / f"model{number}.onnx", seed=number)
        for ep, precision in COMBINATIONS:
            overrides = Overrides(onnx=model, ep=ep, precision=precision, compile=ep == "qnn")
            planned = plan_request(Request(None, overrides, folder / "out"), store, download=False)
            parts.append(Part(f"{number}/{ep}/{precision}", planned.graph, planned.sources))
    return merge(parts)


def played(
    merged: Merged, expected: Mapping[str, float], seconds: Mapping[str, float], places: int, share: float
) -> Played:
    """Simulate the whole graph with *places* slots. Nodes without duration end at once."""
    admission = Admission(Capacity(places))
    resources._SHARE = share
    ready: ReadyQueue[str] = ReadyQueue(admission, merged.order, chains(merged.graph, expected))
    readers: dict[str, list[str]] = {node.id: [] for node in merged.graph.nodes}
    waits: dict[str, int] = {}
    for node in merged.graph.nodes:
        makers = list(merged.graph.needs(node))
        waits[node.id] = len(makers)
        for maker in makers:
            readers[maker.id].append(node.id)
    left, now, ended = sum(expected.values()), 0.0, dict[str, float]()
    ends: list[tuple[float, str]] = []
    for node_id, number in waits.items():
        if not number:
            ready.add(node_id, ResourceRequest(), node_id)
    tickets = {}
    while True:
        while (found := ready.next(left)) is not None:
            tickets[found[0]] = admission.take(found[1])
            heapq.heappush(ends, (now + seconds[found[0]], found[0]))
        if not ends:
            break
        now, node_id = heapq.heappop(ends)
        admission.give_back(tickets.pop(node_id))
        ended[node_id] = now
        left -= expected[node_id]
        for reader in readers[node_id]:
            waits[reader] -= 1
            if not waits[reader]:
                ready.add(reader, ResourceRequest(), reader)
    done = [max(ended[node_id] for node_id in ids.values()) for ids in merged.ids]
    return Played(now, statistics.mean(done))


def bench(folder: Path, runs: int) -> dict[str, object]:
    merged = the_sweep(folder)
    free = repeats(merged.graph)
    stage = {node.id: node.stage.name for node in merged.graph.nodes if node.id not in free}
    found: dict[int, dict[str, list[tuple[float, float]]]] = {}
    for run in range(runs):
        chance = random.Random(run)
        models = chance.sample(range(len(SIZES)), len(SIZES))
        size = {str(number): SIZES[model] for number, model in enumerate(models)}
        expected = dict.fromkeys((node.id for node in merged.graph.nodes), 0.0) | {
            node_id: SECONDS[name] * size[node_id.partition("/")[0]] for node_id, name in stage.items()
        }
        seconds = {node_id: each * chance.uniform(0.67, 1.33) for node_id, each in expected.items()}
        longest = max(chains(merged.graph, seconds).values())
        for places in (2, 4, 8, 16, 32):
            least = max(sum(seconds.values()) / places, longest)
            for name in ORDERS:
                one = played(merged, expected, seconds, places, SHARES[name])
                found.setdefault(places, {}).setdefault(name, []).append((one.whole / least, one.mean / least))
    return {
        "configurations": len(merged.ids),
        "stages": len(stage),
        "runs": runs,
        "places": {
            places: {
                name: {
                    "whole": round(statistics.mean(whole for whole, _ in each), 3),
                    "whole_most": round(max(whole for whole, _ in each), 3),
                    "cell": round(statistics.mean(cell for _, cell in each), 3),
                }
                for name, each in by_order.items()
            }
            for places, by_order in found.items()
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(bench(Path(temporary), parser.parse_args().runs), indent=1))
