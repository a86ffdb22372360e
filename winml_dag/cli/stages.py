"""The commands for one stage: a table of their options, and running the build of that stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli import set_result
from winml_dag.cli.build import carry_out, look, say_up_to_date
from winml_dag.cli.capabilities import capabilities_of, print_catalog, print_changes, winml_cli_options
from winml_dag.cli.command import FILE, RECIPE, TEXT, Command, file_option, with_options
from winml_dag.cli.options import (
    How,
    how_options,
    overrides_from,
    random_weights_option,
    set_option,
    submodel_option,
    target_options,
    task_option,
    trust_option,
)
from winml_dag.cli.settings import (
    CALIBRATION,
    COMPILE,
    EXPORT,
    INTEGERS,
    RANGES,
    VALIDATION,
    input_options,
    sections_from,
    shape_options,
)
from winml_dag.errors import StageError, UsageError
from winml_dag.pipeline.request import Request, beside
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.buildresult import BuildResult


def request_of(name: str, options: Mapping[str, Any]) -> Request:
    """Return the request for the *options* of one call of the command *name*, by the names of its parameters."""
    from winml_dag.recipe.precision import chained

    given, sections, also = {**options}, sections_from(options), ()
    if name == "export":
        if options["model"] is None and options["recipe"] is None:
            raise UsageError("No model is named.", advice="Give -m, or a recipe with -c.")
    elif name == "compile":
        given["model"], (given["onnx"], *also) = None, options["model"]
    else:
        given["model"], given["onnx"] = None, options["model"]
    if name == "quantize":
        given["precision"], fields = chained(options["precision"])
        sections["quant"] = {**fields, **sections.get("quant", {})}
    if name == "optimize":
        sections["optim"] = {**sections.get("optim", {}), **capabilities_of(options)}
    return Request(
        options["recipe"],
        overrides_from(given, sections),
        command=name,
        output_file=_output_file(name, given.get("onnx"), options),
        save_ranges=options.get("save_calibration"),
        also=tuple(also),
    )


def _output_file(name: str, model: Path | None, options: Mapping[str, Any]) -> Path:
    """Return the file that ``-o`` names; in a folder, with the usual name."""
    output, folder = options["output"], options.get("output_dir")
    if output is not None and folder is not None:
        raise UsageError("-o and --output-dir both name the output.", advice="Give one of them.")
    usual = Path("model.onnx") if model is None else beside(model, name)
    if output is not None and (output.is_dir() or not output.suffix):
        output, folder = None, output
    if name == "compile" and len(options["model"]) > 1 and folder is None:
        raise UsageError("Several models need an output folder.", advice="Give it with -o.")
    return output or (usual if folder is None else folder / usual.name)


def run_one(name: str, options: Mapping[str, Any]) -> int:
    """Run the command *name* with the *options* of a call, and return the exit code.

    With ``--format json`` exactly one object is printed, also for errors.
    """
    started = time.monotonic()
    how = How.of(options)
    request = replace(request_of(name, options), remote=how.remote)
    current_plan = look(request, how.cache_dir)
    if not (how.rebuild or how.verbose or how.as_json) and say_up_to_date(current_plan, how.cache_dir, started):
        _print_sensitivity(request, how)
        return 0

    from winml_dag.pipeline.run import BuildOptions

    build_options = BuildOptions(rebuild=how.rebuild, overwrite=how.overwrite)
    lines = (lambda _: ()) if name == "quantize" else partial(outcome_lines, command=name)
    result = carry_out(request, current_plan, build_options, how, lines=lines)
    if not result.failed:
        _print_sensitivity(request, how)
    if how.as_json:
        from winml_dag.cli.buildreport import stages_json

        set_result({**_value(result, request), "stages": stages_json(result)})
    return StageError.exit_code if result.failed else 0


def _print_sensitivity(request: Request, how: How) -> None:
    """Print the ranking, even if it was cached, since the user requested it."""
    if request.overrides.sensitivity and not how.quiet:
        from winml_dag.cli.sensitivity import sensitivity_lines

        assert request.output_file is not None
        for line in sensitivity_lines(request.output_file):
            how.say(line)


def _value(result: BuildResult, request: Request) -> JsonObject:
    """Return the JSON object of a build, without the stages."""
    from winml_dag.cli.sensitivity import sensitivity_json
    from winml_dag.pipeline.buildresult import command_result

    assert request.command is not None
    assert request.output_file is not None
    if request.command != "quantize":
        return command_result(result, request.command).to_json()
    done = result.quantization
    assert done is not None
    ranked = request.overrides.sensitivity and not result.failed
    return {**done.to_json(), **({"sensitivity": sensitivity_json(request.output_file)} if ranked else {})}


def _optimize(name: str, options: Mapping[str, Any]) -> int:
    if options["list_capabilities"] or options["list_rewrites"]:
        return print_catalog(rewrites_only=options["list_rewrites"])
    if options["model"] is None:
        raise click.UsageError("Missing option '-m' / '--model'.")
    if not options["check_optim"]:
        return run_one(name, options)
    named = tuple(capability for capability, on in capabilities_of(options).items() if on)
    return print_changes(request_of(name, options), named, whole=options["verbose"])


def _command(
    name: str, text: str, *options: Callable[[Any], Any], run: Callable[[str, Mapping[str, Any]], int] = run_one
) -> click.Command:
    @click.command(name=name, cls=Command, help=text)
    @with_options(*options, set_option, how_options)
    def command(**given: Any) -> int:
        return run(name, given)

    return command


def _model(**more: Any) -> Callable[[Any], Any]:
    return click.option("-m", "--model", **{"type": FILE, "help": "The ONNX model.", **more})


def _output(usual: str, **more: Any) -> Callable[[Any], Any]:
    text = f"Write the result to this file, or into this folder{f' [{usual} beside the model]' if usual else ''}."
    return file_option(text, **more)


def _recipe(sections: str) -> Callable[[Any], Any]:
    return click.option("-c", "--config", "recipe", type=RECIPE, help=f"A recipe. Only {sections} apply.")


_VALIDATE = click.option("--validate/--no-validate", default=None, help="Compare the result with the model [on].")


def _flag(name: str, text: str, *short: str) -> Callable[[Any], Any]:
    return click.option(*short, name, is_flag=True, help=text)


COMMANDS = {
    str(command.name): command
    for command in (
        _command(
            "export",
            """Export a PyTorch model to one ONNX file and compare it with PyTorch.

            The modules of the model are written to a file beside it.

            \b
            winml-dag export -m ./bert -t text-classification -o bert.onnx
            """,
            _model(type=TEXT, help="A hub id or a model folder [the recipe's]."),
            _output("", required=True),
            _recipe("model, loader and export"),
            task_option,
            submodel_option,
            input_options,
            EXPORT,
            random_weights_option,
            trust_option,
        ),
        _command(
            "optimize",
            """Optimize the graph of an ONNX model and compare the result with the model.

            \b
            winml-dag optimize -m model.onnx --enable gelu_fusion
            winml-dag optimize -m model.onnx --check-optim
            winml-dag optimize --list-capabilities
            """,
            _model(),
            _output("MODEL_opt.onnx"),
            _recipe("optim, validate and the target"),
            click.option("--enable", metavar="CAPABILITY", type=TEXT, multiple=True, help="Enable an optimization."),
            click.option("--disable", metavar="CAPABILITY", type=TEXT, multiple=True, help="Disable an optimization."),
            _flag("--list-capabilities", "List all optimizations and exit.", "-l"),
            _flag("--list-rewrites", "List the optimizations that replace a pattern and exit."),
            _flag("--check-optim", "Print what each disabled capability, or each of --enable, would change and exit."),
            winml_cli_options,
            target_options,
            VALIDATION,
            _VALIDATE,
            shape_options,
            run=_optimize,
        ),
        _command(
            "calibrate",
            """Run an ONNX model on data and write the range of every activation to one file.

            One calibration serves every static precision: `quantize --load-calibration` reads it, and builds with the
            same data reuse it.

            \b
            winml-dag calibrate -m model.onnx --calibration-data samples.npz -o ranges.json
            """,
            _model(required=True),
            _output("MODEL_ranges.json"),
            _recipe("quant and validate"),
            CALIBRATION,
            click.option(
                "--validate/--no-validate", default=None, help="Keep samples for validation, or calibrate on all [on]."
            ),
            shape_options,
        ),
        _command(
            "quantize",
            """Quantize an ONNX model to one file, with large weights in a file beside it.

            Runs calibrate, quantize and validate. Builds of the same model share the results.

            \b
            winml-dag quantize -m model.onnx -p w8a16 --calibration-data samples.npz
            winml-dag quantize -m model.onnx -p int4 -p fp16 -o small.onnx
            """,
            _model(required=True),
            _output("MODEL_quantized.onnx"),
            click.option(
                "-p", "--precision", type=TEXT, multiple=True, help="int8, w8a16, int4, fp16, ...; -p int4 -p fp16."
            ),
            _recipe("quant, validate and the target"),
            INTEGERS,
            CALIBRATION,
            RANGES,
            click.option("--save-calibration", type=FILE, help="Also write the activation ranges to this file."),
            target_options,
            VALIDATION,
            _VALIDATE,
            _flag("--sensitivity", "Rank nodes by the loss of quality from quantizing each alone."),
            shape_options,
        ),
        _command(
            "compile",
            """Compile an ONNX model ahead of time, then run it and compare it with the model.

            The provider's binary is written beside the model, or (`--embed`) into it. For a provider that runs ONNX
            models directly, the model is optimized.

            \b
            winml-dag compile -m quantized.onnx --ep qnn --soc-model 60
            winml-dag compile -m short.onnx -m long.onnx --ep qnn -o out
            """,
            _model(
                multiple=True,
                required=True,
                help="The ONNX model. Several share one binary with their common weights, in the folder -o.",
            ),
            _output("MODEL_compiled.onnx"),
            click.option("--output-dir", type=FILE, help="The same as -o with a folder."),
            _recipe("compile, validate and the target"),
            target_options,
            COMPILE,
            _VALIDATE,
            VALIDATION,
            shape_options,
        ),
    )
}


def outcome_lines(result: BuildResult, command: str) -> Iterator[str]:
    """Yield what a command for one stage prints besides."""
    # Imported here: a command that finds its result up to date needs none of this.
    from winml_dag.cli.stage_lines import reused
    from winml_dag.ep.registry import CPU
    from winml_dag.pipeline.buildresult import command_result, main_view

    outcome = command_result(result, command)
    line = _LINES.get(main_view(result, command).stage)
    metrics: Mapping[str, Any] = outcome.metrics
    components = metrics.get("components")
    took = f"{outcome.elapsed_seconds:.1f} s{reused(outcome.cached)}"
    if line and isinstance(components, Mapping):
        for name in result.build.components:
            yield f"{name}: {line(components[name])}"
        yield f"{counted(len(components), 'component')} of one model in {took}"
    elif line:
        yield f"{line(metrics)}, {took}"
    # For other providers and for quantized models, every build prints it.
    on_cpu = outcome.validation is not None and outcome.validation["execution_provider"] == CPU.name
    quantizes = any(stage.node.stage.name == "quantize" for stage in result.results)
    if on_cpu and outcome.quality is not None and not quantizes:
        yield f"compared with the given model: {outcome.quality.sentence()}"


def _optimized(metrics: Mapping[str, Any]) -> str:
    applied = [f"{name} in {counted(count, 'place')}" for name, count in metrics["applied"].items() if count]
    idle = [name for name, count in metrics["applied"].items() if not count and name not in metrics["left"]]
    nothing = [f"no place for {' and '.join(idle)}"] if idle else []
    left = [f"{name} left: {why}" for name, why in metrics["left"].items()]
    parts = [f"optimized {metrics['nodes_before']} -> {metrics['nodes_after']} nodes", *applied, *nothing, *left]
    return ", ".join(parts)


def _exported(metrics: Mapping[str, Any]) -> str:
    return (
        f"exported {counted(metrics['nodes'], 'node')} in opset {metrics['opset_version']}"
        f" ({metrics['exporter']}), {metrics['parameters']:,} parameters,"
        f" largest difference to PyTorch {metrics['max_abs_difference']:.2g}"
    )


def _calibrated(metrics: Mapping[str, Any]) -> str:
    return (
        f"ranges of {counted(metrics['tensors'], 'tensor')}"
        f" from {counted(metrics['samples'], 'sample')} ({metrics['data']})"
    )


_LINES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "optimize": _optimized,
    "export": _exported,
    "calibrate": _calibrated,
}
