"""``winml-dag compile``: let an execution provider turn an ONNX model into its own binary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from winml_dag.cli.onestage import OUTCOME, how_options, run_one
from winml_dag.cli.options import FILE
from winml_dag.cli.settings import COMPILE, VALIDATION, given_shapes, shape_options, target_options
from winml_dag.errors import UsageError
from winml_dag.pipeline.request import Overrides, Request, beside


@click.command(name="compile")
@click.option(
    "-m",
    "--model",
    type=FILE,
    multiple=True,
    required=True,
    help="The ONNX model, quantized or not; several, with --output-dir, get one binary with their common weights.",
)
@click.option("-o", "--output", type=FILE, help="Where the result goes [MODEL_compiled.onnx beside the model].")
@click.option("--output-dir", type=FILE, help="The folder for MODEL_compiled.onnx, in place of -o.")
@click.option("-c", "--config", "recipe", type=FILE, help="A recipe, of which compile, validate and the target count.")
@target_options
@COMPILE
@click.option("--validate/--no-validate", default=None, help="Run the result and hold it against the model [on].")
@VALIDATION
@shape_options
@how_options
def command(**options: Any) -> int:
    """Compile an ONNX model ahead of time: one file, with the provider's binary beside it or (`--embed`) inside. It is
    loaded, run and held against the model that it was made from. For a provider that runs ONNX models as they are, the
    model is optimized.

    \b
    winml-dag compile -m quantized.onnx --ep qnn --soc-model 60
    winml-dag compile -m short.onnx -m long.onnx --ep qnn --output-dir out
    """
    return run_one(options, request_of, OUTCOME)


def request_of(options: Mapping[str, Any]) -> Request:
    """Return the request for the *options* of one call, by the names of the command's parameters."""
    model: Path = options["model"][0]
    overrides = Overrides(
        onnx=model,
        ep=options["ep"],
        device=options["device"],
        settings={
            "export": given_shapes(options),
            "compile": COMPILE.given(options),
            "validate": VALIDATION.given(options),
        },
        validate=options["validate"],
    )
    return Request(
        options["recipe"], overrides, command="compile", output_file=_output(model, options), also=options["model"][1:]
    )


def _output(model: Path, options: Mapping[str, Any]) -> Path:
    output, folder = options["output"], options["output_dir"]
    if len(options["model"]) > 1 and (folder is None or output is not None):
        raise UsageError("Several models have several results.", advice="Give --output-dir, and no -o.")
    if output is not None and folder is not None:
        raise UsageError("-o and --output-dir say both where the result goes.", advice="Give one of them.")
    usual = beside(model, "compile")
    return output or (usual if folder is None else folder / usual.name)
