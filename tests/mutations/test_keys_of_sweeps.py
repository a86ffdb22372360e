"""A cell of a sweep has the same keys as the equivalent single recipe in any folder.

An edit of one field in a sweep reaches only the cells that have it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from memory_store import MemoryRows
from planned_keys import NO_OPTIONS, Stages, ingredients_of_all, keys, make_onnx, stages_of
from reach import BASES

from winml_dag.pipeline import plan, resolve
from winml_dag.pipeline.decisions import ResolveContext
from winml_dag.recipe.matrix import load_sweep
from winml_dag.store.digest import Fingerprints

SWEEP: Mapping[str, Any] = {
    "model": "onnx/model.onnx",
    "ep": "cpu",
    "validate": {"samples": 2},
    "matrix": {
        "precision": ["fp16", "w8a8"],
        "data": [
            {"name": "few", "quant": {"samples": 4}},
            {"name": "many", "quant": {"samples": 16}},
        ],
        "include": [{"precision": "w8a16", "data": "few", "quant": {"calibration_method": "entropy"}}],
    },
    "overrides": [{"when": {"precision": "w8*", "data": "many"}, "quant": {"per_channel": True}}],
}
ALL = {"fp16/few", "fp16/many", "w8a8/few", "w8a8/many", "w8a16/few"}
# Path of the edited field, its new value, and the cells that it reaches.
EDITS: Mapping[str, tuple[tuple[str | int, ...], Any, set[str]]] = {
    "a key of all": (("validate", "samples"), 3, ALL),
    "a key of all that only some read": (
        ("quant",),
        {"calibration_method": "percentile"},
        {"w8a8/few", "w8a8/many"},
    ),
    "a value": (("matrix", "data", 0, "quant", "samples"), 5, {"w8a8/few", "w8a16/few"}),
    "a plain value": (("matrix", "precision", 0), "w16a16", {"fp16/few", "fp16/many"}),
    "an included cell": (
        ("matrix", "include", 0, "quant", "calibration_method"),
        "percentile",
        {"w8a16/few"},
    ),
    "an override": (("overrides", 0, "quant", "per_channel"), False, {"w8a8/many"}),
    "what is measured": (("measure",), ["perf"], set()),
    "a goal": (("goal",), {"minimize": "size"}, set()),
    "how it is measured": (("perf",), {"warmup": 3}, set()),
    "its name": (("name",), "another", set()),
}


def cells_of(said: Mapping[str, Any], folder: Path) -> dict[str, Stages]:
    """Return the stages of every cell of a sweep in *folder*, by name."""
    path = folder / "sweep.json"
    path.write_text(json.dumps(said), encoding="utf-8")
    found: dict[str, Stages] = {}
    for cell in load_sweep(path).cells:
        build = resolve.resolve(ResolveContext.of(cell.recipe, NO_OPTIONS, folder / "out" / cell.folder))
        planned = plan.plan_build(build, Fingerprints(MemoryRows()))
        found[cell.name] = ingredients_of_all(planned.graph, planned.sources)
    return found


def edited(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    said: Any = copy.deepcopy(dict(SWEEP))
    inner = said
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return dict(said)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    make_onnx(folder / "onnx")
    return folder


@pytest.fixture(scope="module")
def unedited(model_folder: Path) -> dict[str, Stages]:
    found = cells_of(SWEEP, model_folder)
    assert found.keys() == ALL
    return found


@pytest.mark.parametrize("name", EDITS)
def test_edit_reaches_cells_with_the_field(name: str, model_folder: Path, unedited: Mapping[str, Stages]) -> None:
    path, value, reached = EDITS[name]
    after = list(cells_of(edited(path, value), model_folder).values())
    before = [keys(stages) for stages in unedited.values()]
    # Compared by position: an edit of a plain value also changes its label.
    found = {cell for cell, one, other in zip(unedited, before, after, strict=True) if one != keys(other)}
    assert found == reached


def test_cells_have_keys_of_handwritten_recipes(model_folder: Path, unedited: Mapping[str, Stages]) -> None:
    by_hand = {
        "model": "onnx/model.onnx",
        "ep": "cpu",
        "precision": "w8a8",
        "validate": {"samples": 2},
        "quant": {"samples": 16, "per_channel": True},
    }
    assert keys(unedited["w8a8/many"]) == keys(stages_of(by_hand, model_folder))


def test_base_in_other_folder_keeps_its_keys(own_project: Path) -> None:
    """File names in a base are relative to the base, not to the sweep."""
    (own_project / "sweeps").mkdir()
    for name, recipe in BASES.items():
        (own_project / "base.json").write_text(json.dumps(recipe), encoding="utf-8")
        found = cells_of({"base": "../base.json", "matrix": {"only": [{"name": "one"}]}}, own_project / "sweeps")
        assert keys(found["one"]) == keys(stages_of(recipe, own_project)), name
