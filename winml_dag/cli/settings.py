"""Options that set fields of a recipe section, in groups shared by several commands, and JSON files of such fields.

The types repeat what the schema says, and a test compares them: importing the schema would double the time of a build
with nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from winml_dag.canonical import JsonValue
from winml_dag.cli.command import FILE, JSON, TEXT, FieldOption, pairs, with_options
from winml_dag.errors import UsageError
from winml_dag.file_reading import parse_json

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Settings:
    """Options in the order of the help, and the parameter that sets each field of the section."""

    options: tuple[Callable[[Any], Any], ...]
    fields: Mapping[str, str]
    section: str = ""

    @classmethod
    def of(cls, section: str, *rows: tuple[Any, ...]) -> Settings:
        """Return an option for each of *rows*: field, type, help, and flags if they are not ``--`` and the field.

        The type ``bool`` makes a pair of ``--x`` and ``--no-x``; a list with a type makes an option that can be
        repeated. A mapping at the end of a row has further arguments of the option.
        """
        options, parameters = [], {}
        for name, kind, text, *given in rows:
            more: dict[str, Any] = given.pop() if given and isinstance(given[-1], dict) else {}
            flags = given or [f"--{name.replace('_', '-')}"]
            parameters[name] = flags[-1].removeprefix("--").replace("-", "_")
            if kind is bool:
                flags, more = [f"{flags[0]}/--no-{flags[0][2:]}"], {"default": None}
            elif isinstance(kind, list):
                text, more = f"{text} Repeatable.", {"type": kind[0], "multiple": True, **more}
            else:
                more = {"type": kind}
            options.append(click.option(*flags, cls=FieldOption, section=section, help=text, **more))
        return cls(tuple(options), parameters, section)

    def __call__(self, function: F) -> F:
        """Add the options to a command."""
        return with_options(*self.options)(function)

    def given(self, parameters: Mapping[str, Any]) -> dict[str, JsonValue]:
        """Return the fields that a call sets, as they appear in a recipe. Paths are relative to the current folder."""
        values = {field: _json(parameters[name]) for field, name in self.fields.items()}
        return {field: value for field, value in values.items() if value is not None}


def _json(value: Any) -> JsonValue:
    """Return an option's value as in a recipe; None for an option that was not given."""
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, tuple):
        return [*value] or None
    given: JsonValue = value
    return given


COUNT = click.IntRange(min=1)
SEED = click.IntRange(0, 2**32 - 1)
_INTEGERS = ("uint8", "int8", "uint16", "int16")

LOADER = Settings.of(
    "loader",
    ("model_type", TEXT, "The architecture, such as bert, instead of a model."),
    ("model_class", TEXT, "The transformers class of the model [the task's]."),
)
EXPORT = Settings.of(
    "export",
    ("dynamo", bool, "Use the dynamo exporter, or TorchScript."),
    ("opset_version", click.IntRange(min=9), "The ONNX opset [21].", "--opset"),
    ("enable_hierarchy_tags", bool, "Record the PyTorch module of each node, also in a file beside [on].",
     "--hierarchy"),
)  # fmt: skip
INTEGERS = Settings.of(
    "quant",
    ("weight_type", click.Choice(["uint4", "int4", *_INTEGERS]), "Weight type [the precision's]."),
    ("activation_type", click.Choice(_INTEGERS), "Activation type [the precision's]."),
    ("per_channel", bool, "Use a scale for each channel of a weight."),
    ("symmetric", bool, "Use symmetric ranges."),
    ("reduce_range", bool, "Use 7 bits for 8-bit weights."),
    ("nodes_to_exclude", [TEXT], "Keep a node in float, by name or pattern.", "--exclude-node"),
    ("op_types_to_exclude", [TEXT], "Keep an operator in float.", "--exclude-op-type"),
)
CALIBRATION = Settings.of(
    "quant",
    ("samples", COUNT, "Number of calibration samples."),
    ("calibration_method", click.Choice(["minmax", "entropy", "percentile"]), "How ranges are computed.", "--method"),
    ("calibration_data", FILE, "Calibration data: a file or a folder. Part of it validates the result."),
    ("dataset_name", TEXT, "A data set for calibration: a hub id or a folder.", "--dataset"),
    ("dataset_subset", TEXT, "Subset of the data set [its default]."),
    ("dataset_split", TEXT, "Split of the data set [train]."),
    ("task", TEXT, "The model's task, such as text-classification.", "-t", "--task"),
    ("model_id", TEXT, "The model whose tokenizer or image processor prepares the data."),
    ("seed", SEED, "Seed of random data and of the choice of samples."),
    ("distribution", click.Choice(["uniform", "normal"]), "Distribution of random data."),
)
RANGES = Settings.of(
    "quant",
    ("calibration_load_path", FILE, "Use the ranges of an earlier calibration of this model.", "--load-calibration"),
)
# Arguments of an option with values NAME=VALUE.
NAME_VALUE: dict[str, Any] = {"metavar": "NAME=VALUE", "callback": pairs}
_EP_FLAGS = ("--ep-option", "--ep-options", "ep_option")
_EP_OPTION = "Set an option of the execution provider."
ep_option = click.option(*_EP_FLAGS, type=TEXT, multiple=True, help=f"{_EP_OPTION} Repeatable.", **NAME_VALUE)
COMPILE = Settings.of(
    "compile",
    ("provider_options", [TEXT], _EP_OPTION, *_EP_FLAGS, NAME_VALUE),
    ("embed_context", bool, "Put the binary into the model, or into a file beside it.", "--embed"),
    ("compiler", click.Choice(["ort", "ort_session", "qairt"]), "The compiler [ort]."),
    ("qnn_sdk_root", FILE, "The folder of the QAIRT SDK, for --compiler qairt."),
    ("soc_model", TEXT, "QNN: the chip, by number or name."),
    ("htp_arch", int, "QNN: the architecture of the NPU, such as 73."),
    ("htp_optimization_level", click.IntRange(0, 3), "QNN: the optimization level. 3 takes longest."),
    ("require_full_offload", bool, "Fail if an operator stays on the CPU."),
)
# Options of builds and of the commands that end with validation.
VALIDATION = Settings.of(
    "validate",
    ("min_cosine", click.FloatRange(-1, 1), "Lowest cosine of an output and its reference [the precision's]."),
    ("input_data", FILE, "Validate on these inputs: a file or a folder [random ones]."),
)
# Options of the command validate only.
BOUNDS = Settings.of(
    "validate",
    ("min_sqnr_db", click.FloatRange(-1000, 1000), "Lowest signal-to-noise ratio in dB."),
    ("max_abs_error", click.FloatRange(0, 1e38), "Largest difference of one value."),
    ("min_top1_agreement", click.FloatRange(0, 1), "Lowest share of samples with the same best class."),
    ("samples", COUNT, "Number of inputs [3 random ones, or all given]."),
    ("seed", SEED, "Seed of random inputs [0]."),
)
GROUPS = (LOADER, EXPORT, INTEGERS, CALIBRATION, RANGES, COMPILE, VALIDATION)


