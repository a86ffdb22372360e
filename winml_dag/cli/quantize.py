"""``winml-dag quantize``: quantize an ONNX model into one file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli.onestage import Telling, how_options, run_one
from winml_dag.cli.options import FILE, TEXT
from winml_dag.cli.settings import (
    CALIBRATION,
    INTEGERS,
    RANGES,
    VALIDATION,
    given_shapes,
    no_validate_option,
    shape_options,
    target_options,
)
from winml_dag.pipeline.request import Overrides, Request, beside
from winml_dag.recipe.precision import chained
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.buildresult import BuildResult

# Maximum rows of the --sensitivity report.
_MOST_ROWS = 15
# A smaller gain makes no noticeable difference.
_LEAST_GAIN_DB = 1.0


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
    """Return the request for the *options* of one call, by the names of the command's parameters."""
    model: Path = options["model"]
    chain = chained(options["precision"])
    given = [group.given(options) for group in (CALIBRATION, INTEGERS, RANGES)]
    overrides = Overrides(
        onnx=model,
        task=options["task"],
        ep=options["ep"],
        device=options["device"],
        precision=chain.precision,
        settings={
            "export": given_shapes(options),
            "quant": {**chain.fields, **given[0], **given[1], **given[2]},
            "validate": VALIDATION.given(options),
        },
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
    """Yield the ranking, even if it was cached, since the user requested it."""
    if request.overrides.sensitivity:
        assert request.output_file is not None
        yield from sensitivity_lines(request.output_file)


def _value(result: BuildResult, request: Request) -> JsonObject:
    """Return the quantization result."""
    done = result.quantization
    assert done is not None
    ranking: JsonObject = {}
    if request.overrides.sensitivity and not result.failed:
        assert request.output_file is not None
        ranking = {"sensitivity": sensitivity_json(request.output_file)}
    return {**done.to_json(), **ranking}


def sensitivity_json(output: Path) -> JsonObject:
    """Return the report next to *output*, and the paths of the report and the picture."""
    from winml_dag.file_reading import read_json
    from winml_dag.pipeline.layout import REPORTS, beside_output

    report, picture = (output.parent / beside_output(output.name, name) for name in REPORTS)
    content: JsonObject = read_json(report)
    return {"report": str(report), "picture": str(picture) if picture.exists() else None, **content}


def sensitivity_lines(output: Path) -> Iterator[str]:
    """Format the report next to *output* for people."""
    report: Any = sensitivity_json(output)
    nodes = report["nodes"]
    held_out = "held-out " if report["held_out"] else ""
    worst = f"the worst {min(len(nodes), _MOST_ROWS)} of {counted(len(nodes), 'node')}"
    yield (
        f"what quantizing one node alone costs, {worst},"
        f" on {counted(report['samples'], f'{held_out}sample')} ({report['data']}):"
    )
    width = max(len(node["op_type"]) for node in nodes[:_MOST_ROWS])
    yield f"  {'SQNR':>8}  {'cosine':>8}  {'operator':<{width}}  node"
    for node in nodes[:_MOST_ROWS]:
        yield f"  {_decibels(node):>8}  {node['cosine']:>8.5f}  {node['op_type']:<{width}}  {_name(node)}"
    yield from _relief_lines(report)
    picture = report["picture"] or "none, since matplotlib is not installed (pip install winml_dag[plot])"
    yield f"report: {report['report']}, picture: {picture}"


def _relief_lines(report: Any) -> Iterator[str]:
    from winml_dag.stages.sensitivity import RELIEF

    first, *others = report["relief"]
    yield f"all of them quantized: {_quality(first)}"
    for relief in others:
        yield f"  with the worst {relief['worst_nodes']} {RELIEF[relief['by']]}: {_quality(relief)}"
    if not others:
        return
    gains = {index: _gain(first, relief) for index, relief in enumerate(others)}
    most = max(gains.values())
    if most < _LEAST_GAIN_DB:
        yield "No few nodes are to blame: sparing them gains less than 1 dB. Try a higher precision or other data."
        return
    # The fewest nodes that bring a good part of the possible gain: each additional node makes the model slower.
    chosen = others[next(index for index, gain in gains.items() if gain >= most / 3)]
    yield f"to have the worst {chosen['worst_nodes']} {RELIEF[chosen['by']]}, add to the recipe:"
    yield from _recipe(chosen["by"], [node["node"] for node in report["nodes"][: chosen["worst_nodes"]]], report)


def _recipe(field: str, names: list[str], report: Any) -> Iterator[str]:
    from winml_dag.recipe.precision import SIXTEEN_BITS

    yield "quant:"
    yield f"  {field}:"
    for name in names:
        # Every JSON string is also a YAML string.
        text = json.dumps(name, ensure_ascii=False)
        if field == "nodes_to_exclude":
            yield f"    - {text}"
        else:
            yield f"    {text}: {{activation_type: {SIXTEEN_BITS[report['activation_type']]}}}"


def _quality(figures: Any) -> str:
    return f"SQNR {_decibels(figures)}, cosine {figures['cosine']:.5f}"


def _decibels(figures: Any) -> str:
    """Format the SQNR. It is undefined without noise and without a signal; the cosine tells these cases apart."""
    ratio = figures["sqnr_db"]
    if ratio is None:
        return "exact" if figures["cosine"] == 1 else "lost"
    return f"{ratio:.1f} dB"


def _gain(first: Any, relief: Any) -> float:
    if first["sqnr_db"] is None or relief["sqnr_db"] is None:
        return 0.0
    gain: float = relief["sqnr_db"] - first["sqnr_db"]
    return gain


def _name(node: Any) -> str:
    includes = node["includes"]
    return f"{node['node']} (with {', '.join(includes)})" if includes else str(node["node"])
