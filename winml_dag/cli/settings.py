"""Options that set fields of a recipe section, in groups shared by several commands, and JSON files of such fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.cli.options import FILE, JSON, TEXT
from winml_dag.errors import InputError, UsageError
from winml_dag.file_reading import parse_json

F = TypeVar("F", bound=Callable[..., Any])

_INTEGERS = ("uint8", "int8", "uint16", "int16")


@dataclass(frozen=True)
class Settings:
    """Options in the order of the help, and the parameter that sets each field of the section."""

    options: tuple[Callable[[Any], Any], ...]
    fields: Mapping[str, str]

    def __call__(self, function: F) -> F:
        """Add the options to a command."""
        for option in reversed(self.options):
            function = option(function)
        return function

    def given(self, parameters: Mapping[str, Any]) -> dict[str, JsonValue]:
        """Return the fields that a call sets, as they appear in a recipe. Paths are relative to the current folder."""
        values = {field: _json(parameters[name]) for field, name in self.fields.items()}
        return {field: value for field, value in values.items() if value is not None}

    def taken(self, parameters: dict[str, Any]) -> dict[str, JsonValue]:
        """Return the same fields as :meth:`given`, and remove the group's parameters from *parameters*."""
        values = self.given(parameters)
        for name in self.fields.values():
            del parameters[name]
        return values


def fields(names: str = "", **renamed: str) -> dict[str, str]:
    """Map fields of a section to parameters: *names*, separated by spaces, to the same name, *renamed* as given."""
    return {**{name: name for name in names.split()}, **renamed}


def _json(value: Any) -> JsonValue:
    """Return an option's value as in a recipe; None for an option that was not given."""
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, tuple):
        return [*value] or None
    given: JsonValue = value
    return given


def target_options(function: F) -> F:
    """Add the target options: execution provider and device. Without either, the target is the CPU."""
    device = "npu, gpu, cpu or auto; an execution provider's name works too."
    function = click.option("-d", "--device", type=TEXT, help=device)(function)
    return click.option("--ep", type=TEXT, help="Execution provider that the model is for: cpu, qnn, openvino, ...")(
        function
    )


# Section `quant`.
INTEGERS = Settings(
    (
        click.option(
            "--weight-type", type=click.Choice(["uint4", "int4", *_INTEGERS]), help="Instead of the precision's."
        ),
        click.option("--activation-type", type=click.Choice(_INTEGERS), help="Instead of the precision's."),
        click.option("--per-channel/--no-per-channel", default=None, help="A scale for each channel of a weight."),
        click.option("--symmetric/--no-symmetric", default=None, help="Zero points in the middle."),
        click.option("--reduce-range/--no-reduce-range", default=None, help="7 bits of weights instead of 8."),
        click.option(
            "--exclude-node", type=TEXT, multiple=True, help="A node that stays in float; a name or a pattern."
        ),
        click.option("--exclude-op-type", type=TEXT, multiple=True, help="An operator that stays in float."),
    ),
    fields(
        "weight_type activation_type per_channel symmetric reduce_range",
        nodes_to_exclude="exclude_node",
        op_types_to_exclude="exclude_op_type",
    ),
)

# Also section `quant`: calibration.
CALIBRATION = Settings(
    (
        click.option("--samples", type=click.IntRange(min=1), help="Samples to calibrate with."),
        click.option("--method", type=click.Choice(["minmax", "entropy", "percentile"]), help="How ranges are found."),
        click.option(
            "--calibration-data",
            type=FILE,
            help="A file or folder of data to calibrate with, and to measure the result on.",
        ),
        click.option("--dataset", type=TEXT, help="A data set to calibrate with: a hub id or a folder."),
        click.option("--dataset-subset", type=TEXT, help="One of the data set's subsets [its default one]."),
        click.option("--dataset-split", type=TEXT, help="One of the data set's splits [train]."),
        click.option("-t", "--task", type=TEXT, help="What the model is for, such as text-classification."),
        click.option("--model-id", type=TEXT, help="The model whose tokenizer or image processor prepares the data."),
        click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Of random data, or of the choice of samples."),
        click.option("--distribution", type=click.Choice(["uniform", "normal"]), help="Of random data."),
    ),
    fields(
        "samples calibration_data dataset_subset dataset_split task model_id seed distribution",
        calibration_method="method",
        dataset_name="dataset",
    ),
)

EXPORT = Settings(
    (
        click.option("--dynamo/--no-dynamo", default=None, help="PyTorch's newer exporter, or the older one."),
        click.option("--opset", type=click.IntRange(min=9), help="The version of the ONNX operators [21]."),
        click.option(
            "--hierarchy/--no-hierarchy",
            default=None,
            help="Tag nodes with their module, and put the modules into a file beside the model [on].",
        ),
    ),
    fields("dynamo", opset_version="opset", enable_hierarchy_tags="hierarchy"),
)


