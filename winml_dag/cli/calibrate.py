"""``winml-dag calibrate``: write the activation ranges of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from winml_dag.cli.onestage import OUTCOME, how_options, run_one
from winml_dag.cli.options import FILE
from winml_dag.cli.settings import CALIBRATION, given_shapes, shape_options
from winml_dag.pipeline.request import Overrides, Request, beside


@click.command(name="calibrate")
@click.option("-m", "--model", type=FILE, required=True, help="The ONNX model.")
@click.option("-o", "--output", type=FILE, help="Where the ranges go [MODEL_ranges.json beside the model].")
@click.option("-c", "--config", "recipe", type=FILE, help="A recipe, of which quant and validate count.")
@CALIBRATION
@click.option(
    "--no-validate", is_flag=True, help="Take all samples: keep none back to hold the quantized model against."
)
@shape_options
@how_options
def command(**options: Any) -> int:
    """Run an ONNX model on data and put the range of every activation into one file. One calibration serves every
    static precision: `quantize --load-calibration` reads it, and a build with the same data finds it.

    \b
    winml-dag calibrate -m model.onnx --calibration-data samples.npz -o ranges.json
    """
    return run_one(options, request_of, OUTCOME)


def request_of(options: Mapping[str, Any]) -> Request:
    """Return the request for the *options* of one call, by the names of the command's parameters."""
    model: Path = options["model"]
    overrides = Overrides(
        onnx=model,
        task=options["task"],
        settings={"export": given_shapes(options), "quant": CALIBRATION.given(options)},
        validate=False if options["no_validate"] else None,
    )
    return Request(
        options["recipe"], overrides, command="calibrate", output_file=options["output"] or beside(model, "calibrate")
    )
