"""``winml-dag export``: convert a PyTorch model into one ONNX file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from winml_dag.cli.onestage import OUTCOME, how_options, run_one
from winml_dag.cli.options import FILE, RECIPE, TEXT
from winml_dag.cli.settings import export_options, taken_export
from winml_dag.errors import UsageError
from winml_dag.pipeline.request import Overrides, Request


@click.command(name="export")
@click.option("-m", "--model", type=TEXT, help="A hub id or a model folder [the recipe's].")
@click.option("-o", "--output", type=FILE, required=True, help="Where the ONNX model goes.")
@click.option("-c", "--config", "recipe", type=RECIPE, help="A recipe, of which model, loader and export count.")
@click.option("-t", "--task", type=TEXT, help="What the model is for, such as text-classification.")
@click.option("--submodel", type=TEXT, help="One component of a composite model alone, such as encoder.")
@export_options
@click.option("--random-weights", is_flag=True, help="Make the weights up; no model files are needed.")
@click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with a model.")
@how_options
def command(**options: Any) -> int:
    """Export a PyTorch model into one ONNX file, held against PyTorch, with its modules in a file beside it.

    \b
    winml-dag export -m ./bert -t text-classification -o bert.onnx
    """
    return run_one(options, request_of, OUTCOME)


def request_of(options: Mapping[str, Any]) -> Request:
    """Return the request for the *options* of one call, by the names of the command's parameters."""
    if options["model"] is None and options["recipe"] is None:
        raise UsageError("No model is named.", advice="Give -m, or a recipe with -c.")
    overrides = Overrides(
        model=options["model"],
        task=options["task"],
        submodel=options["submodel"],
        settings={"export": taken_export(dict(options))},
        random_weights=options["random_weights"],
        trust_remote_code=options["trust_remote_code"],
    )
    return Request(options["recipe"], overrides, command="export", output_file=options["output"])
