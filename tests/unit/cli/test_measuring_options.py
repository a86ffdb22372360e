"""Invalid numbers for perf and eval are reported by name, before any model is searched for."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["perf", "--duration", "inf"], "duration: must be a finite number"),
        (["perf", "--iterations", "99999999999"], "iterations: must be less than or equal to"),
        (["perf", "--batch-size", "99999999999"], "batch_size: must be less than or equal to"),
        (["eval", "--min", "accuracy=nan"], "--min: 'nan' is not a number"),
        (["eval", "--min", "accuracy=inf"], "--min: 'inf' is not a number"),
        (["eval", "--min", "accuracy=most"], "--min: 'most' is not a number"),
    ],
)
def test_numbers_that_are_none_or_too_large_are_refused(arguments: list[str], words: str, tells) -> None:
    command, *options = arguments
    assert words in tells(command, "nowhere.onnx", *options, code=2)["errors"][0]


def test_what_eval_cannot_do_is_told_before_a_recipe_is_built(tells) -> None:
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
def test_a_recipe_of_several_components_is_not_built_until_one_of_them_is_named(
    command: list[str], options: list[str], words: str, tells
) -> None:
    loader = "loader: {model_type: marian, task: translation, random_weights: {}}"
    Path("recipe.yaml").write_text(f"{loader}\noutput_dir: out\n", encoding="utf-8")
    assert words in tells(*command, "-c", "recipe.yaml", *options, code=2)["errors"][0]
    assert not Path("out").exists()