def pairs(_context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str] | None:
    """Parse repeated ``NAME=VALUE`` options into a mapping."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE.", param=parameter)
        if found.setdefault(name, value) != value:
            raise click.BadParameter(f"{name} is given twice, as {found[name]} and {value}.", param=parameter)
    return found or None


def ep_option(function: F) -> F:
    return click.option(
        "--ep-option",
        "--ep-options",
        "ep_option",
        type=TEXT,
        metavar="NAME=VALUE",
        multiple=True,
        callback=pairs,
        help="An option of the execution provider; again for another.",
    )(function)


COMPILE = Settings(
    (
        ep_option,
        click.option("--embed/--no-embed", default=None, help="The binary inside the model, or in a file beside it."),
        click.option("--compiler", type=click.Choice(["ort", "ort_session", "qairt"]), help="What compiles [ort]."),
        click.option("--qnn-sdk-root", type=FILE, help="The folder of the QAIRT SDK, for --compiler qairt."),
        click.option("--soc-model", type=TEXT, help="QNN: the chip, by number or name."),
        click.option("--htp-arch", type=int, help="QNN: the architecture of the chip's NPU, such as 73."),
        click.option(
            "--htp-optimization-level",
            type=click.IntRange(0, 3),
            help="QNN: how hard the compiler tries; 3 takes longest.",
        ),
        click.option(
            "--require-full-offload", is_flag=True, default=None, help="Fail when an operator is left to the CPU."
        ),
    ),
    fields(
        "compiler qnn_sdk_root soc_model htp_arch htp_optimization_level require_full_offload",
        provider_options="ep_option",
        embed_context="embed",
    ),
)

# Section `validate`: options of builds and of the commands that end with validation.
VALIDATION = Settings(
    (
        click.option(
            "--min-cosine",
            type=click.FloatRange(-1, 1),
            help="The cosine to the reference below which an output is wrong [the precision's].",
        ),
        click.option("--input-data", type=FILE, help="A file or folder of inputs to validate on [random ones]."),
    ),
    fields("min_cosine input_data"),
)

# Also section `validate`: options of its own command only.
BOUNDS = Settings(
    (
        click.option("--min-sqnr-db", type=click.FloatRange(-1000, 1000), help="The least signal to noise, in dB."),
        click.option("--max-abs-error", type=click.FloatRange(0, 1e38), help="The largest difference of one value."),
        click.option(
            "--min-top1-agreement", type=click.FloatRange(0, 1), help="The part of samples with the same best class."
        ),
        click.option("--samples", type=click.IntRange(min=1), help="How many inputs [3 random ones, or all given]."),
        click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Of random inputs [0]."),
    ),
    fields("min_sqnr_db max_abs_error min_top1_agreement samples seed"),
)


def no_validate_option(function: F) -> F:
    text = "Do not run the result and hold it against what it was made from."
    return click.option("--no-validate", is_flag=True, help=text)(function)


RANGES = Settings(
    (click.option("--load-calibration", type=FILE, help="Ranges from an earlier calibration of this model."),),
    fields(calibration_load_path="load_calibration"),
)


_BATCH = click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="The first dimension of every input [1; an ONNX model's own, where the target takes that].",
)
# winml-cli's JSON files. A file for a single field takes precedence over the one for the whole section, and an option
# over both. The files in _SHAPES also apply to models that are already ONNX.
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
    """Add the options that describe the inputs of the exported model."""
    return _with_files(function, _FILES)


def shape_options(function: F) -> F:
    """Add the input size options of commands that take only ONNX models."""
    return _with_files(function, _SHAPES)


def _with_files(function: F, files: Mapping[str, str]) -> F:
    for name, text in reversed([*files.items()]):
        function = click.option(f"--{name.replace('_', '-')}", type=JSON, help=text)(function)
    return _BATCH(function)


def taken_inputs(options: dict[str, Any]) -> dict[str, JsonValue]:
    """Return the fields of ``export`` set by the options of :func:`input_options`, and remove those from *options*.

    Raises:
        InputError: for a file that cannot be read or contains no JSON object.
        UsageError: for invalid inputs.
    """
    found = given_shapes(options)
    if content := _content(options, "dynamic_axes"):
        found["dynamic_axes"] = content
    found = {**_content(options, "export_config"), **found}
    for name in (*_FILES, "batch_size"):
        del options[name]
    return found


def given_shapes(options: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the fields of ``export`` set by :func:`shape_options`. Raises the same errors as :func:`taken_inputs`."""
    found: dict[str, JsonValue] = {}
    if sizes := _content(options, "shape_config"):
        found["shape_config"] = sizes
    if specs := _content(options, "input_specs"):
        found["input_tensors"] = [_tensor(name, spec) for name, spec in specs.items()]
    if options["batch_size"] is not None:
        found["batch_size"] = options["batch_size"]
    return found


def export_options(function: F) -> F:
    """Add all export options, for the command that only exports."""
    return input_options(EXPORT(function))


def taken_export(options: dict[str, Any]) -> dict[str, JsonValue]:
    """Return what :func:`taken_inputs` does, for all options of :func:`export_options`."""
    return {**taken_inputs(options), **EXPORT.taken(options)}


def _tensor(name: str, spec: JsonValue) -> JsonValue:
    if not isinstance(spec, Mapping):
        raise UsageError(
            f"--input-specs: {name!r} is no object.", advice='It has dtype and shape: {"dtype": "int32", "shape": [1]}.'
        )
    return {"name": name, **spec}


def _content(options: Mapping[str, Any], name: str) -> JsonObject:
    """Return the JSON object given as the option's value or in the file it names; empty without the option."""
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
