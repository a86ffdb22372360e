"""What perf and eval told of a build, as a report has it. Their own reports are read as they print them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from winml_dag.canonical import JsonObject
from winml_dag.pipeline.sweep.result import GoalResult, Measured
from winml_dag.report.row import Accuracy, Latency, Quality
from winml_dag.report.told import at, count_at, number_at, object_at, text_at, texts_at, words_at
from winml_dag.stages.evaluate import METRICS

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
