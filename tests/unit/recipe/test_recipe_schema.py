"""The schema of recipes: what is accepted, rejected in which words, and written out again; names of precisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from recipe_strategies import recipes, sections

from winml_dag import WinMLCompileConfig, WinMLQuantizationConfig
from winml_dag.errors import RecipeError, UsageError
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.recipe.load import parse_recipe
from winml_dag.recipe.precision import PRECISIONS, chained, parse_precision, precision_name
from winml_dag.recipe.schema import Export, Loader, Quant, Recipe

# A configuration written by winml-cli, with every field that it writes.
WINML_CONFIG = """
loader: {task: fill-mask, model_class: AutoModelForMaskedLM, model_type: bert}
export:
  {opset_version: 17, batch_size: 1, export_params: true, do_constant_folding: true, verbose: false, dynamo: false,
   enable_hierarchy_tags: true, clean_onnx: false, hierarchy_tag_format: full,
   compatibility: {transformers_attention: eager},
   input_tensors: [
     {name: input_ids, dtype: int32, shape: [1, 512], value_range: [0, 30522]},
     {name: attention_mask, dtype: int32, shape: [batch, 512], value_range: [0, 2]}],
   output_tensors: [{name: logits}],
   dynamic_axes: {input_ids: {"0": batch}}}
optim: {clamp_constant_values: true, gelu_fusion: false}
quant:
  {mode: qdq, samples: 10, calibration_method: minmax, task: fill-mask, model_id: org/bert, model_type: bert,
   dataset_name: null, weight_type: uint8, activation_type: uint16, per_channel: false, symmetric: false,
   weight_symmetric: null, activation_symmetric: null, save_calibration: false, distribution: uniform, seed: null,
   calibration_load_path: null, calibration_save_path: null, op_types_to_quantize: null, nodes_to_exclude: null,
   fp16_keep_io_types: true, fp16_op_block_list: null, rtn_bits: 4, rtn_block_size: 128, rtn_symmetric: true,
   rtn_accuracy_level: 0, reduce_range: false}
compile:
  {execution_provider: qnn, provider_options: {soc_model: "60"}, provider_option_file_keys: [backend_path],
   enable_ep_context: true, embed_context: false, compiler: ort, qnn_sdk_root: null, device: npu,
   ep_device: {ep: QNNExecutionProvider, device: npu, source: null}, validate: false}
eval:
  {runtime: winml, task: fill-mask, device: npu,
   dataset: {path: org/data, columns_mapping: {input_column: text}, label_mapping: {negative: 0, positive: 1},
             build_script: build.py}}
