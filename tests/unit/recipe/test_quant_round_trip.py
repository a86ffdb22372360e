"""The quantization section survives a round trip, whatever its contents and position."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_strategies import WORDS

from winml_dag import WinMLCompileConfig, WinMLQuantizationConfig
from winml_dag.errors import RecipeError
from winml_dag.recipe.load import parse_recipe
from winml_dag.recipe.schema import Compile, Quant, Recipe

_COUNTS = st.integers(1, 2**31 - 1)
_BOOLEANS = st.booleans()
_SWITCHES = st.none() | _BOOLEANS
_TEXTS = st.none() | WORDS
_INTEGERS = st.sampled_from(["uint8", "int8", "uint16", "int16"])
_WEIGHTS = st.sampled_from(["uint4", "int4"]) | _INTEGERS
_LISTS = st.none() | st.lists(WORDS, max_size=3)
_OVERRIDES = st.fixed_dictionaries(
    {}, optional={"weight_type": st.none() | _WEIGHTS, "activation_type": st.none() | _INTEGERS}
)

# Every field, with all valid values.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "mode": st.sampled_from(["static", "dynamic", "rtn", "fp16", "qdq"]),
    "samples": _COUNTS,
    "calibration_method": st.sampled_from(["minmax", "entropy", "percentile"]),
    "calibration_data": _TEXTS,
    "task": _TEXTS,
    "model_id": _TEXTS,
    "dataset_name": _TEXTS,
    "dataset_subset": _TEXTS,
    "dataset_split": WORDS,
    "columns_mapping": st.none() | st.dictionaries(WORDS, WORDS, max_size=3),
    "model_type": _TEXTS,
    "weight_type": st.none() | _WEIGHTS,
    "activation_type": st.none() | _INTEGERS,
    "per_channel": _SWITCHES,
    "symmetric": _SWITCHES,
    "weight_symmetric": _SWITCHES,
    "activation_symmetric": _SWITCHES,
    "op_types_to_quantize": _LISTS,
    "op_types_to_exclude": _LISTS,
    "nodes_to_exclude": _LISTS,
    "node_overrides": st.none() | st.dictionaries(WORDS, _OVERRIDES, max_size=3),
    "equalize": _SWITCHES,
    "rtn_bits": st.sampled_from([4, 8]),
    "rtn_block_size": _COUNTS,
    "rtn_symmetric": _BOOLEANS,
    "rtn_accuracy_level": st.integers(0, 4),
    "rtn_float_type": st.sampled_from(["float32", "float16"]),
    "reduce_range": _BOOLEANS,
    "fp16_keep_io_types": _BOOLEANS,
    "fp16_op_block_list": _LISTS,
    "save_calibration": _BOOLEANS,
    "distribution": st.sampled_from(["uniform", "normal"]),
    "seed": st.none() | st.integers(0, 2**32 - 1),
    "calibration_load_path": _TEXTS,
    "calibration_save_path": _TEXTS,
}
SECTIONS = st.fixed_dictionaries({}, optional=FIELDS)


def test_every_field_is_among_those_tried() -> None:
    assert FIELDS.keys() == Quant.model_fields.keys()


def _again(recipe: Recipe) -> Recipe:
    return parse_recipe(json.dumps(recipe.to_dict()), "again.json", "json")


@given(written=SECTIONS)
@settings(deadline=None)
def test_loading_writing_and_loading_is_the_identity_in_quant(written: dict[str, Any]) -> None:
    recipe = parse_recipe(json.dumps({"quant": written}), "recipe.json", "json")
    again = _again(recipe)
    assert recipe.quant is not None
    assert again == recipe
    assert again.quant is not None
    assert again.quant.model_fields_set == recipe.quant.model_fields_set == written.keys()


@given(written=SECTIONS)
@settings(deadline=None)
def test_loading_writing_and_loading_is_the_identity_in_compile(written: dict[str, Any]) -> None:
    recipe = parse_recipe(json.dumps({"compile": {"quant_config": written}}), "recipe.json", "json")
    again = _again(recipe)
    assert again == recipe
    assert again.compile is not None
    assert again.compile.quant_config == Quant.model_validate(written)


@given(written=SECTIONS)
@settings(deadline=None)
def test_the_class_that_python_has_goes_to_a_mapping_and_back(written: dict[str, Any]) -> None:
    config = WinMLQuantizationConfig.from_dict(written)
    again = WinMLQuantizationConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.model_fields_set == config.model_fields_set


# Other fields of compile, next to which its quantization must survive.
_COMPILE = st.fixed_dictionaries(
    {},
    optional={
        "execution_provider": _TEXTS,
        "provider_options": st.dictionaries(WORDS, WORDS, max_size=2),
        "embed_context": _BOOLEANS,
        "validate": _BOOLEANS,
        "ep_device": st.none() | st.fixed_dictionaries({}, optional={"ep": _TEXTS, "source": _TEXTS}),
        "quantize": _SWITCHES,
        "quant_config": st.none() | SECTIONS,
    },
)


@given(written=_COMPILE)
@settings(deadline=None)
def test_compile_goes_to_a_mapping_and_back_with_its_quantization(written: dict[str, Any]) -> None:
    config = WinMLCompileConfig.from_dict(written)
    plain = json.loads(json.dumps(config.to_dict()))
    again = WinMLCompileConfig.from_dict(plain)
    assert again == config
    assert again.model_fields_set == config.model_fields_set
    if written.get("quant_config") is not None:
        inner = WinMLQuantizationConfig.from_dict(written["quant_config"])
        assert plain["quant_config"] == inner.to_dict()
        assert again.quant_config == inner


def test_the_nested_form_of_compile_comes_back_flat() -> None:
    nested = {"ep_config": {"provider": "qnn", "embed_context": True}, "quant_config": {"samples": 3}}
    assert WinMLCompileConfig.from_dict(nested).to_dict() == {
        "execution_provider": "qnn",
        "embed_context": True,
        "quant_config": {"samples": 3},
    }


def test_the_other_name_of_a_field_is_read_and_never_written() -> None:
    assert WinMLQuantizationConfig.from_dict({"load_path": "r.json"}).to_dict() == {"calibration_load_path": "r.json"}
    with pytest.raises(RecipeError, match="is another name of 'calibration_load_path'"):
        WinMLQuantizationConfig.from_dict({"load_path": "r.json", "calibration_load_path": "r.json"})


@given(written=SECTIONS)
@settings(deadline=None)
def test_both_places_take_the_very_same_section(written: dict[str, Any]) -> None:
    """One class: no field has a meaning or default in one position that it lacks in the other."""
    recipe = Recipe.model_validate({"quant": written})
    nested = Recipe.model_validate({"compile": {"quant_config": written}})
    assert isinstance(nested.compile, Compile)
    assert type(recipe.quant) is type(nested.compile.quant_config) is WinMLQuantizationConfig
    assert recipe.quant == nested.compile.quant_config


def test_what_is_wrong_with_a_mapping_is_told_all_at_once() -> None:
    with pytest.raises(RecipeError) as caught:
        WinMLQuantizationConfig.from_dict({"sampels": 3, "mode": "banana"})
    assert "sampels: unknown key; did you mean 'samples'?" in str(caught.value)
    assert "'banana' is not one of static, dynamic, rtn, fp16" in str(caught.value)
