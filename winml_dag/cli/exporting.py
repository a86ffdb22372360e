"""Options of how a PyTorch model is exported: fields of a recipe's ``export`` section, and files of them.

The files are winml-cli's. One for a single field wins over the one for the whole section, and an option over all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.cli.parameters import FILE
from winml_dag.cli.settings import EXPORT
from winml_dag.errors import InputError, UsageError

F = TypeVar("F", bound=Callable[..., Any])

_BATCH = click.option("--batch-size", type=click.IntRange(min=1), help="The first dimension of every input [1].")
_FILES = {
    "shape_config": "A JSON file of sizes by dimension: {sequence_length: 64}.",
    "input_specs": "A JSON file of inputs: {NAME: {dtype, shape}}; a name in shape varies.",
    "dynamic_axes": "A JSON file of dimensions that vary: {TENSOR: {AXIS: NAME}}.",
    "export_config": "A JSON file with fields of a recipe's export section.",
}


def input_options(function: F) -> F:
    """What the inputs of the exported model are; a command that has these needs no others to export."""
    for name, text in reversed(_FILES.items()):
        function = click.option(f"--{name.replace('_', '-')}", type=FILE, help=text)(function)
    return _BATCH(function)


def taken_inputs(options: dict[str, Any]) -> dict[str, JsonValue]:
    """The fields of ``export`` that the options of :func:`input_options` say, which are gone from *options* then.

    Raises:
        InputError: for a file that cannot be read, or is no JSON object.
        UsageError: for inputs that are none.
    """
    found: dict[str, JsonValue] = dict(_content(options, "export_config"))
    for field in ("shape_config", "dynamic_axes"):
        if content := _content(options, field):
            found[field] = content
    if specs := _content(options, "input_specs"):
        found["input_tensors"] = [_tensor(name, spec) for name, spec in specs.items()]
    if options["batch_size"] is not None:
        found["batch_size"] = options["batch_size"]
    for name in (*_FILES, "batch_size"):
        del options[name]
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
    """The object in the file that an option names; empty without one."""
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
