"""Options that several commands share: where results go, numbers, and those that set fields of a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from winml_dag.cli import build
from winml_dag.cli.command import output_file
from winml_dag.cli.settings import BOUNDS, GROUPS, Settings, given_shapes
from winml_dag.pipeline.decisions import ResolveContext
from winml_dag.pipeline.request import Overrides
from winml_dag.pipeline.stageconfigs import export_config
from winml_dag.recipe.fields import InputDimension
from winml_dag.recipe.schema import Recipe
from winml_dag.report.provenance.document import Document, write_documents


@pytest.mark.parametrize("command", ["build --onnx m.onnx -o out.onnx", "perf m -o p.json", "eval m --output e.json"])
def test_file_name_as_output_folder_is_refused(command: str, says) -> None:
    assert f"{command.split()[-1]} is the name of a file. Give a folder." in says(*command.split(), code=2)


@pytest.mark.parametrize(
    ("given", "written"), [("a.json", "a.json"), ("lists", "lists/u.json"), ("there.d", "there.d/u.json")]
)
def test_output_folder_gets_default_file_name(given: str, written: str) -> None:
    Path("there.d").mkdir()
    assert output_file(Path(given), "u.json") == Path(written)


def test_catalog_is_written_into_folder(says) -> None:
    says("catalog", "-o", "lists")
    assert Path("lists/catalog.json").is_file()


def test_single_statement_is_written_into_folder() -> None:
    Path("there.d").mkdir()
    (path,) = write_documents(Path("there.d"), "slsa", [Document("", "{}\n")], overwrite=False)
    assert path == Path("there.d/build.slsa.json")
    assert path.read_text(encoding="utf-8") == "{}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["perf", "--duration", "inf"], "duration: must be a finite number"),
        (["perf", "--iterations", "99999999999"], "iterations: must be less than or equal to"),
        (["perf", "--batch-size", "99999999999"], "batch_size: must be less than or equal to"),
        *(
            ([command, "--stage-timeout", "nan"], "nan is not in the range")
            for command in ("perf", "eval", "reproduce")
        ),
        (["eval", "--min", "accuracy=nan"], "--min: 'nan' is not a number"),
        (["eval", "--min", "accuracy=inf"], "--min: 'inf' is not a number"),
        (["eval", "--min", "accuracy=most"], "--min: 'most' is not a number"),
    ],
)
def test_non_finite_or_oversized_number_is_refused(arguments: list[str], words: str, tells) -> None:
    command, *options = arguments
    assert words in tells(command, "nowhere.onnx", *options, code=2)["errors"][0]


def test_eval_checks_task_before_building_recipe(tells) -> None:
    # The model does not exist: any attempt to find it, in order to build it, reports that.
    Path("recipe.yaml").write_text("model: nowhere.onnx\nloader: {task: image-classification}\n", encoding="utf-8")
    assert "no labelled data" in tells("eval", "-c", "recipe.yaml", code=2)["errors"][0]
    assert "nowhere.onnx" in tells("eval", "-c", "recipe.yaml", "--mode", "compare", code=3)["errors"][0]


@pytest.mark.parametrize("command", [["perf"], ["eval", "--mode", "compare"]], ids=" ".join)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "encoder, decoder. Name one of them"),
        (["--submodel", "encodr"], "no component 'encodr'; did you mean 'encoder'"),
    ],
)
def test_multi_component_recipe_requires_submodel(command: list[str], options: list[str], words: str, tells) -> None:
    loader = "loader: {model_type: marian, task: translation, random_weights: {}}"
    Path("recipe.yaml").write_text(f"{loader}\noutput_dir: out\n", encoding="utf-8")
    assert words in tells(*command, "-c", "recipe.yaml", *options, code=2)["errors"][0]
    assert not Path("out").exists()


# Options that set fields of a recipe have the types of the schema.

SCHEMA: Any = Recipe.model_json_schema()


def _field(section: str, name: str) -> dict[str, Any]:
    """The schema of a field, without null."""
    held = SCHEMA["properties"][section]
    choices = [held, *held.get("anyOf", ())]
    (reference,) = (choice["$ref"] for choice in choices if "$ref" in choice)
    field = SCHEMA["$defs"][reference.rpartition("/")[2]]["properties"][name]
    return next((choice for choice in field.get("anyOf", ()) if choice.get("type") != "null"), field)


def _options(group: Settings) -> list[click.Option]:
    command = click.command()(group(lambda **_: None))
    return [option for option in command.params if isinstance(option, click.Option)]


@pytest.mark.parametrize(
    ("section", "name", "option"),
    [
        pytest.param(group.section, name, option, id=f"{group.section}.{name}")
        for group in (*GROUPS, BOUNDS)
        for name, option in zip(group.fields, _options(group), strict=True)
    ],
)
def test_option_accepts_values_of_its_field(section: str, name: str, option: click.Option) -> None:
    field = _field(section, name)
    if isinstance(option.type, click.IntRange | click.FloatRange):
        lowest = field.get("minimum", field.get("exclusiveMinimum", field.get("enum", [None])[0]))
        assert option.type.min == (1 if field.get("exclusiveMinimum") == 0 else lowest)
    elif "enum" in field:
        if option.type is click.INT:
            assert {type(value) for value in field["enum"]} == {int}
        else:
            assert isinstance(option.type, click.Choice)
            assert list(option.type.choices) == field["enum"]
    elif option.is_flag:
        assert field["type"] == "boolean"
    elif option.multiple:
        assert field["type"] in ("array", "object")
    else:
        assert field.get("type", "string") in ("string", "integer")


# Inputs of exported models: files in winml-cli's format, the same for build, plan and export.

LOADER = {"task": "fill-mask", "model_type": "bert"}


def written(folder: Path, name: str, value: object) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_field_file_overrides_section_file_and_option_overrides_both(tmp_path: Path) -> None:
    whole = written(tmp_path, "whole", {"batch_size": 3, "opset_version": 18, "shape_config": {"height": 8}})
    sizes = written(tmp_path, "sizes", {"width": 16})
    words = ["--export-config", str(whole), "--shape-config", str(sizes), "--batch-size", "4"]
    found = given_shapes(build.command.make_context("build", words).params)
    assert found == {"batch_size": 4, "opset_version": 18, "shape_config": {"width": 16}}


@pytest.mark.parametrize("command", ["build", "plan", "export"])
@pytest.mark.parametrize(
    ("option", "text", "code", "said"),
    [
        ("--shape-config", '{"sequence_lenght": 8}', 2, "shape_config.sequence_lenght"),
        ("--shape-config", '{"height": 0}', 2, "shape_config.height"),
        ("--shape-config", "[1]", 3, "is not a JSON object"),
        ("--dynamic-axes", "{", 3, "is not JSON"),
        ("--input-specs", '{"input_ids": 5}', 2, "'input_ids' is not an object"),
        ("--export-config", '{"opset": 17}', 2, "opset"),
    ],
)
def test_invalid_option_file_is_refused(
    folder: Path, command: str, option: str, text: str, code: int, said: str, says
) -> None:
    recipe, file = written(folder, "recipe", {"loader": LOADER}), folder / "given.json"
    file.write_text(text, encoding="utf-8")
    out = {"plan": [], "export": ["-o", "m.onnx"], "build": ["-o", "out"]}[command]
    assert said in says(command, "-c", recipe, "--random-weights", option, file, *out, code=code)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
@given(sizes=st.dictionaries(st.sampled_from(get_args(InputDimension)), st.integers(1, 4096)))
def test_shape_config_dimensions_reach_export(sizes: dict[str, int]) -> None:
    overrides = Overrides(settings={"export": {"shape_config": sizes}}, random_weights=True)
    context = ResolveContext(Recipe.model_validate({"loader": LOADER}), None, overrides, Path()).with_settings()
    fields = export_config(context, "fill-mask", "bert").export
    assert fields.batch_size == sizes.get("batch_size", 1)
    assert {**(fields.shape_config or {}), "batch_size": fields.batch_size} == {"batch_size": 1, **sizes}


def test_export_options_are_refused_for_onnx_model(says) -> None:
    axes = '{"x": {"0": "batch"}}'
    assert "is ONNX already" in says("plan", "--onnx", "model.onnx", "--dynamic-axes", axes, code=2)
