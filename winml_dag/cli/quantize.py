"""``winml-dag quantize``: quantize an ONNX model into one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli.exporting import given_shapes, shape_options
from winml_dag.cli.onestage import Telling, how_options, run_one
from winml_dag.cli.parameters import FILE, TEXT
from winml_dag.cli.settings import (
    CALIBRATION,
    INTEGERS,
    RANGES,
    VALIDATION,
    no_validate_option,
    target_options,
)
from winml_dag.pipeline.request import Overrides, Request, beside
from winml_dag.recipe.precision import chained

if TYPE_CHECKING:
    from winml_dag.pipeline.buildresult import BuildResult


@click.command(name="quantize")
@click.option("-m", "--model", type=FILE, required=True, help="The ONNX model.")
@click.option("-o", "--output", type=FILE, help="Where the result goes [MODEL_quantized.onnx beside the model].")
@click.option("-p", "--precision", type=TEXT, multiple=True, help="int8, w8a16, int4, fp16, ...; -p int4 -p fp16.")
@click.option("-c", "--config", "recipe", type=FILE, help="A recipe, of which quant, validate and the target count.")
@INTEGERS
@CALIBRATION
@RANGES
@click.option("--save-calibration", type=FILE, help="Where to put the ranges.")
@target_options
@VALIDATION
@no_validate_option
@click.option("--sensitivity", is_flag=True, help="Rank nodes by what quantizing them alone costs.")
@shape_options
@how_options
def command(**options: Any) -> int:
    """Quantize an ONNX model into one file, with its weights beside it where they are large: calibrate, quantize,
    validate. What a build of the same model has done is reused, and the other way round.

    \b
    winml-dag quantize -m model.onnx -p w8a16 --calibration-data samples.npz
    winml-dag quantize -m model.onnx -p int4 -p fp16 -o small.onnx
    """
    return run_one(options, request_of, Telling(_value, always=_sensitivity))


def request_of(options: Mapping[str, Any]) -> Request:
    """What the *options* of one call, by the names of the command's parameters, ask for."""
    model: Path = options["model"]
    chain = chained(options["precision"])
    given = [group.given(options) for group in (CALIBRATION, INTEGERS, RANGES)]
    overrides = Overrides(
        onnx=model,
        task=options["task"],
        ep=options["ep"],
        device=options["device"],
        precision=chain.precision,
        quant_settings={**chain.fields, **given[0], **given[1], **given[2]},
        settings={"export": given_shapes(options), "validate": VALIDATION.given(options)},
        validate=False if options["no_validate"] else None,
        sensitivity=options["sensitivity"],
    )
    return Request(
        options["recipe"],
        overrides,
        command="quantize",
        output_file=options["output"] or beside(model, "quantize"),
        save_ranges=options["save_calibration"],
    )


def _sensitivity(request: Request) -> Iterator[str]:
    """The ranking, also when it was known: who asks for it wants to see it."""
    if request.overrides.sensitivity:
        from winml_dag.cli.sensitivity import sensitivity_lines

        assert request.output_file is not None
        yield from sensitivity_lines(request.output_file)


def _value(result: BuildResult, request: Request) -> JsonObject:
    """What quantization did."""
    done = result.quantization
    assert done is not None
    ranking: JsonObject = {}
    if request.overrides.sensitivity and not result.failed:
        from winml_dag.cli.sensitivity import sensitivity_json

        assert request.output_file is not None
        ranking = {"sensitivity": sensitivity_json(request.output_file)}
    return {**done.to_json(), **ranking}
