"""Goals of a sweep: the winner is in its shipping folder, and a search finds the fewest sufficient nodes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oneprocess import OneProcess
from onnx_samples import save
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
    weights = {f"w{place}": random.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH) for place in range(LAYERS)}
    for place, values in enumerate(weights.values()):
        values[:, 0] *= 4.0**place
    nodes = "".join(
        f" [layer{place}] y{place} = MatMul(z{place}, w{place}) [tanh{place}] z{place + 1} = Tanh(y{place})"
        for place in range(LAYERS)
    )
    text = f"chain (float[1, {WIDTH}] z0) => (float[1, {WIDTH}] z{LAYERS}) {{{nodes} }}"
    save(path, text, **{name: values.astype(np.float32) for name, values in weights.items()})


class Sweeping(Project):
    """A folder with a sweep, and the command line in it."""

    def build_with(self, *, code: int = 0, **changes: Any) -> Any:
        """Build the sweep with these keys, which later builds have too."""
        sweep = {**(self.recipe if self.recipe_file.exists() else SWEEP), **changes}
        self.save("recipe.yaml", sweep)
        return self.told("build", "-c", "recipe.yaml", "-o", "out", code=code)

    @property
    def shipped(self) -> bytes:
        return (self.out / "best/chain/model.onnx").read_bytes()

    def model_of(self, cell: str) -> bytes:
        return (self.out / cell / "model.onnx").read_bytes()


def ran(sweep: Any) -> Counter[str]:
    """Return the number of stages that ran, by name."""
    return Counter(stage["stage"] for cell in sweep["cells"] for stage in cell["stages"] if stage["status"] == "ran")


def test_goals_and_searches_share_work_of_sweep(tmp_path: Path, commands: OneProcess | None) -> None:
    sweeping = Sweeping(tmp_path, commands)
    chain(tmp_path / "chain.onnx")

    # Every number of nodes is tried. The trials share all that is before quantize.
    everything = sweeping.build_with()
    counts = ran(everything)
    assert (counts["optimize"], counts["calibrate"], counts["quantize"]) == (1, 1, 1 + MOST)
    trials = [cell for cell in everything["cells"] if cell["trial_of"] is not None]
    assert [cell["trial_of"] for cell in trials] == ["chain/w8a8/cpu"] * MOST
    folder = "out/chain/w8a8/cpu+1in32"
    assert trials[0]["command"] == f"winml-dag build -c {folder}/winml_build_config.json -o {folder}"

    # Bisect finds what that found, and runs nothing for it.
    (goal,) = everything["goals"]
    by_name = {one["cell"]: one["values"]["cosine"] for one in goal["candidates"]}
    found = [by_name["chain/w8a8/cpu"], *(by_name[f"chain/w8a8/cpu+{count}in32"] for count in range(1, MOST + 1))]
    bound = max(found)
    assert found[0] < bound, "met by some of the trials but not by the plain cell"
    done = sweeping.build_with(
        search={"method": "bisect", "keep": "float", "nodes_at_most": MOST},
        goal={**SWEEP["goal"], "subject_to": {"cosine": f">={bound}"}},
    )
    assert not ran(done)
    (goal,) = done["goals"]
    search = goal["search"]
    holds = [cosine >= bound for cosine in found]
    assert search["tried"] == {str(count): holds[int(count)] for count in search["tried"]}
    assert holds[search["fewest"]]
    assert not holds[search["fewest"] - 1]
    assert len(search["nodes"]) == search["fewest"]
    winner = f"chain/w8a8/cpu+{search['fewest']}in32"
    assert goal["winner"] == search["trial"] == sweeping.json("out/best/chain/winner.json")["cell"] == winner

    # The winner is put in place, and builds again from its own configuration.
    assert sweeping.shipped == sweeping.model_of(winner)
    settings = sweeping.json("out/best/chain/winml_build_config.json")
    assert len(settings["quant"]["nodes_to_exclude"]) == search["fewest"]
    again = sweeping.build(recipe="out/best/chain/winml_build_config.json", out="again")
    assert {stage["status"] for stage in again.stages} <= {"reused", "skipped"}
    assert (sweeping.folder / "again/model.onnx").read_bytes() == sweeping.shipped

    # Another winner takes its place.
    done = sweeping.build_with(goal={**SWEEP["goal"], "subject_to": {"cosine": ">=0.5"}})
    assert not ran(done)
    (goal,) = done["goals"]
    assert goal["winner"] == "chain/w8a8/cpu" == sweeping.json("out/best/chain/winner.json")["cell"]
    assert sweeping.shipped == sweeping.model_of("chain/w8a8/cpu")
    assert goal["search"]["why"] == "no cell misses only a bound on quality, so there was nothing to search"

    # Without a winner the nearest is named, and the run fails.
    done = sweeping.build_with(code=1, search=None, goal={**SWEEP["goal"], "subject_to": {"size": "<=10"}})
    (goal,) = done["goals"]
    assert (goal["winner"], goal["folder"]) == (None, None)
    assert goal["why"].startswith("no cell meets the bounds; chain/w8a8/cpu comes nearest: size is ")
    assert goal["why"].endswith("which won an earlier run")

    # What a sweep measures the command finds, and the other way round.
    def perf(cell: str) -> Any:
        return sweeping.told(
            "perf", f"out/{cell}", "--iterations", "3", "--warmup", "0", "--loads", "1", "--threads", "1"
        )

    before = perf("chain/fp32/cpu")
    done = sweeping.build_with(measure=["perf", "eval"], goal={"minimize": "latency", "folder": "fastest"})
    measured = {cell["name"]: cell["perf"]["measured"] for cell in done["cells"]}
    assert measured == {"chain/fp32/cpu": "cached", "chain/w8a8/cpu": "live"}
    (goal,) = done["goals"]
    p50 = {one["cell"]: one["values"]["latency"] for one in goal["candidates"]}
    assert goal["winner"] == min(p50, key=lambda name: p50[name])
    assert before["latency_ms"]["p50"] == p50["chain/fp32/cpu"]
    after = perf("chain/w8a8/cpu")
    assert (after["measured"], after["latency_ms"]["p50"]) == ("cached", p50["chain/w8a8/cpu"])
    # What cannot be measured is reported, and is no failure unless a goal needs it.
    errors = {cell["eval"]["error"].partition(".")[0] for cell in done["cells"]}
    assert errors == {"There is no labelled data to evaluate on"}
