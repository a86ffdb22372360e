"""What a report takes from the files of one build: its manifest, and the reports of perf and eval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from winml_dag.ep.registry import find_ep
from winml_dag.errors import UsageError
from winml_dag.pipeline.documents import BuildManifest, EvalReport, Figures, PerfReport, Stage
from winml_dag.pipeline.manifest import Manifest
from winml_dag.pipeline.sweep.result import CellStatus, GoalResult, Measured, StageRun
from winml_dag.report.row import Accuracy, Latency, Placement, Quality, Row, Size
from winml_dag.store.quantities import counted

# The version of a tool that is identified by its content.
_DIGESTS = ("xxh3-128:", "sha256:")
# Part of perf's notice on an emulated device, in all versions.
_EMULATED = "emulated"


def row_of_build(name: str, manifest: Manifest, folder: Path) -> Row:
    """Return the complete row of the build whose *manifest* is in *folder*."""
    build = manifest.build
    done = [stage for stage in build.stages if stage.is_done]
    quality, no_quality = _quality(build)
    placement, no_placement = _placement(build)
    # Of each component the last: a second quantization describes the final model.
    quantized = {build.component_of(stage): stage for stage in build.done("quantize")}.values()
    size, no_size = _size(manifest)
    missing = {
        "size": no_size,
        "quality": no_quality,
        "placement": no_placement,
        "nodes_quantized": "" if quantized else _why_skipped(build, "quantize", "nothing was quantized"),
    }
    runs, shipped = tuple(map(_run, build.stages)), reversed(build.done("finalize"))
    reasons: Counter[str] = Counter()
    for stage in quantized:
        for by_reason in stage.nodes_skipped_reasons.values():
            reasons.update(by_reason)
    return Row(
        name=name,
        values={},
        model=_model(build) or folder.name or folder.resolve().name,
        precision=build.precision,
        ep=_alias(build.execution_provider),
        device=build.device,
        status=CellStatus.BUILT,
        task=build.task or None,
        reached=next((run.id for run in reversed(runs) if run.status != "skipped"), None),
        folder=str(folder),
        stages=runs,
        size=size,
        quality=quality,
        placement=placement,
        nodes_quantized=_sum(stage.nodes_quantized for stage in quantized),
        nodes_skipped=_sum(stage.nodes_skipped for stage in quantized),
        skipped_reasons=dict(reasons),
        seconds=build.elapsed_seconds or 0.0,
        made_in_seconds=sum(run.made_in_seconds or 0.0 for run in runs),
        saved_seconds=sum(run.made_in_seconds or 0.0 for run in runs if run.status == "reused"),
        peak_memory_bytes=max((run.peak_memory_bytes or 0 for run in runs), default=0) or None,
        versions=_versions(done),
        digest=next((stage.outputs["model"].digest for stage in shipped if "model" in stage.outputs), ""),
        notices=tuple(build.notices),
        components=tuple(build.components),
        missing={part: why for part, why in missing.items() if why},
    )


def _model(build: BuildManifest) -> str:
    """Return the model's name, with the module if only that was built: each module is a model of its own."""
    modules = (stage.settings.loader.module_path for stage in build.done("export"))
    return " ".join(part for part in (build.model_id, next(modules, "")) if part)


def _run(stage: Stage) -> StageRun:
    run_id = stage.id or stage.name
    if not stage.is_done:
        return StageRun(run_id, stage.name, "skipped", stage.reason)
    return StageRun(
        id=run_id,
        stage=stage.name,
        status="reused" if stage.cached else "ran",
        reason=stage.reason,
        cache_key=stage.cache_key or None,
        elapsed_seconds=0.0 if stage.cached else stage.elapsed_seconds or 0.0,
        made_in_seconds=stage.elapsed_seconds,
        peak_memory_bytes=stage.metrics.peak_memory_bytes,
        made_at=stage.made_at,
        made_by=stage.made_by,
    )


def _why_skipped(build: BuildManifest, name: str, otherwise: str) -> str:
    """Return why no stage called *name* has a result."""
    return next((stage.reason for stage in build.stages if stage.name == name and stage.reason), otherwise)


def _sum(counts: Iterable[int | None]) -> int | None:
    found = [count for count in counts if count is not None]
    return sum(found) if found else None


def _size(manifest: Manifest) -> tuple[Size | None, str]:
    """Return the size of the model and the folder. Files of equal content count once."""
    shipped = manifest.build.shipped.values()
    if not shipped:
        placed = {file.digest for files in manifest.placed.values() for file in files}
        if not placed:
            return None, "the build ships no model"
        return None, f"the recipe's own stages put {counted(len(placed), 'file')} in place, and none is its model"
    folder = sum({file.digest: file.size for file in manifest.files}.values())
    beside = sum(file.size for file in shipped if not file.name.endswith(".onnx"))
    embeds = any(stage.settings.compile.embed_context for stage in manifest.build.done("compile"))
    return Size(sum(file.size for file in shipped), beside, folder, embeds), ""


def _quality(build: BuildManifest) -> tuple[Quality | None, str]:
    """Return the quality; of several components, that of the one farthest from its float model."""
    validated = [stage.metrics for stage in build.done("validate")]
    found = [(metrics.quality, metrics.min_cosine) for metrics in validated if metrics.quality is not None]
    if found:
        quality, bound = min(found, key=lambda one: 1.0 if one[0].cosine is None else one[0].cosine)
        # It has a record, so it passed all thresholds.
        return Quality(**dict(quality), bound=bound, passed=None if bound is None else True), ""
    if validated:
        return None, "there was no float model to compare with"
    return None, _why_skipped(build, "validate", "the build does not validate")