auto: false
skip_optimize: true
"""


def recipe(**sections: Any) -> Recipe:
    return Recipe.model_validate(sections)


def test_winml_cli_config_is_a_valid_recipe() -> None:
    found: Any = parse_recipe(WINML_CONFIG, "config.yaml", "yaml")
    assert (found.quant.mode, found.quant.activation_type) == ("static", "uint16")
    assert found.compile.validation is False
    assert found.export.input_tensors[1].shape == ("batch", 512)
    assert found.export.input_tensors[0].value_range == (0.0, 30522.0)
    assert found.eval.dataset.label_mapping == {"negative": 0, "positive": 1}


def test_null_section_equals_missing_and_alias_equals_new_name() -> None:
    for section in ("quant", "compile", "eval"):
        missing, null = recipe(), recipe(**{section: None})
        assert missing == null
        assert section not in missing.model_fields_set
        assert section in null.model_fields_set
    assert recipe().export == Export()
    assert recipe(export=None).export is None, "it starts from ONNX"
    found: Any = recipe(loader=None, optim=None, eval={"dataset": {"path": "org/set", "split": None}})
    assert (found.loader, found.optim, found.eval.dataset.split) == (Loader(), {}, "validation")
    assert recipe(quant={"calibration_samples": 3}) == recipe(quant={"samples": 3})
    with pytest.raises(ValidationError, match="frozen"):
        found.auto = False


def test_nested_compile_form_equals_flat_form() -> None:
    fields = {"embed_context": True, "provider_options": {"soc_model": "60"}}
    nested: Any = recipe(compile={"ep_config": {"provider": "qnn", **fields}, "validate": False})
    flat: Any = recipe(compile={"execution_provider": "qnn", **fields, "validate": False})
    assert nested == flat
    assert nested.compile.model_fields_set == flat.compile.model_fields_set


@pytest.mark.parametrize(("written", "seed"), [(True, 0), ({}, 0), (None, None), (False, None), ({"seed": 7}, 7)])
def test_random_weights_accept_short_and_full_form(written: object, seed: int | None) -> None:
    found = recipe(loader={"random_weights": written}).loader.random_weights
    assert (None if found is None else found.seed) == seed
    overrides = {"hidden_size": 32, "id2label": {"0": "cat"}, "layers": [1, 2.5, None, True]}
    found = recipe(loader={"random_weights": {"config": overrides}}).loader.random_weights
    assert found is not None
    assert found.config == overrides


def test_every_optim_flag_is_accepted_and_unknown_is_refused() -> None:
    assert recipe(optim=dict.fromkeys(CATALOG, True)).optim == dict.fromkeys(CATALOG, True)
    with pytest.raises(ValidationError, match="unknown capability; did you mean 'gelu_fusion'"):
        recipe(optim={"gelu_fusionn": True})


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("quant: {samples: ten}", "quant.samples: expected a whole number, got 'ten'"),
        ("quant: {samples: 1.0}", "quant.samples: expected a whole number, got 1.0"),
        ("quant: {samples: true}", "quant.samples: expected a whole number, got true"),
        ("quant: {samples: 0}", "quant.samples: must be greater than 0, got 0"),
        ("quant: {per_channel: 1}", "quant.per_channel: expected true or false, got 1"),
        ("quant: {mode: banana}", "quant.mode: 'banana' is not one of static, dynamic, rtn, fp16"),
        ("quant: {sampels: 1}", "quant.sampels: unknown key; did you mean 'samples'?"),
        ("quant: {op_types_to_quantize: Conv}", "quant.op_types_to_quantize: expected a list, got 'Conv'"),
        ("quant: 3", "quant: expected keys and values, got 3"),
        ("quant: {rtn_accuracy_level: 5}", "quant.rtn_accuracy_level: must be less than or equal to 4, got 5"),
        (
            "quant: {samples: 1, calibration_samples: 1}",
            "quant.calibration_samples: is another name of 'samples', which is there too; keep one of them",
        ),
        ("loader: {revision: 1234}", "loader.revision: expected text, got 1234; put it in quotes"),
        ("loader: {task: ' '}", "loader.task: must not be empty"),
        ("export: {opset_version: 8}", "export.opset_version: must be greater than or equal to 9, got 8"),
        ("export: {input_tensors: [{}]}", "export.input_tensors[0].name: is required"),
        (
            "export: {input_tensors: [{name: a, shape: [1, -1]}]}",
            "export.input_tensors[0].shape[1]: a dimension must be greater than 0, got -1",
        ),
        (
            "export: {input_tensors: [{name: a, shape: [true]}]}",
            "export.input_tensors[0].shape[0]: expected a whole number, or the name of a dynamic axis",
        ),
        (
            "export: {input_tensors: [{name: a, dtype: int33}]}",
            "export.input_tensors[0].dtype: 'int33' is not one of float32, float16, bfloat16, float64, int64, int32, "
            "int16, int8, uint64, uint32, uint16, uint8, bool; did you mean 'int32'?",
        ),
        ("export: {dynamic_axes: {a: {b: c}}}", "export.dynamic_axes.a.b: an axis is a whole number, counted from 0"),
        ("export: {compatibility: {attention: 1}}", "export.compatibility.attention: unknown key"),
        ("compile: {provider_options: {a: 1}}", "compile.provider_options.a: expected text, got 1; put it in quotes"),
        (
            "compile: {ep_config: {compiler: qart}}",
            "compile.ep_config.compiler: 'qart' is not one of ort, ort_session, qairt; did you mean 'qairt'?",
        ),
        ("compile: {ep_config: {providr: a}}", "compile.ep_config.providr: unknown key; did you mean 'provider'?"),
        (
            "compile: {execution_provider: dml, ep_config: {provider: qnn}}",
            "compile.ep_config.provider: differs from compile.execution_provider; keep one of the two",
        ),
        (
            "{quant: {}, compile: {quant_config: {}}}",
            "compile.quant_config: there is a quant section as well; keep one of the two",
        ),
        ("eval: {model_path: [a]}", "eval.model_path: expected a path, or a path for each role"),
        ("eval: {precision: w8a9}", "eval.precision: 'w8a9' is not a precision; did you mean 'w8a8'?"),
        ("device: NPU", "device: 'NPU' is not one of auto, cpu, gpu, npu; did you mean 'npu'?"),
        ("ep: ''", "ep: must not be empty"),
        ("validate: {min_cosine: 1.5}", "validate.min_cosine: must be less than or equal to 1, got 1.5"),
        ("validate: {max_abs_error: -1}", "validate.max_abs_error: must be greater than or equal to 0, got -1"),
        ("validate: {min_top1_agreement: 90}", "validate.min_top1_agreement: must be less than or equal to 1, got 90"),
        ("optimm: {}", "optimm: unknown key; did you mean 'optim'?"),
        ("components: {a: {qunat: {}}}", "components.a.qunat: unknown key; did you mean 'quant'?"),
        ("auto: yes", "auto: expected true or false, got 'yes'"),
    ],
)
def test_field_error_is_reported_with_recipe_key(line: str, complaint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(f"# a comment\n{line}\n", "bert.yaml", "yaml")
    assert caught.value.problems == (f"bert.yaml:2: {complaint}",)


RECIPES = Path(__file__).resolve().parents[3] / "recipes"
SHIPPED = sorted(RECIPES.rglob("*.yaml"))


def errors(kind: str, written: dict[str, Any]) -> list[str]:
    # Imported here: with all formats that it finds installed, it takes seconds.
    from jsonschema import Draft202012Validator

    schema = json.loads((RECIPES / f"{kind}.schema.json").read_text(encoding="utf-8"))
    return [error.message for error in Draft202012Validator(schema).iter_errors(written)]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_shipped_recipe_names_its_schema_and_is_valid(path: Path) -> None:
    kind = "sweep" if path.parent.name == "sweeps" else "recipe"
    text = path.read_text(encoding="utf-8")
    assert f"# yaml-language-server: $schema=../{kind}.schema.json\n" in text
    assert errors(kind, yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("recipe", {"sampels": 8}),
        ("recipe", {"quant": {"samples": "8"}}),
        ("recipe", {"matrix": {"precision": ["fp32"]}}),
        ("sweep", {"matrix": {"precision": "fp32"}}),
        ("sweep", {"matrix": {}, "measure": ["speed"]}),
    ],
)
def test_schema_rejects_mistakes(kind: str, written: dict[str, Any]) -> None:
    assert errors(kind, written)


def fields_set(value: object) -> Any:
    """Return the names of the set fields, at every level."""
    if isinstance(value, BaseModel):
        return {name: fields_set(getattr(value, name)) for name in value.model_fields_set}
    return [fields_set(item) for item in value] if isinstance(value, tuple) else None


@settings(max_examples=50)
@given(written=recipes)
def test_recipe_round_trips_through_dict(written: dict[str, Any]) -> None:
    recipe = parse_recipe(json.dumps(written), "recipe.json", "json")
    again = Recipe.model_validate(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe
    assert fields_set(again) == fields_set(recipe)


@settings(max_examples=50)
@given(written=sections(WinMLCompileConfig))
def test_config_classes_round_trip_through_dict(written: dict[str, Any]) -> None:
    config = WinMLCompileConfig.from_dict(written)
    plain = json.loads(json.dumps(config.to_dict()))
    again = WinMLCompileConfig.from_dict(plain)
    assert again == config
    assert fields_set(again) == fields_set(config)
    if written.get("quant_config") is not None:
        quant = WinMLQuantizationConfig.from_dict(written["quant_config"])
        assert plain["quant_config"] == quant.to_dict()
        assert again.quant_config == quant
        # One class: no field has a meaning or default in one position that it lacks in the other.
        assert Recipe.model_validate({"quant": written["quant_config"]}).quant == again.quant_config


def test_to_dict_writes_only_set_fields_with_winml_cli_names() -> None:
    nested = {"ep_config": {"provider": "qnn", "embed_context": True}, "validate": False}
    flat = {"execution_provider": "qnn", "embed_context": True, "validate": False}
    recipe = Recipe.model_validate({"export": None, "quant": {"mode": "qdq"}, "compile": nested})
    assert recipe.to_dict() == {"export": None, "quant": {"mode": "static"}, "compile": flat}
    assert WinMLCompileConfig.from_dict({**nested, "quant_config": {"samples": 3}}).to_dict() == {
        **flat,
        "quant_config": {"samples": 3},
    }
    assert Recipe().to_dict() == {}
    assert WinMLQuantizationConfig.from_dict({"load_path": "r.json"}).to_dict() == {"calibration_load_path": "r.json"}
    # What is put into a recipe later is written too.
    assert Recipe().model_copy(update={"quant": Quant(mode="fp16")}).to_dict() == {"quant": {"mode": "fp16"}}


def test_all_mapping_problems_are_reported_at_once() -> None:
    with pytest.raises(RecipeError, match="is another name of 'calibration_load_path'"):
        WinMLQuantizationConfig.from_dict({"load_path": "r.json", "calibration_load_path": "r.json"})
    with pytest.raises(RecipeError) as caught:
        WinMLQuantizationConfig.from_dict({"sampels": 3, "mode": "banana"})
    assert "sampels: unknown key; did you mean 'samples'?" in str(caught.value)
    assert "'banana' is not one of static, dynamic, rtn, fp16" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "mode", "weight_bits", "activation_bits"),
    [
        ("fp32", None, None, None),
        ("fp16", "fp16", None, None),
        ("dynamic", "dynamic", None, None),
        ("int8", "static", 8, 8),
        ("uint8", "static", 8, 8),
        ("w8a8", "static", 8, 8),
        ("w8a16", "static", 8, 16),
        ("w16a8", "static", 16, 8),
        ("int16", "static", 16, 16),
        ("w16a16", "static", 16, 16),
        ("int4", "rtn", 4, 32),
        ("w4a32", "rtn", 4, 32),
        ("w4a16", "rtn", 4, 16),
        ("w4a8", "static", 4, 8),
    ],
)
def test_precision_name_gives_mode_and_bit_widths(
    name: str, mode: str | None, weight_bits: int | None, activation_bits: int | None
) -> None:
    found = parse_precision(name)
    assert (found.mode, found.weight_bits, found.activation_bits) == (mode, weight_bits, activation_bits)


def test_equivalent_precision_names_are_one_precision() -> None:
    assert {found.name for found in PRECISIONS.values()} <= PRECISIONS.keys()
    for names in (("int8", "uint8", "w8a8"), ("int16", "w16a16"), ("int4", "w4a32")):
        assert len({parse_precision(name) for name in names}) == 1


@pytest.mark.parametrize(
    ("quant", "name"),
    [
        (None, "fp32"),
        (Quant(weight_type="int8", activation_type="int16"), "w8a16"),
        (Quant(weight_type="int4", activation_type="uint16"), "w4a16"),
        (Quant(mode="rtn", rtn_bits=8), "w8a32"),
        (Quant(mode="rtn", rtn_float_type="float16"), "w4a16"),
        (Quant(mode="dynamic"), "dynamic"),
    ],
)
def test_quant_section_is_named_by_its_bit_widths(quant: Quant | None, name: str) -> None:
    assert precision_name(quant) == name


def test_unknown_precision_suggests_nearest() -> None:
    with pytest.raises(UsageError, match="'w8a1' is not a precision; did you mean 'w8a16'"):
        parse_precision("w8a1")
    with pytest.raises(UsageError, match="known are auto, fp32"):
        parse_precision("banana")
    with pytest.raises(UsageError, match="'int5' is not a precision"):
        chained(["int5", "fp16"])


_NAMES = st.sampled_from(sorted(PRECISIONS))


def test_chain_is_one_precision_or_int4_then_fp16() -> None:
    assert chained([]) == (None, {}), "the choice is left to others"
    for name in PRECISIONS:
        assert chained([name]) == (name, {})
    for four_bits in ("int4", "w4a32"):
        assert chained([four_bits, "fp16"]) == (four_bits, {"rtn_float_type": "float16"})


@given(
    names=st.lists(_NAMES, min_size=2, max_size=4).filter(
        lambda names: names not in (["int4", "fp16"], ["w4a32", "fp16"])
    )
)
def test_any_other_precision_chain_is_refused(names: list[str]) -> None:
    with pytest.raises(UsageError, match=r"^-p .*: .*\. The chain there is: -p int4 -p fp16, which is w4a16\.$"):
        chained(names)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["int8", "int4"], "a model in int8 is quantized already, so nothing can follow"),
        (["w4a16", "fp16"], "a model in w4a16 is quantized already"),
        (["fp16", "int4"], "what is in float16 has no float32 left to quantize"),
        (["int4", "int8"], "after int4 only fp16 can follow, once"),
        (["int4", "fp16", "fp16"], "after int4 only fp16 can follow, once"),
        (["fp32", "int8"], "fp32 is not a quantization"),
    ],
)
def test_refused_chain_explains_conflict(names: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        chained(names)
