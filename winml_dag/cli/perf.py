"""``winml-dag perf``: measure load time, latency and memory use of a finished model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.cli import Note, show
from winml_dag.cli.command import FILE, TEXT, Command, folder_option, pairs
from winml_dag.cli.measuring import (
    assessed,
    built_model_options,
    headline,
    loaded_recipe,
    refuse_both,
    request_for,
    run_target_options,
    stage_timeout_option,
)
from winml_dag.cli.options import How, how_options
from winml_dag.cli.settings import COUNT, SEED, Settings
from winml_dag.errors import UsageError
from winml_dag.store.quantities import counted, size_text

if TYPE_CHECKING:
    from winml_dag.pipeline.assess.measurement import AssessmentRequest, Measurement
    from winml_dag.pipeline.assess.perf import PerfPlan
    from winml_dag.recipe.schema import Perf

_FIGURES = ("mean", "p50", "p90", "p99", "min", "max", "std")
_LABEL = 12


def _sizes(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, int] | None:
    """Parse repeated ``NAME=NUMBER`` options into a mapping."""
    named = pairs(context, parameter, given) or {}
    if wrong := next((value for value in named.values() if not value.isdecimal() or int(value) < 1), None):
        raise click.BadParameter(f"{wrong!r} is not a whole number above 0.", param=parameter)
    return {name: int(value) for name, value in named.items()} or None


_PERF = Settings.of(
    "perf",
    ("iterations", COUNT, "Number of inferences to measure [100]."),
    ("warmup", click.IntRange(min=0), "Number of inferences before the measurement [10]."),
    ("duration", click.FloatRange(min=0, min_open=True), "Measure for this many seconds instead."),
    ("loads", COUNT, "Number of fresh processes that load the model [5]."),
    ("threads", COUNT, "Threads per operator [onnxruntime's default]."),
    ("batch_size", COUNT, "Samples per inference, for a model with a dynamic batch size [1]."),
    ("sizes", [TEXT], "Size of a dynamic axis, for random inputs [1].", "--size", "sizes",
     {"metavar": "NAME=NUMBER", "callback": _sizes}),
    ("input_data", FILE, "Inputs: a .npz file with an array for each input [random ones]."),
    ("seed", SEED, "Seed of random inputs [0]."),
)  # fmt: skip


@click.command(name="perf", cls=Command, panel="Measurement")
@built_model_options
@run_target_options
@_PERF
@click.option("--baseline", type=FILE, help="Also measure the load time of this model [the model before compilation].")
@click.option("--no-baseline", is_flag=True, help="Measure only this model.")
@folder_option("Write perf.json and histogram.png to this folder.")
@stage_timeout_option
@how_options
def command(**options: Any) -> None:
    """Measure load time, latency, throughput and memory of a model. The results are cached for each machine; --rebuild
    measures again.

    \b
    winml-dag perf model.onnx
    winml-dag perf out --duration 10 -o measured
    winml-dag perf -c recipe.yaml --format json
    """
    from winml_dag.pipeline.assess.perf import plan_perf

    how = How.of(options)
    folder = options["output_dir"]
    plan, done = assessed(options, how, _request_of(options), partial(plan_perf, draws=folder is not None))
    show(plan.report(done, folder), _lines(plan, done, folder, quiet=how.quiet))


def _request_of(options: Mapping[str, Any]) -> AssessmentRequest[Perf]:
    """Return the request for the *options* of a call, by the names of the command's parameters, and for its recipe."""
    from winml_dag.recipe.schema import Perf

    refuse_both(options, "baseline")
    given = _PERF.given(options)
    if "iterations" in given and "duration" in given:
        raise UsageError("--iterations and --duration say both when to end.", advice="Give one of them.")
    loaded, base = loaded_recipe(options)
    written = {} if loaded is None else loaded.recipe.perf.to_dict()
    for one, other in (("iterations", "duration"), ("input_data", "sizes")):
        if given.keys() & {one, other}:  # an option for either replaces both
            written = {name: value for name, value in written.items() if name not in (one, other)}
    return request_for(Perf.from_dict({**written, **given}), base, options, "baseline")