def _placement(build: BuildManifest) -> tuple[Placement | None, str]:
    compiled = build.done("compile")
    if not compiled:
        why = _why_skipped(build, "compile", "nothing was compiled")
        return None, f"{why}{_when_loaded(build)}"
    on_cpu: Counter[str] = Counter()
    for stage in compiled:
        on_cpu.update(stage.nodes_on_cpu)
    return Placement(_sum(stage.ep_context_partitions for stage in compiled) or 0, dict(on_cpu)), ""


def _when_loaded(build: BuildManifest) -> str:
    """Return where the nodes of an uncompiled model ran during validation; empty if on the CPU."""
    assigned: Counter[str] = Counter()
    for stage in build.done("validate"):
        for provider, by_type in stage.metrics.assigned_nodes.items():
            assigned[_alias(provider)] += sum(by_type.values())
    counts = ", ".join(f"{counted(count, 'node')} on {ep}" for ep, count in sorted(assigned.items()))
    return f"; when it was validated: {counts}" if counts else ""


def _versions(done: Iterable[Stage]) -> dict[str, str]:
    """Return versions per tool; all of them if stages ran with different ones."""
    found: dict[str, set[str]] = {}
    for stage in done:
        for name, version in stage.toolchain.items():
            if not version.startswith(_DIGESTS):
                found.setdefault(name, set()).add(version)
        if stage.name == "compile" and stage.ep_sdk_version:
            found.setdefault("SDK of the provider", set()).add(stage.ep_sdk_version)
        maker, _, version = stage.made_by.rpartition(" ")
        if maker:
            found.setdefault(maker, set()).add(version)
    return {name: ", ".join(sorted(versions)) for name, versions in sorted(found.items())}


def _alias(provider: str) -> str:
    """Return the name that users write."""
    try:
        return find_ep(provider).alias if provider else ""
    except UsageError:  # from a version that supports more providers
        return provider


def latency_of(perf: Measured | None, *, is_through: bool = True) -> tuple[Latency | None, str]:
    """Return the latency that perf measured, or None and the reason. *is_through*: the run was completed."""
    if perf is None:
        return None, _not_measured("perf", is_through)
    if perf.error:
        return None, perf.error
    report = PerfReport.model_validate(perf.report)
    times = report.latency_ms
    if times.p50 is None or times.p90 is None or times.p99 is None:
        return None, "the report of perf has no latencies"
    return Latency(
        p50=times.p50,
        p90=times.p90,
        p99=times.p99,
        inferences=times.inferences,
        warmup=report.warmup,
        measured=perf.measured,
        made_at=perf.made_at,
        load_seconds=report.load.seconds,
        peak_memory_bytes=report.memory_bytes.peak,
        emulated=any(_EMULATED in notice for notice in report.notices),
        host=report.host,
        waited_share=report.waited_share,
    ), ""


def accuracy_of(
    found: Measured | None, goals: Iterable[GoalResult] = (), *, is_through: bool = True
) -> tuple[Accuracy | None, str]:
    """Return the accuracy that eval measured, or None and the reason.

    For a task it is the most significant metric. The bound comes from *goals*.
    """
    if found is None:
        return None, _not_measured("eval", is_through)
    if found.error:
        return None, found.error
    report = EvalReport.model_validate(found.report)
    if not report.metrics:
        return None, "eval compared outputs, without labels" if report.outputs else "the report has no metrics"
    name = report.main_metric or next(iter(report.metrics))
    metric = report.metrics[name]
    value, low, high, drop = metric.candidate.value, metric.candidate.low, metric.candidate.high, metric.drop
    if value is None:
        return None, f"{name} is not defined on these samples"
    bound = _bound("accuracy_drop", goals)
    return Accuracy(
        metric=name,
        value=value,
        higher_is_better=True,
        samples=report.samples,
        measured=found.measured,
        made_at=found.made_at,
        reference=metric.reference.value,
        drop=drop,
        interval=None if low is None or high is None else (low, high),
        significant=metric.difference.significant,
        bound=bound,
        passed=None if bound is None or drop is None else drop <= bound,
    ), ""


def quality_of(found: Measured | None) -> Quality | None:
    """Return the worst quality of all outputs, if eval compared them with those of the float model."""
    if found is None:
        return None
    report = EvalReport.model_validate(found.report)
    if not report.outputs:
        return None

    worst = Figures.worst(report.outputs.values()).model_copy(update={"samples": report.samples, "data": report.data})
    return Quality(**dict(worst))


def held_to(quality: Quality, goals: Iterable[GoalResult]) -> Quality:
    """Return *quality* with the bound of *goals*, if that is stricter than validate's."""
    bound = _bound("cosine", goals)
    if bound is None or quality.cosine is None or (quality.bound is not None and quality.bound >= bound):
        return quality
    return replace(quality, bound=bound, passed=quality.cosine >= bound)


def _not_measured(what: str, is_through: bool) -> str:
    not_yet = "" if is_through else "the run ended before, or "
    return f"{not_yet}{what} was not requested (measure: [{what}])"


def _bound(measure: str, goals: Iterable[GoalResult]) -> float | None:
    """Return the first bound that a goal sets on *measure*, such as ``<=0.01``."""
    for goal in goals:
        try:
            return float(goal.subject_to[measure].lstrip("<>= "))
        except (KeyError, ValueError):
            continue
    return None
