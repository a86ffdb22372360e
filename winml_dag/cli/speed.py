"""What ``perf`` prints for people; for programs, see :func:`winml_dag.pipeline.finished.perf.perf_json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.stages.perf import PICTURE_FILE, REPORT_FILE
from winml_dag.stages.perf.notices import EMULATED
from winml_dag.store.quantities import counted, size_text

if TYPE_CHECKING:
    from winml_dag.pipeline.finished.measurement import Measurement
    from winml_dag.pipeline.finished.perf import PerfPlan

_FIGURES = ("mean", "p50", "p90", "p99", "min", "max", "std")
_LABEL = 12


def speed_lines(plan: PerfPlan, done: Measurement, folder: Path | None, *, quiet: bool) -> Iterator[str]:
    """What was measured, of what; *quiet* leaves out what is not a figure."""
    found: Any = done.metrics
    if not quiet:
        yield f"{_what(plan)}: {_when(done)}"
    yield from _load_lines(plan, found)
    yield _line("first", f"{_digits(found['first_inference_ms'])} ms, the first inference after loading")
    yield from _latency_lines(found)
    yield _line("memory", _memory(found["memory_bytes"]))
    if quiet:
        # Without it, the figures above would be taken for the device's.
        yield from (f"note: {notice}" for notice in found["notices"] if notice == EMULATED)
        return
    yield _line("inputs", _inputs(found))
    yield _line("host", _host(found))
    for notice in found["notices"]:
        yield f"note: {notice}"
    if folder is not None:
        picture = "none, since matplotlib is not installed (pip install winml_dag[plot])"
        yield f"report: {folder / REPORT_FILE}, picture: {folder / PICTURE_FILE if plan.draws else picture}"


def _what(plan: PerfPlan) -> str:
    precision = f" ({plan.precision})" if plan.precision else ""
    return f"{plan.subject.model.path}{precision} on {plan.target.ep.name}, {plan.target.device}"


def _when(done: Measurement) -> str:
    if done.is_live:
        return f"measured live, in {done.elapsed_seconds:.1f} s"
    return f"cached, measured {done.made_at} (--rebuild measures again)"


def _load_lines(plan: PerfPlan, found: Any) -> Iterator[str]:
    load, baseline = found["load"], found["baseline"]
    yield _line("load", _load(load))
    if baseline is None or plan.baseline is None:
        return
    ratio = f"{baseline['times_longer']:.3g} times as long"
    label = "uncompiled" if plan.baseline.path == _path(plan.subject.uncompiled) else "baseline"
    yield _line(label, f"{_load(baseline['load'])}: {ratio} ({plan.baseline.path.name})")


def _path(model: Any) -> Path | None:
    return None if model is None else model.path


def _load(load: Any) -> str:
    each = load["each_seconds"]
    of = (
        "1 fresh process"
        if len(each) == 1
        else f"median of {len(each)} fresh processes, {min(each):.3f} to {max(each):.3f}"
    )
    return f"{load['seconds']:.3f} s ({of})"


def _latency_lines(found: Any) -> Iterator[str]:
    latency, throughput = found["latency_ms"], found["throughput"]
    figures = "  ".join(f"{name} {_digits(latency[name])}" for name in _FIGURES)
    warmup = f"after {found['warmup']} to warm up" if found["warmup"] else "without warm-up"
    counts = f"{counted(latency['inferences'], 'inference')} {warmup}"
    threads = "" if found["threads"] is None else f", {counted(found['threads'], 'thread')}"
    yield _line("latency, ms", figures)
    yield _line("", f"{counts}{threads}")
    samples = f", {_digits(throughput['samples_per_second'])} samples/s" if found["batch_size"] > 1 else ""
    yield _line("throughput", f"{_digits(throughput['inferences_per_second'])} inferences/s{samples}")


def _digits(value: float) -> str:
    """Four of them, but no power of ten for what is larger."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _memory(memory: Mapping[str, int | None]) -> str:
    words = {"before_load": "before loading", "after_load": "after it", "peak": "at most"}
    known = {word: memory[name] for name, word in words.items()}
    told = [f"{size_text(size)} {word}" for word, size in known.items() if size is not None]
    return ", ".join(told) or "not told by this system"


def _inputs(found: Any) -> str:
    shapes = ", ".join(f"{spec['name']} {spec['dtype']} {spec['shape']}" for spec in found["inputs"])
    made = (
        f"random, seed {found['seed']}"
        if found["data"] == "random"
        else f"{counted(found['feeds'], 'inference')} from the file"
    )
    return f"{shapes} ({made})"


def _host(found: Any) -> str:
    host = found["host"]
    cores = f"{host['usable cores']} of {host['logical cores']} cores"
    return f"{host['processor']}, {cores}, {host['memory']}, {host['system']}; onnxruntime {found['onnxruntime']}"


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}} {text}"
