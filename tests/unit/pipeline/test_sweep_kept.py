"""The recipe of a trial: that of its cell, with the fields of ``quant`` that a user would write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from winml_dag.pipeline.sweep.search import FLOAT, SIXTEEN, Keeping, Ranked, with_kept
from winml_dag.recipe.goal import Search
from winml_dag.recipe.load import LoadedRecipe
from winml_dag.recipe.schema import Recipe

SIXTEEN_BITS = Keeping(SIXTEEN, "uint16")


def trial(recipe: dict[str, Any], keeping: Keeping, *nodes: str) -> Any:
    loaded = LoadedRecipe(Path("sweep.yaml"), Recipe.model_validate(recipe), "yaml")
    return with_kept(loaded, nodes, keeping).recipe.to_dict()


@pytest.mark.parametrize(
    ("recipe", "changed"),
    [
        (
            {"model": "a.onnx", "precision": "w8a8"},
            {"quant": {"node_overrides": {"x": {"activation_type": "uint16"}, "y/*": {"activation_type": "uint16"}}}},
        ),
        (
            {"quant": {"samples": 4, "node_overrides": {"x": {"weight_type": "int8"}, "z": {"weight_type": "int8"}}}},
            {
                "quant": {
                    "samples": 4,
                    "node_overrides": {
                        "x": {"weight_type": "int8", "activation_type": "uint16"},
                        "z": {"weight_type": "int8"},
                        "y/*": {"activation_type": "uint16"},
                    },
                }
            },
        ),
        (
            {"compile": {"quant_config": {"samples": 4}}},
            {
                "compile": {
                    "quant_config": {
                        "samples": 4,
                        "node_overrides": {"x": {"activation_type": "uint16"}, "y/*": {"activation_type": "uint16"}},
                    }
                }
            },
        ),
    ],
    ids=["precision alone", "overrides of its own", "the quantization of compile"],
)
def test_nodes_in_16_bits_are_added_to_what_the_recipe_says(recipe: dict[str, Any], changed: dict[str, Any]) -> None:
    assert trial(recipe, SIXTEEN_BITS, "x", "y/*") == {**recipe, **changed}


def test_nodes_in_float_are_added_to_those_that_are_left_out_already() -> None:
    found = trial({"quant": {"nodes_to_exclude": ["head", "x"], "mode": "dynamic"}}, Keeping(FLOAT), "x", "y")
    assert found == {"quant": {"nodes_to_exclude": ["head", "x", "y"], "mode": "dynamic"}}


def test_in_float_something_is_left_to_quantize() -> None:
    ranked = Ranked(tuple("abcde"), ())
    assert [ranked.most(keeping, Search()) for keeping in (SIXTEEN_BITS, Keeping(FLOAT))] == [5, 4]
