"""Components of a composite model: settings of one component reach only its own stages.

All components are exported together, so export settings reach the shared export. Whether that propagates depends on the
bytes of each component.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from memory_store import MemoryRows
from planned_keys import NO_OPTIONS, JsonRecipe, Stages, ingredients_of_all, keys, reached
from reach import NOTHING

from winml_dag.pipeline import plan
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.decisions import ResolveContext
from winml_dag.pipeline.request import Overrides
from winml_dag.pipeline.resolve import resolve
from winml_dag.recipe.load import LoadedRecipe, parse_recipe
from winml_dag.recipe.schema import Component
from winml_dag.store.digest import Fingerprints

_MASK = {"name": "attention_mask", "dtype": "int32", "shape": [1, 8]}
RECIPE: JsonRecipe = {
    "loader": {"model_type": "marian", "task": "translation", "random_weights": True},
    "ep": "qnn",
    "quant": {"samples": 4},
    "compile": {},
}

# A field of the decoder's section, its value, and the stages of the decoder that it reaches.
EDITS = (
    ("precision", "fp16", "analyze calibrate quantize validate"),
    ("export", {}, NOTHING),
    ("export", {"opset_version": 18}, "export"),
    ("export", {"input_tensors": [_MASK]}, "export"),
    ("export", {"dynamic_axes": {"attention_mask": {"1": "tokens"}}}, "export"),
    ("optim", {"gelu_fusion": True}, "optimize analyze"),
    ("quant", {"samples": 5}, "calibrate"),
    ("quant", {"mode": "fp16"}, "analyze calibrate quantize validate"),
    ("quant", {"samples": 4}, NOTHING),
    ("quant", None, "analyze calibrate quantize compile validate"),
    ("compile", None, "compile validate finalize"),
    ("compile", {"embed_context": True}, "compile"),
    ("validate", {"samples": 7}, "validate"),
    ("skip_optimize", True, "optimize analyze calibrate quantize"),
)


def planned(recipe: Mapping[str, Any], folder: Path, overrides: Overrides = NO_OPTIONS) -> BuildGraph:
    loaded = LoadedRecipe(folder / "recipe.json", parse_recipe(json.dumps(recipe), "recipe.json", "json"), "json")
    return plan.plan_build(resolve(ResolveContext.of(loaded, overrides, folder / "out")), Fingerprints(MemoryRows()))


def kept(stages: Stages) -> dict[str, str]:
    """Return the keys of all stages whose settings a build records: they include search results."""
    return {name: key for name, key in keys(stages).items() if not name.endswith(".analyze")}


def stages_of(recipe: Mapping[str, Any], folder: Path, overrides: Overrides = NO_OPTIONS) -> Stages:
    graph = planned(recipe, folder, overrides)
    return ingredients_of_all(graph.graph, graph.sources)


@pytest.mark.parametrize("edit", EDITS, ids=[f"{field}-{value}" for field, value, _ in EDITS])
def test_component_field_reaches_only_its_stages(project: Path, edit: tuple[str, Any, str]) -> None:
    field, value, expected = edit
    edited = {**RECIPE, "components": {"decoder": {field: value}}}
    found = reached(stages_of(RECIPE, project), stages_of(edited, project))
    assert found == {stage if stage == "export" else f"decoder.{stage}" for stage in expected.split()}


def test_every_component_field_is_in_table() -> None:
    names = {info.alias or name for name, info in Component.model_fields.items()}
    assert {field for field, _, _ in EDITS} == names


def test_recipe_field_reaches_components_without_override(project: Path) -> None:
    own = {**RECIPE, "components": {"decoder": {"quant": {"samples": 5}}}}
    changed = {**own, "quant": {"samples": 6}}
    assert reached(stages_of(own, project), stages_of(changed, project)) == {"encoder.calibrate"}


@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE,
        {**RECIPE, "components": {"decoder": {"quant": None, "compile": None}, "encoder": {"skip_optimize": True}}},
        {**RECIPE, "export": {"input_tensors": [_MASK], "dynamic_axes": {"input_ids": {"0": "batch"}}}},
        {
            **RECIPE,
            "export": {"input_tensors": [_MASK]},
            "components": {"decoder": {"export": {"input_tensors": [_MASK], "opset_version": 18}}},
        },
        {**RECIPE, "loader": {**RECIPE["loader"], "model_type": "clip", "task": "zero-shot-image-classification"}},
        {
            **RECIPE,
            "export": {"output_tensors": [{"name": "y"}]},
            "components": {"decoder": {"export": {"output_tensors": [{"name": "z"}]}}},
        },
        {
            **RECIPE,
            "quant": {"calibration_data": "data.npz"},
            "components": {"decoder": {"quant": {"calibration_data": None}, "validate": {"input_data": "data.npz"}}},
        },
    ],
    ids=["plain", "sections", "tensors for all", "tensors of one", "towers", "outputs of one", "data of one"],
)
def test_written_settings_give_same_keys(project: Path, recipe: Mapping[str, Any]) -> None:
    first = planned(recipe, project)
    (project / "out").mkdir(exist_ok=True)
    again = stages_of(first.summary.settings, project / "out")
    assert keys(again) == kept(ingredients_of_all(first.graph, first.sources))


def test_written_settings_with_options_give_same_keys(project: Path) -> None:
    recipe = {**RECIPE, "components": {"decoder": {"export": {"input_tensors": [_MASK]}}}}
    tensors = {"export": {"input_tensors": [{**_MASK, "shape": [1, 9]}]}}
    overrides = replace(NO_OPTIONS, precision="w8a8", compile=False, settings=tensors)
    first = planned(recipe, project, overrides)
    (project / "out").mkdir(exist_ok=True)
    again = stages_of(first.summary.settings, project / "out")
    assert keys(again) == kept(ingredients_of_all(first.graph, first.sources))


def test_single_component_has_keys_of_its_class(project: Path) -> None:
    recipe = {**RECIPE, "components": {"decoder": {"quant": {"samples": 5}}}}
    alone = stages_of(recipe, project, replace(NO_OPTIONS, submodel="decoder"))
    loader = {**RECIPE["loader"], "model_class": "MarianDecoderWrapper", "task": "text2text-generation"}
    assert keys(alone) == keys(stages_of({**RECIPE, "loader": loader, "quant": {"samples": 5}}, project))
