"""What the files of one build say that belongs into a report: its manifest, and the reports of perf and eval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.ep.registry import find_ep
from winml_dag.errors import UsageError
from winml_dag.pipeline.manifest import Manifest, component_names
from winml_dag.pipeline.sweep.result import GoalResult, Measured, StageRun
from winml_dag.report.row import Accuracy, Latency, Placement, Quality, Size
from winml_dag.report.told import at, count_at, counts_at, number_at, object_at, objects_at, text_at, texts_at, words_at
from winml_dag.stages.evaluate import METRICS
from winml_dag.store.quantities import counted

# The value of a tool that is known by its content, not by a version.
_DIGESTS = ("xxh3-128:", "sha256:")


@dataclass(frozen=True)
class Built:
    """A finished build, as its manifest tells it. ``missing``: by the name of a part that is None, why.

    ``made_in_seconds``: what all its stages took when they were made; ``saved_seconds``: what of that was found, and
    ``seconds`` what the build that wrote the manifest took. ``peak_memory_bytes`` is of the stage that took most.
    """

    model: str
    precision: str
    ep: str
    device: str
    task: str | None
    size: Size | None
    quality: Quality | None
    placement: Placement | None
    nodes_quantized: int | None
    nodes_skipped: int | None
    skipped_reasons: Mapping[str, int]
    stages: tuple[StageRun, ...]
    seconds: float
    made_in_seconds: float
    saved_seconds: float
    peak_memory_bytes: int | None
    versions: Mapping[str, str]
    digest: str
    made_at: str
    notices: tuple[str, ...]
    components: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)


def built_of(manifest: Manifest, folder: Path) -> Built:
    """What *manifest*, which lies in *folder*, tells."""
    value = manifest.value
    components = component_names(value)
    stages = tuple(_stages(value, components))
    done = [stage for stage in stages if stage.told is not None]
    quality, no_quality = _quality(stages)
    placement, no_placement = _placement(stages)
    quantized = _last_of_each(stages, "quantize")
    size, no_size = _size(manifest, done)
    missing = {
        "size": no_size,
        "quality": no_quality,
        "placement": no_placement,
        "nodes_quantized": "" if quantized else _left_out(stages, "quantize", "nothing was quantized"),
    }
    runs = tuple(stage.run for stage in stages)
    reasons: Counter[str] = Counter()
    for stage in quantized:
        for by_reason in object_at(stage.told, "nodes_skipped_reasons").values():
            reasons.update(counts_at(by_reason))
    return Built(
        model=_model(value, done) or folder_name(folder),
        precision=text_at(value, "precision"),
        ep=_alias(text_at(value, "execution_provider")),
        device=text_at(value, "device"),
        task=text_at(value, "task") or None,
        size=size,
        quality=quality,
        placement=placement,
        nodes_quantized=_sum(quantized, "nodes_quantized"),
        nodes_skipped=_sum(quantized, "nodes_skipped"),
        skipped_reasons=dict(reasons),
        stages=runs,
        seconds=number_at(value, "elapsed_seconds") or 0.0,
        made_in_seconds=sum(run.made_in_seconds or 0.0 for run in runs),
        saved_seconds=sum(run.made_in_seconds or 0.0 for run in runs if run.status == "reused"),
        peak_memory_bytes=max((run.peak_memory_bytes or 0 for run in runs), default=0) or None,
        versions=_versions(done),
        digest=next((found for stage in reversed(done) if (found := _digest(stage))), ""),
        made_at=text_at(value, "timestamp"),
        notices=texts_at(value, "notices"),
        components=components,
        missing={part: why for part, why in missing.items() if why},
    )


def _model(value: JsonObject, done: Sequence[_Stage]) -> str:
    """With the module, where only that was built: each of them is a model of its own."""
    modules = (text_at(stage.told, "config", "loader", "module_path") for stage in _done(done, "export"))
    return " ".join(part for part in (text_at(value, "model_id"), next(modules, "")) if part)


def folder_name(folder: Path) -> str:
    """What a build without a model is called: the recipe of which it has the stages, or else its folder."""
    return folder.name or folder.resolve().name


@dataclass(frozen=True)
class _Stage:
    """One stage of a manifest; ``told`` is None for one that was left out, with the reason in ``run``."""

    run: StageRun
    component: str
    told: JsonObject | None

    @property
    def name(self) -> str:
        return self.run.stage


def _stages(value: JsonObject, components: Sequence[str]) -> Iterator[_Stage]:
    for told in objects_at(value, "stages"):
        name = text_at(told, "name")
        run_id = text_at(told, "id") or name
        component = next((each for each in components if run_id.startswith(f"{each}.")), "")
        if text_at(told, "status") == "completed":
            yield _Stage(_run(told, run_id, name), component, told)
        else:
            yield _Stage(StageRun(run_id, name, "skipped", text_at(told, "reason")), component, None)


def _run(told: JsonObject, run_id: str, name: str) -> StageRun:
    was_found, seconds = at(told, "cached") is True, number_at(told, "elapsed_seconds")
    return StageRun(
        id=run_id,
        stage=name,
        status="reused" if was_found else "ran",
        reason=text_at(told, "reason"),
        cache_key=text_at(told, "cache_key") or None,
        elapsed_seconds=0.0 if was_found else seconds or 0.0,
        made_in_seconds=seconds,
        peak_memory_bytes=count_at(told, "metrics", "peak_memory_bytes"),
        made_at=text_at(told, "made_at"),
        made_by=text_at(told, "made_by"),
    )


def _left_out(stages: Iterable[_Stage], name: str, otherwise: str) -> str:
    """Why no stage of that *name* has a result."""
    return next((stage.run.reason for stage in stages if stage.name == name and stage.run.reason), otherwise)


def _done(stages: Iterable[_Stage], name: str) -> list[_Stage]:
    return [stage for stage in stages if stage.name == name and stage.told is not None]


def _last_of_each(stages: Iterable[_Stage], name: str) -> list[_Stage]:
    """Of each component the last: a second quantization tells of the model that came out."""
    return list({stage.component: stage for stage in _done(stages, name)}.values())


def _sum(stages: Iterable[_Stage], name: str) -> int | None:
    found = [count for stage in stages if (count := count_at(stage.told, name)) is not None]
    return sum(found) if found else None


def _size(manifest: Manifest, done: Sequence[_Stage]) -> tuple[Size | None, str]:
    """Each content once, however often it lies there."""
    folder = sum({file.digest: file.size for file in manifest.files}.values())
    finals = _done(done, "finalize")
    shipped = {
        digest: (size, text_at(file, "name"))
        for stage in finals
        for output in object_at(stage.told, "outputs")
        for file in objects_at(stage.told, "outputs", output, "files")
        if (size := count_at(file, "size")) is not None and (digest := text_at(file, "digest"))
    }
    if not shipped:
        placed = {file.digest: file.size for files in manifest.placed.values() for file in files}
        if not placed:
            return None, "the build ships no model"
        return None, f"the recipe's own stages put {counted(len(placed), 'file')} in place, and none is its model"
    beside = sum(size for size, name in shipped.values() if not name.endswith(".onnx"))
    embeds = any(at(stage.told, "config", "compile", "embed_context") is True for stage in _done(done, "compile"))
    return Size(sum(size for size, _ in shipped.values()), beside, folder, embeds), ""


def _quality(stages: Sequence[_Stage]) -> tuple[Quality | None, str]:
    """Of several components, that of the one that is farthest from its float model."""
    validated = _done(stages, "validate")
    found = [quality for stage in validated if (quality := _quality_of(stage)) is not None]
    if found:
        return min(found, key=lambda one: 1.0 if one.cosine is None else one.cosine), ""
    if validated:
        return None, "there was no float model to hold it against"
    return None, _left_out(stages, "validate", "the build does not validate")


def _quality_of(stage: _Stage) -> Quality | None:
    told = object_at(stage.told, "metrics", "quality")
    if not told:
        return None
    cosine, bound = number_at(told, "cosine"), number_at(stage.told, "metrics", "min_cosine")
    return Quality(
        cosine=cosine,
        cosine_min=number_at(told, "cosine_min"),
        sqnr_db=number_at(told, "sqnr_db"),
        max_abs_error=number_at(told, "max_abs_error"),
        samples=count_at(told, "samples") or 0,
        data=text_at(told, "data"),
        bound=bound,
        # It has a record, so it kept all of its bounds.
        passed=None if bound is None else True,
    )


def _placement(stages: Sequence[_Stage]) -> tuple[Placement | None, str]:
    compiled = _done(stages, "compile")
    if not compiled:
        why = _left_out(stages, "compile", "nothing was compiled")
        return None, f"{why}{_when_loaded(stages)}"
    on_cpu: Counter[str] = Counter()
    for stage in compiled:
        on_cpu.update(counts_at(stage.told, "nodes_on_cpu"))
    return Placement(_sum(compiled, "ep_context_partitions") or 0, dict(on_cpu)), ""


def _when_loaded(stages: Sequence[_Stage]) -> str:
    """Where the nodes of a model that is not compiled ran when it was validated; of the CPU there is nothing to say."""
    assigned: Counter[str] = Counter()
    for stage in _done(stages, "validate"):
        for provider, by_type in object_at(stage.told, "metrics", "assigned_nodes").items():
            assigned[_alias(provider)] += sum(counts_at(by_type).values())
    told = ", ".join(f"{counted(count, 'node')} on {ep}" for ep, count in sorted(assigned.items()))
    return f"; when it was validated: {told}" if told else ""


def _versions(done: Iterable[_Stage]) -> dict[str, str]:
    """By tool; where stages were made with different ones, all of them."""
    found: dict[str, set[str]] = {}
    for stage in done:
        for name, version in words_at(stage.told, "toolchain").items():
            if not version.startswith(_DIGESTS):
                found.setdefault(name, set()).add(version)
        if stage.name == "compile" and (sdk := text_at(stage.told, "ep_sdk_version")):
            found.setdefault("SDK of the provider", set()).add(sdk)
        maker, _, version = text_at(stage.told, "made_by").rpartition(" ")
        if maker:
            found.setdefault(maker, set()).add(version)
    return {name: ", ".join(sorted(versions)) for name, versions in sorted(found.items())}


def _digest(stage: _Stage) -> str:
    return text_at(stage.told, "outputs", "model", "digest") if stage.name == "finalize" else ""


def _alias(provider: str) -> str:
    """As users write it."""
    try:
        return find_ep(provider).alias if provider else ""
    except UsageError:  # of a version that knows more of them
        return provider


# What the notice of perf on an emulated device says, in all of its versions.
_EMULATED = "emulated"


def latency_of(perf: Measured | None, *, is_through: bool = True) -> tuple[Latency | None, str]:
    """What perf measured; or None, and why there is nothing. *is_through*: the run came to its end."""
    if perf is None:
        return None, _not_measured("perf", is_through)
    if perf.error:
        return None, perf.error
    told = perf.report
    p50, p90, p99 = (number_at(told, "latency_ms", name) for name in ("p50", "p90", "p99"))
    if p50 is None or p90 is None or p99 is None:
        return None, "the report of perf has no latencies"
    return Latency(
        p50=p50,
        p90=p90,
        p99=p99,
        inferences=count_at(told, "latency_ms", "inferences") or 0,
        warmup=count_at(told, "warmup") or 0,
        measured=perf.measured,
        made_at=perf.made_at,
        load_seconds=number_at(told, "load", "seconds"),
        peak_memory_bytes=count_at(told, "memory_bytes", "peak"),
        emulated=any(_EMULATED in notice for notice in texts_at(told, "notices")),
        host=words_at(told, "host"),
        waited_share=number_at(told, "waited_share"),
    ), ""


def accuracy_of(
    found: Measured | None, goals: Iterable[GoalResult] = (), *, is_through: bool = True
) -> tuple[Accuracy | None, str]:
    """The same of eval, and of a task its most telling metric. The bound is that of *goals*."""
    if found is None:
        return None, _not_measured("eval", is_through)
    if found.error:
        return None, found.error
    told = found.report
    metrics = object_at(told, "metrics")
    if not metrics:
        return None, "eval compared outputs, without labels" if at(told, "outputs") else "the report has no metrics"
    name = _most_telling(text_at(told, "task"), metrics)
    value = number_at(metrics, name, "candidate", "value")
    if value is None:
        return None, f"{name} is not defined on these samples"
    reference = number_at(metrics, name, "reference", "value")
    # All metrics of eval are better when they are higher.
    drop = None if reference is None else reference - value
    bound = _bound("accuracy_drop", goals)
    significant = at(metrics, name, "difference", "significant")
    return Accuracy(
        metric=name,
        value=value,
        higher_is_better=True,
        samples=count_at(told, "samples") or 0,
        measured=found.measured,
        made_at=found.made_at,
        reference=reference,
        drop=drop,
        interval=_interval(object_at(metrics, name, "candidate")),
        significant=significant if isinstance(significant, bool) else None,
        bound=bound,
        passed=None if bound is None or drop is None else drop <= bound,
    ), ""


def quality_of(found: Measured | None) -> Quality | None:
    """The worst of all outputs, where eval compared them with those of the float model."""
    if found is None or not (outputs := object_at(found.report, "outputs")):
        return None

    def worst(name: str, *, largest: bool = False) -> float | None:
        known = [value for output in outputs.values() if (value := number_at(output, name)) is not None]
        return (max if largest else min)(known, default=None)

    return Quality(
        cosine=worst("cosine"),
        cosine_min=worst("cosine_min"),
        sqnr_db=worst("sqnr_db"),
        max_abs_error=worst("max_abs_error", largest=True),
        samples=count_at(found.report, "samples") or 0,
        data=text_at(found.report, "data"),
    )


def held_to(quality: Quality, goals: Iterable[GoalResult]) -> Quality:
    """*quality* with the bound of *goals*, where that asks for more than validate did."""
    bound = _bound("cosine", goals)
    if bound is None or quality.cosine is None or (quality.bound is not None and quality.bound >= bound):
        return quality
    return Quality(**{**vars(quality), "bound": bound, "passed": quality.cosine >= bound})


def _not_measured(what: str, is_through: bool) -> str:
    not_yet = "" if is_through else "the run did not come to it, or "
    return f"{not_yet}{what} was not asked for (measure: [{what}])"


def _most_telling(task: str, metrics: Mapping[str, object]) -> str:
    return next((name for name in METRICS.get(task, ()) if name in metrics), next(iter(metrics)))


def _interval(candidate: JsonObject) -> tuple[float, float] | None:
    low, high = number_at(candidate, "low"), number_at(candidate, "high")
    return None if low is None or high is None else (low, high)


def _bound(measure: str, goals: Iterable[GoalResult]) -> float | None:
    """The first that a goal has for *measure*, such as ``<=0.01``."""
    for goal in goals:
        try:
            return float(goal.subject_to[measure].lstrip("<>= "))
        except (KeyError, ValueError):
            continue
    return None