def sections_from(options: Mapping[str, Any]) -> dict[str, dict[str, JsonValue]]:
    """Return the fields that *options* set, by section: those of ``GROUPS``, of JSON files, and of ``--set``.

    Raises:
        UsageError: for invalid inputs, and for a field that is none.
    """
    found: dict[str, dict[str, JsonValue]] = {"export": given_shapes(options)}
    for group in GROUPS:
        if {*group.fields.values()} <= options.keys():
            found[group.section] = {**found.get(group.section, {}), **group.given(options)}
    for name, value in (options.get("set_") or {}).items():
        section, _, field = name.partition(".")
        if section not in _SECTIONS or not field or "." in field:
            raise UsageError(
                f"--set {name}: expected SECTION.FIELD=VALUE, such as quant.samples=20.",
                advice=f"Sections: {', '.join(_SECTIONS)}.",
            )
        found.setdefault(section, {})[field] = _value(value)
    return {section: given for section, given in found.items() if given}


_SECTIONS = ("loader", "export", "optim", "quant", "compile", "validate")


def _value(text: str) -> JsonValue:
    try:
        value: JsonValue = parse_json(text)
    except ValueError:
        return text
    return value


# winml-cli's JSON files. A file for a single field takes precedence over the one for the whole section, and an option
# over both. The files in _SHAPES also apply to models that are already ONNX.
_SHAPES = {
    "shape_config": 'Sizes by dimension, as JSON or a file: {"sequence_length": 64}.',
    "input_specs": 'Inputs, as JSON or a file: {"NAME": {"dtype", "shape": [1, 64]}}. A text in shape is dynamic.',
}
_FILES = {
    **_SHAPES,
    "dynamic_axes": "A JSON file with dynamic axes: {TENSOR: {AXIS: NAME}}.",
    "export_config": "A JSON file with fields of the export section.",
}
_BATCH = click.option(
    "--batch-size", type=COUNT, help="First dimension of every input [1, or that of an ONNX model if possible]."
)


def _of_files(files: Mapping[str, str]) -> Callable[[F], F]:
    return with_options(
        _BATCH, *(click.option(f"--{name.replace('_', '-')}", type=JSON, help=text) for name, text in files.items())
    )


# The inputs of an exported model, and those of a model that is already ONNX.
input_options = _of_files(_FILES)
shape_options = _of_files(_SHAPES)


def given_shapes(options: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the fields of ``export`` set by :func:`input_options` or :func:`shape_options`.

    Raises:
        UsageError: for invalid inputs.
    """
    found = dict(options.get("export_config") or {})
    for name in ("shape_config", "dynamic_axes", "batch_size"):
        if options.get(name):
            found[name] = options[name]
    if specs := options.get("input_specs"):
        found["input_tensors"] = [_tensor(name, spec) for name, spec in specs.items()]
    return found


def _tensor(name: str, spec: JsonValue) -> JsonValue:
    if not isinstance(spec, Mapping):
        raise UsageError(
            f"--input-specs: {name!r} is not an object.",
            advice='It has dtype and shape: {"dtype": "int32", "shape": [1]}.',
        )
    return {"name": name, **spec}
