"""``winml-dag export``: turn a PyTorch model into one ONNX file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli.onestage import how_options, run_one
from winml_dag.cli.outcome import OUTCOME
from winml_dag.cli.parameters import FILE, TEXT
from winml_dag.cli.settings import EXPORT
from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.request import Overrides, Request


@click.command(name="export")
@click.option("-m", "--model", type=TEXT, help="A hub id or a model folder [the recipe's].")
@click.option("-o", "--output", type=FILE, required=True, help="Where the ONNX model goes.")
@click.option("-c", "--config", "recipe", type=FILE, help="A recipe, of which model, loader and export count.")
@click.option("-t", "--task", type=TEXT, help="What the model is for, such as text-classification.")
@click.option("--submodel", type=TEXT, help="One component of a composite model alone, such as encoder.")
@EXPORT
@click.option("--input-specs", type=FILE, help="A JSON file of inputs: {NAME: {dtype, shape}}; a name in shape varies.")
@click.option("--dynamic-axes", type=FILE, help="A JSON file of dimensions that vary: {TENSOR: {AXIS: NAME}}.")
@click.option("--export-config", type=FILE, help="A JSON file with fields of a recipe's export section.")
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
    """What the *options* of one call, by the names of the command's parameters, ask for."""
    if options["model"] is None and options["recipe"] is None:
        raise UsageError("No model is named.", advice="Give -m, or a recipe with -c.")
    overrides = Overrides(
        model=options["model"],
        task=options["task"],
        submodel=options["submodel"],
        settings={"export": {**_from_files(options), **EXPORT.given(options)}},
        random_weights=options["random_weights"],
        trust_remote_code=options["trust_remote_code"],
    )
    return Request(options["recipe"], overrides, command="export", output_file=options["output"])


def _from_files(options: Mapping[str, Any]) -> JsonObject:
    """Fields of ``export`` as winml-cli has them in files; a file for one of them wins over one for all."""
    found = dict(_content(options, "export_config"))
    if axes := _content(options, "dynamic_axes"):
        found["dynamic_axes"] = axes
    if specs := _content(options, "input_specs"):
        found["input_tensors"] = [
            {"name": name, **spec} if isinstance(spec, Mapping) else spec for name, spec in specs.items()
        ]
    return found


def _content(options: Mapping[str, Any], name: str) -> JsonObject:
    """The object in the file that an option names; empty without one.

    Raises:
        InputError: when there is none.
    """
    path: Path | None = options[name]
    if path is None:
        return {}
    option = f"--{name.replace('_', '-')}"
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{option}: {path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise InputError(f"{option}: {path} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{option}: {path} is no JSON object.")
    return value