def _lines(plan: PerfPlan, done: Measurement, folder: Path | None, *, quiet: bool) -> Iterator[str]:
    """Format the measurements for people. *quiet* keeps only the numbers."""
    from winml_dag.stages.perf import PICTURE_FILE, REPORT_FILE
    from winml_dag.stages.perf.latency import EMULATED

    found: Any = done.metrics
    if not quiet:
        yield headline(plan, done, "measure")
    yield from (f"  {label:<{_LABEL}} {text}" for label, text in _numbers(plan, found))
    if quiet:
        # Without this note, the numbers above would be mistaken for the device's.
        yield from (Note(notice) for notice in found["notices"] if notice == EMULATED)
        return
    yield from (f"  {label:<{_LABEL}} {text}" for label, text in _conditions(found))
    yield from map(Note, found["notices"])
    if folder is not None:
        picture = "none, since matplotlib is not installed (pip install winml_dag[plot])"
        yield f"report: {folder / REPORT_FILE}, picture: {folder / PICTURE_FILE if plan.draws else picture}"


def _numbers(plan: PerfPlan, found: Any) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line with numbers."""
    yield "load", _load(found["load"])
    baseline = found["baseline"]
    if baseline is not None and plan.reference is not None:
        uncompiled = plan.built.uncompiled
        label = "uncompiled" if uncompiled is not None and plan.reference.path == uncompiled.path else "baseline"
        ratio = f"{baseline['times_longer']:.3g} times as long"
        yield label, f"{_load(baseline['load'])}: {ratio} ({plan.reference.path.name})"
    yield "first", f"{_digits(found['first_inference_ms'])} ms, the first inference after loading"
    latency, throughput, memory = found["latency_ms"], found["throughput"], found["memory_bytes"]
    yield "latency, ms", "  ".join(f"{name} {_digits(latency[name])}" for name in _FIGURES)
    warmup = f"after {found['warmup']} to warm up" if found["warmup"] else "without warm-up"
    threads = "" if found["threads"] is None else f", {counted(found['threads'], 'thread')}"
    yield "", f"{counted(latency['inferences'], 'inference')} {warmup}{threads}"
    samples = f", {_digits(throughput['samples_per_second'])} samples/s" if found["batch_size"] > 1 else ""
    yield "throughput", f"{_digits(throughput['inferences_per_second'])} inferences/s{samples}"
    words = {"before_load": "before loading", "after_load": "after it", "peak": "at most"}
    sizes = [f"{size_text(memory[name])} {word}" for name, word in words.items() if memory[name] is not None]
    yield "memory", ", ".join(sizes) or "not reported by this system"


def _conditions(found: Any) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line on what was measured, and where."""
    shapes = ", ".join(f"{spec['name']} {spec['dtype']} {spec['shape']}" for spec in found["inputs"])
    is_random = found["data"] == "random"
    made = f"random, seed {found['seed']}" if is_random else f"{counted(found['feeds'], 'inference')} from the file"
    yield "inputs", f"{shapes} ({made})"
    host = found["host"]
    cores = f"{host['usable cores']} of {host['logical cores']} cores"
    where = f"{host['processor']}, {cores}, {host['memory']}, {host['system']}"
    yield "host", f"{where}; onnxruntime {found['onnxruntime']}"


def _load(load: Any) -> str:
    each = load["each_seconds"]
    several = f"median of {len(each)} fresh processes, {min(each):.3f} to {max(each):.3f}"
    return f"{load['seconds']:.3f} s ({several if len(each) > 1 else '1 fresh process'})"


def _digits(value: float) -> str:
    """Format four significant digits, without an exponent for larger numbers."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
