"""``winml-dag quantize``: quantize an ONNX model into one file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.cli.build import carry_out, look, say_up_to_date
from winml_dag.cli.options import FILE, TEXT, cache_option, format_option, rebuild_option
from winml_dag.errors import StageError, WinmlDagError
from winml_dag.pipeline.request import Overrides, Request, beside
from winml_dag.recipe.chain import chained
from winml_dag.store.location import default_cache_dir

if TYPE_CHECKING:
    from winml_dag.pipeline.build import BuildResult

_INTEGERS = ("uint8", "int8", "uint16", "int16")

# Options that are fields of `quant`, by field. Those that name a path are relative to where the user stands.
_SETTINGS = {
    "samples": "samples",
    "calibration_method": "method",
    "weight_type": "weight_type",
    "activation_type": "activation_type",
    "per_channel": "per_channel",
    "symmetric": "symmetric",
    "reduce_range": "reduce_range",
    "task": "task",
    "model_id": "model_id",
    "calibration_data": "calibration_data",
    "dataset_name": "dataset",
    "seed": "seed",
    "distribution": "distribution",
    "calibration_load_path": "load_calibration",
    "nodes_to_exclude": "exclude_node",
    "op_types_to_exclude": "exclude_op_type",
}


@click.command(name="quantize")
@click.option("-m", "--model", type=FILE, required=True, help="The ONNX model.")
@click.option("-o", "--output", type=FILE, help="Where the result goes [MODEL_quantized.onnx beside the model].")
@click.option("-p", "--precision", type=TEXT, multiple=True, help="int8, w8a16, int4, fp16, ...; -p int4 -p fp16.")
@click.option("-c", "--config", "recipe", type=FILE, help="A recipe, of which quant, validate and the target count.")
@click.option("--samples", type=click.IntRange(min=1), help="Samples to calibrate with.")
@click.option("--method", type=click.Choice(["minmax", "entropy", "percentile"]), help="How ranges are found.")
@click.option("--weight-type", type=click.Choice(["uint4", "int4", *_INTEGERS]), help="Instead of the precision's.")
@click.option("--activation-type", type=click.Choice(_INTEGERS), help="Instead of the precision's.")
@click.option("--per-channel/--no-per-channel", default=None, help="A scale for each channel of a weight.")
@click.option("--symmetric/--no-symmetric", default=None, help="Zero points in the middle.")
@click.option("--reduce-range/--no-reduce-range", default=None, help="7 bits of weights instead of 8.")
@click.option(
    "--calibration-data", type=FILE, help="A file or folder of data to calibrate with, and to measure the result on."
)
@click.option("--dataset", type=TEXT, help="A data set to calibrate with: a hub id or a folder.")
@click.option("-t", "--task", type=TEXT, help="What the model is for, such as text-classification.")
@click.option("--model-id", type=TEXT, help="The model whose tokenizer or image processor prepares the data.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Of random data, or of the choice of samples.")
@click.option("--distribution", type=click.Choice(["uniform", "normal"]), help="Of random data.")
@click.option("--load-calibration", type=FILE, help="Ranges from an earlier calibration of this model.")
@click.option("--save-calibration", type=FILE, help="Where to put the ranges.")
@click.option("--exclude-node", type=TEXT, multiple=True, help="A node that stays in float; a name or a pattern.")
@click.option("--exclude-op-type", type=TEXT, multiple=True, help="An operator that stays in float.")
@click.option("--ep", type=TEXT, help="Execution provider whose rules to follow [cpu].")
@click.option("-d", "--device", type=TEXT, help="npu, gpu, cpu or auto; an execution provider's name works too.")
@click.option("--no-validate", is_flag=True, help="Do not hold the result against the float model.")
@click.option("--sensitivity", is_flag=True, help="Rank nodes by what quantizing them alone costs.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is not ours.")
@rebuild_option
@cache_option
@click.option("-v", "--verbose", is_flag=True, help="Say the reason of every stage, and show logs of failures whole.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and the last line.")
@format_option
def command(
    *,
    overwrite: bool,
    rebuild: bool,
    cache_dir: Path | None,
    verbose: bool,
    quiet: bool,
    format_: str,
    **options: Any,
) -> int:
    """Quantize an ONNX model into one file, with its weights beside it where they are large: calibrate, quantize,
    validate. What a build of the same model has done is reused, and the other way round.

    \b
    winml-dag quantize -m model.onnx -p w8a16 --calibration-data samples.npz
    winml-dag quantize -m model.onnx -p int4 -p fp16 -o small.onnx
    """
    started = time.monotonic()
    cache_dir = cache_dir or default_cache_dir()
    with _errors_as_json(format_):
        request = request_of(options)
    standing = look(request, cache_dir)
    if not (rebuild or verbose or format_ == "json") and say_up_to_date(standing, cache_dir, started):
        _print_sensitivity(request, quiet=quiet, to_stderr=False)
        return 0

    from winml_dag.pipeline.build import BuildOptions

    how = BuildOptions(rebuild=rebuild, overwrite=overwrite)
    with _errors_as_json(format_):
        result = carry_out(request, cache_dir, standing, how, verbose=verbose, quiet=quiet, format_=format_)
    if not result.failed:
        _print_sensitivity(request, quiet=quiet, to_stderr=format_ == "json")
    if format_ == "json":
        _print_json(result, request)
    return StageError.exit_code if result.failed else 0


@contextmanager
def _errors_as_json(format_: str) -> Iterator[None]:
    """With the format json, what is refused is the one object on stdout too; its sentence still goes to stderr."""
    try:
        yield
    except WinmlDagError as error:
        if format_ == "json":
            click.echo(json.dumps({"success": False, "errors": [str(error)]}, ensure_ascii=False))
        raise


def request_of(options: dict[str, Any]) -> Request:
    """What the *options* of one call, by the names of the command's parameters, ask for."""
    model: Path = options["model"]
    chain = chained(options["precision"])
    given = {field: _json(options[option]) for field, option in _SETTINGS.items()}
    overrides = Overrides(
        onnx=model,
        task=options["task"],
        ep=options["ep"],
        device=options["device"],
        precision=chain.precision,
        quant_settings={**chain.fields, **{field: value for field, value in given.items() if value is not None}},
        validate=False if options["no_validate"] else None,
        sensitivity=options["sensitivity"],
    )
    return Request(
        options["recipe"],
        overrides,
        output_file=options["output"] or beside(model),
        save_ranges=options["save_calibration"],
    )


def _json(value: Any) -> JsonValue:
    """An option's value as a recipe has it; None for one that was not given."""
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, tuple):
        return [*value] or None
    given: JsonValue = value
    return given


def _print_sensitivity(request: Request, *, quiet: bool, to_stderr: bool) -> None:
    """The ranking, also when it was known: who asks for it wants to see it."""
    if request.overrides.sensitivity and not quiet:
        from winml_dag.cli.sensitivity import sensitivity_lines

        assert request.output_file is not None
        for line in sensitivity_lines(request.output_file):
            click.echo(line, err=to_stderr)


def _print_json(result: BuildResult, request: Request) -> None:
    """Print exactly one JSON object to stdout: what quantization did, and what became of every stage."""
    from winml_dag.cli.report import stages_json
    from winml_dag.pipeline.quantized import quantize_result

    done = quantize_result(result)
    assert done is not None
    ranking: JsonObject = {}
    if request.overrides.sensitivity and not result.failed:
        from winml_dag.cli.sensitivity import sensitivity_json

        assert request.output_file is not None
        ranking = {"sensitivity": sensitivity_json(request.output_file)}
    click.echo(json.dumps({**done.to_json(), **ranking, "stages": stages_json(result)}, ensure_ascii=False))
