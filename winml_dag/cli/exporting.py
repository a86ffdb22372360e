"""Options of what the inputs of a model are and how a PyTorch model is exported: fields of a recipe's ``export``
section, and files of them.

The files are winml-cli's. One for a single field wins over the one for the whole section, and an option over all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.cli.parameters import JSON
from winml_dag.cli.settings import EXPORT
from winml_dag.errors import InputError, UsageError
from winml_dag.smallfiles import parse_json

F = TypeVar("F", bound=Callable[..., Any])

_BATCH = click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="The first dimension of every input [1; an ONNX model's own, where the target takes that].",
)
# Those that a model which is ONNX already takes as well.
_SHAPES = {
    "shape_config": 'Sizes by dimension, as JSON or a file of it: {"sequence_length": 64}.',
    "input_specs": 'Inputs, as JSON or a file of it: {"NAME": {"dtype", "shape": [1, 64]}}; a text in shape varies.',
}
_FILES = {
    **_SHAPES,
    "dynamic_axes": "A JSON file of dimensions that vary: {TENSOR: {AXIS: NAME}}.",
    "export_config": "A JSON file with fields of a recipe's export section.",
}


def input_options(function: F) -> F:
    """What the inputs of the exported model are; a command that has these needs no others to export."""
    return _with_files(function, _FILES)


def shape_options(function: F) -> F:
    """Those of a command that takes ONNX models only: the sizes of their inputs."""
    return _with_files(function, _SHAPES)


def _with_files(function: F, files: Mapping[str, str]) -> F:
    for name, text in reversed([*files.items()]):
        function = click.option(f"--{name.replace('_', '-')}", type=JSON, help=text)(function)
    return _BATCH(function)


def taken_inputs(options: dict[str, Any]) -> dict[str, JsonValue]:
    """The fields of ``export`` that the options of :func:`input_options` say, which are gone from *options* then.

    Raises:
        InputError: for a file that cannot be read, or is no JSON object.
        UsageError: for inputs that are none.
    """
    found = given_shapes(options)
    if content := _content(options, "dynamic_axes"):
        found["dynamic_axes"] = content
    found = {**_content(options, "export_config"), **found}
    for name in (*_FILES, "batch_size"):
        del options[name]
    return found


def given_shapes(options: Mapping[str, Any]) -> dict[str, JsonValue]:
    """The fields of ``export`` that the options of :func:`shape_options` say. Raises as :func:`taken_inputs` does."""
    found: dict[str, JsonValue] = {}
    if sizes := _content(options, "shape_config"):
        found["shape_config"] = sizes
    if specs := _content(options, "input_specs"):
        found["input_tensors"] = [_tensor(name, spec) for name, spec in specs.items()]
    if options["batch_size"] is not None:
        found["batch_size"] = options["batch_size"]
    return found


def export_options(function: F) -> F:
    """All of them, for the command whose only work is to export."""
    return input_options(EXPORT(function))


def taken_export(options: dict[str, Any]) -> dict[str, JsonValue]:
    """As :func:`taken_inputs`, of all options of :func:`export_options`."""
    return {**taken_inputs(options), **EXPORT.taken(options)}


def _tensor(name: str, spec: JsonValue) -> JsonValue:
    if not isinstance(spec, Mapping):
        raise UsageError(
            f"--input-specs: {name!r} is no object.", advice='It has dtype and shape: {"dtype": "int32", "shape": [1]}.'
        )
    return {"name": name, **spec}


def _content(options: Mapping[str, Any], name: str) -> JsonObject:
    """The object that an option says, or has in the file that it names; empty without one."""
    given: Path | str | None = options[name]
    if given is None:
        return {}
    option = f"--{name.replace('_', '-')}"
    try:
        value = parse_json(given if isinstance(given, str) else given.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{option}: {given} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise InputError(f"{option}: {given} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{option}: {given} is no JSON object.")
    return value
