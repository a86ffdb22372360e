"""Input options of exported models: files in winml-cli's format, the same for build, plan and export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from winml_dag.cli import run
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


def taken(**given: Any) -> dict[str, Any]:
    return given_shapes(given)


def test_files_become_fields_of_export(tmp_path: Path) -> None:
    specs = written(tmp_path, "specs", {"input_ids": {"dtype": "int64", "shape": [1, "tokens"]}})
    axes = written(tmp_path, "axes", {"logits": {"0": "batch"}})
    assert taken(input_specs=specs, dynamic_axes=axes, batch_size=2) == {
        "input_tensors": [{"name": "input_ids", "dtype": "int64", "shape": [1, "tokens"]}],
        "dynamic_axes": {"logits": {"0": "batch"}},
        "batch_size": 2,
    }


def test_a_file_for_one_field_wins_over_the_whole_section_and_an_option_over_both(tmp_path: Path) -> None:
    whole = written(tmp_path, "whole", {"batch_size": 3, "opset_version": 18, "shape_config": {"height": 8}})
    sizes = written(tmp_path, "sizes", {"width": 16})
    found = taken(export_config=whole, shape_config=sizes, batch_size=4)
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, option: str, text: str, code: int, said: str
) -> None:
    recipe, file = written(tmp_path, "recipe", {"loader": LOADER}), tmp_path / "given.json"
    file.write_text(text, encoding="utf-8")
    out = [] if command == "plan" else ["-o", str(tmp_path / ("m.onnx" if command == "export" else "out"))]
    cache = str(tmp_path / "cache")
    arguments = [command, "-c", str(recipe), "--random-weights", option, str(file), "--cache-dir", cache, *out]
    assert run(arguments) == code
    assert said in capsys.readouterr().err


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


def test_options_of_an_export_are_refused_for_a_model_that_is_onnx_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, model = str(tmp_path / "cache"), str(tmp_path / "model.onnx")
    axes = '{"x": {"0": "batch"}}'
    assert run(["plan", "--onnx", model, "--dynamic-axes", axes, "--cache-dir", cache]) == 2
    assert "is ONNX already" in capsys.readouterr().err
