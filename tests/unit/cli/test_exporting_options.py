"""Input options of exported models: files in winml-cli's format, the same for build, plan and export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from winml_dag.cli import build
from winml_dag.cli.settings import given_shapes
from winml_dag.pipeline.request import Overrides
from winml_dag.pipeline.sections import export_config
from winml_dag.pipeline.variant import ResolveContext, with_settings
from winml_dag.recipe.fields import InputDimension
from winml_dag.recipe.schema import Recipe

LOADER = {"task": "fill-mask", "model_type": "bert"}


def written(folder: Path, name: str, value: object) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_a_file_for_one_field_wins_over_the_whole_section_and_an_option_over_both(tmp_path: Path) -> None:
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
def test_what_is_wrong_in_a_file_is_told(
    folder: Path, command: str, option: str, text: str, code: int, said: str, says
) -> None:
    recipe, file = written(folder, "recipe", {"loader": LOADER}), folder / "given.json"
    file.write_text(text, encoding="utf-8")
    out = {"plan": [], "export": ["-o", "m.onnx"], "build": ["-o", "out"]}[command]
    assert said in says(command, "-c", recipe, "--random-weights", option, file, *out, code=code)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
@given(sizes=st.dictionaries(st.sampled_from(get_args(InputDimension)), st.integers(1, 4096)))
def test_every_dimension_reaches_export_and_the_batch_is_its_own_field(sizes: dict[str, int]) -> None:
    recipe = with_settings(
        Recipe.model_validate({"loader": LOADER}), Overrides(settings={"export": {"shape_config": sizes}})
    )
    fields = export_config(
        ResolveContext(recipe, Path(), True, Overrides(random_weights=True)), "fill-mask", "bert"
    ).export
    assert fields.batch_size == sizes.get("batch_size", 1)
    assert {**(fields.shape_config or {}), "batch_size": fields.batch_size} == {"batch_size": 1, **sizes}


def test_options_of_an_export_are_refused_for_a_model_that_is_onnx_already(says) -> None:
    axes = '{"x": {"0": "batch"}}'
    assert "is ONNX already" in says("plan", "--onnx", "model.onnx", "--dynamic-axes", axes, code=2)
