"""Goals of a sweep: the winner is in its shipping folder, and a search finds the smallest sufficient number of nodes.

One small ONNX model, one cache: each test continues from the state that the previous ones left, as a user would.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from oneprocess import OneProcess
from onnx import TensorProto, helper, numpy_helper
from scenario import Project

pytestmark = pytest.mark.slow

WIDTH = 64
LAYERS = 3
MOST = 2

SWEEP: dict[str, Any] = {
    "matrix": {"model": ["chain.onnx"], "precision": ["fp32", "w8a8"], "target": [{"name": "cpu", "ep": "cpu"}]},
    "auto": False,
    "quant": {"samples": 2, "equalize": False},
    "perf": {"iterations": 3, "warmup": 0, "loads": 1, "threads": 1},
    "goal": {"minimize": "size", "subject_to": {"cosine": ">=0.999999"}, "folder": "best/{model}"},
    "search": {"method": "all", "keep": "float", "nodes_at_most": MOST},
}


def chain(path: Path) -> None:
    """Save a few layers, each with some outlier weights that make it harder to quantize."""
    random = np.random.default_rng(0)
    nodes, tensors, last = [], [], "x"
    for place in range(LAYERS):
        weights = random.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH)
        weights[:, 0] *= 4.0**place
        tensors.append(numpy_helper.from_array(weights.astype(np.float32), f"w{place}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{place}"], [f"y{place}"], name=f"layer{place}"))
        nodes.append(helper.make_node("Tanh", [f"y{place}"], [f"z{place}"], name=f"tanh{place}"))
        last = f"z{place}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "chain",
        [value("x", TensorProto.FLOAT, [1, WIDTH])],
        [value(last, TensorProto.FLOAT, [1, WIDTH])],
        tensors,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


class Sweeping:
    """A folder with a sweep, and the command line in it."""

    def __init__(self, folder: Path, commands: OneProcess | None) -> None:
        self._project = Project(folder, commands)
        self.folder = folder
        self.recipe = json.loads(json.dumps(SWEEP))
        chain(folder / "chain.onnx")

    def run(self, *arguments: str, code: int = 0) -> Any:
        done = self._project.run(*arguments, "--format", "json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def build(self, *, code: int = 0, **changes: Any) -> Any:
        self.recipe |= changes
        (self.folder / "sweep.yaml").write_text(yaml.safe_dump(self.recipe), encoding="utf-8")
        return self.run("build", "-c", "sweep.yaml", "-o", "out", code=code)

    def note(self) -> Any:
        return json.loads((self.folder / "out/best/chain/winner.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sweeping(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Sweeping:
    return Sweeping(tmp_path_factory.mktemp("goals"), commands)


@pytest.fixture(scope="module")
def everything(sweeping: Sweeping) -> Any:
    """The sweep in which every number of nodes was tried."""
    return sweeping.build()


def ran(sweep: Any) -> dict[str, int]:
    """Return the number of stages that ran, by name."""
    found: dict[str, int] = {}
    for cell in sweep["cells"]:
        for stage in cell["stages"]:
            if stage["status"] == "ran":
                found[stage["stage"]] = found.get(stage["stage"], 0) + 1
    return found


def cosines(sweep: Any) -> list[float]:
    """Return the cosine of the plain cell, followed by those with one more node in float each."""
    (goal,) = sweep["goals"]
    by_name = {one["cell"]: one["values"]["cosine"] for one in goal["candidates"]}
    return [by_name["chain/w8a8/cpu"], *(by_name[f"chain/w8a8/cpu+{count}in32"] for count in range(1, MOST + 1))]


def test_trials_share_all_that_is_before_quantize(everything: Any) -> None:
    assert {
        name: count for name, count in ran(everything).items() if name in ("optimize", "calibrate", "quantize")
    } == {
        "optimize": 1,
        "calibrate": 1,
        "quantize": 1 + MOST,
    }
    trials = [cell for cell in everything["cells"] if cell["trial_of"] is not None]
    assert [cell["trial_of"] for cell in trials] == ["chain/w8a8/cpu"] * MOST
    folder = "out/chain/w8a8/cpu+1in32"
    assert trials[0]["command"] == f"winml-dag build -c {folder}/winml_build_config.json -o {folder}"


def test_bisect_finds_what_trying_everything_finds_and_runs_nothing_for_it(sweeping: Sweeping, everything: Any) -> None:
    found = cosines(everything)
    # Met by some of the trials but not by the plain cell.
    bound = max(found)
    assert found[0] < bound
    done = sweeping.build(
        search={"method": "bisect", "keep": "float", "nodes_at_most": MOST},
        goal={**SWEEP["goal"], "subject_to": {"cosine": f">={bound}"}},
    )
    assert ran(done) == {}
    (goal,) = done["goals"]
    search = goal["search"]
    holds = [cosine >= bound for cosine in found]
    assert search["tried"] == {str(count): holds[int(count)] for count in search["tried"]}
    assert holds[search["fewest"]]
    assert not holds[search["fewest"] - 1]
    assert len(search["nodes"]) == search["fewest"]
    assert goal["winner"] == search["trial"] == f"chain/w8a8/cpu+{search['fewest']}in32"


def test_the_winner_is_put_in_place_and_builds_again_from_its_own_configuration(sweeping: Sweeping) -> None:
    best = sweeping.folder / "out/best/chain"
    winner = sweeping.note()["cell"]
    assert (best / "model.onnx").read_bytes() == (sweeping.folder / "out" / winner / "model.onnx").read_bytes()
    settings = json.loads((best / "winml_build_config.json").read_text(encoding="utf-8"))
    assert len(settings["quant"]["nodes_to_exclude"]) == int(winner.partition("+")[2].removesuffix("in32"))
    again = sweeping.run("build", "-c", "out/best/chain/winml_build_config.json", "-o", "again")
    assert {stage["status"] for stage in again["builds"][0]["stages"]} <= {"reused", "skipped"}
    assert (sweeping.folder / "again/model.onnx").read_bytes() == (best / "model.onnx").read_bytes()


def test_another_winner_takes_the_place_of_the_last(sweeping: Sweeping) -> None:
    done = sweeping.build(goal={**SWEEP["goal"], "subject_to": {"cosine": ">=0.5"}})
    assert ran(done) == {}
    (goal,) = done["goals"]
    assert goal["winner"] == "chain/w8a8/cpu" == sweeping.note()["cell"]
    best = sweeping.folder / "out/best/chain"
    assert (best / "model.onnx").read_bytes() == (sweeping.folder / "out/chain/w8a8/cpu/model.onnx").read_bytes()
    assert goal["search"]["why"] == "no cell misses only a bound on quality, so there was nothing to search"


def test_without_a_winner_the_nearest_is_named_and_the_run_fails(sweeping: Sweeping) -> None:
    sweeping.recipe.pop("search")
    done = sweeping.build(code=1, goal={**SWEEP["goal"], "subject_to": {"size": "<=10"}})
    (goal,) = done["goals"]
    assert (goal["winner"], goal["folder"]) == (None, None)
    assert goal["why"].startswith("no cell meets the bounds; chain/w8a8/cpu comes nearest: size is ")
    assert goal["why"].endswith("which won an earlier run")


def test_what_a_sweep_measures_the_command_finds_and_the_other_way_round(sweeping: Sweeping) -> None:
    def perf(cell: str) -> Any:
        settings = ("--iterations", "3", "--warmup", "0", "--loads", "1", "--threads", "1")
        return sweeping.run("perf", f"out/{cell}", *settings)

    before = perf("chain/fp32/cpu")
    done = sweeping.build(measure=["perf", "eval"], goal={"minimize": "latency", "folder": "fastest"})
    found = {cell["name"]: cell["perf"] for cell in done["cells"]}
    assert {name: told["measured"] for name, told in found.items()} == {
        "chain/fp32/cpu": "cached",
        "chain/w8a8/cpu": "live",
    }
    (goal,) = done["goals"]
    p50 = {one["cell"]: one["values"]["latency"] for one in goal["candidates"]}
    assert goal["winner"] == min(p50, key=lambda name: p50[name])
    assert before["latency_ms"]["p50"] == p50["chain/fp32/cpu"]
    after = perf("chain/w8a8/cpu")
    assert (after["measured"], after["latency_ms"]["p50"]) == ("cached", p50["chain/w8a8/cpu"])
    # What cannot be measured is reported, and is no failure unless a goal needs it.
    assert {cell["eval"]["error"].partition(".")[0] for cell in done["cells"]} == {
        "There is no labelled data to evaluate on"
    }
