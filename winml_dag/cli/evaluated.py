"""What ``eval`` prints for people; for programs, see :mod:`winml_dag.pipeline.finished.evaluated`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.errors import UsageError
from winml_dag.pipeline.finished.evaluated import AGREEMENTS, figures, kept, notices_of, report_of
from winml_dag.stages.evaluate import REPORT_FILE
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.finished.evaluation import EvaluationPlan
    from winml_dag.pipeline.finished.measurement import Measurement


def shortfalls(bounds: Mapping[str, float], done: Measurement) -> Iterator[str]:
    """A sentence for each of *bounds* that the model does not keep."""
    known = figures(done)
    for name, keeps in kept(bounds, done).items():
        if not keeps:
            found = "not defined" if known[name] is None else _number(known[name])
            yield f"error: {name} is {found}, and the bound is {bounds[name]:g}."


def evaluated_lines(plan: EvaluationPlan, done: Measurement, folder: Path | None, *, quiet: bool) -> Iterator[str]:
    """The same for people; *quiet* leaves out what is no figure."""
    found: Any = report_of(done)
    if not quiet:
        yield f"{_what(plan)}: {_when(done)}"
        yield _on(plan, found)
    yield from _outputs_table(found["outputs"]) if "outputs" in found else _metrics_table(found["metrics"])
    if quiet:
        return
    for notice in notices_of(plan, done):
        yield f"note: {notice}"
    if folder is not None:
        yield f"report: {folder / REPORT_FILE}"


def require_known(bounds: Mapping[str, float], done: Measurement) -> None:
    """Raise UsageError for a bound of what was not measured."""
    known = figures(done)
    for name in bounds:
        if name not in known:
            raise UsageError(f"--min: there is no metric {name!r}.", advice=f"There are: {', '.join(known)}.")


def _what(plan: EvaluationPlan) -> str:
    precision = f" ({plan.subject.precision})" if plan.subject.precision else ""
    return f"{plan.subject.model.path}{precision} on {plan.target.ep.name}, {plan.target.device}"


def _when(done: Measurement) -> str:
    if done.is_live:
        return f"evaluated live, in {done.elapsed_seconds:.1f} s"
    return f"cached, evaluated {done.made_at} (--rebuild evaluates again)"


def _on(plan: EvaluationPlan, found: Any) -> str:
    samples = counted(found["samples"], "sample")
    of = "" if found["of"] in (None, found["samples"]) else f" of {found['of']}"
    data = "random" if found["data"] == "random" else found["data"]
    beside = "" if plan.reference is None else f", beside {plan.reference.path}"
    return f"{plan.task or 'outputs'} on {samples}{of} ({data}){beside}"


def _metrics_table(metrics: Mapping[str, Any]) -> Iterator[str]:
    rows = [["", "model", "reference", "difference", ""]]
    for name, found in metrics.items():
        difference = found["difference"]
        rows.append(
            [
                name,
                _estimate(found["candidate"]),
                "" if found["reference"] is None else _estimate(found["reference"]),
                "" if difference is None else _estimate(difference, sign="+"),
                "" if difference is None else _significance(difference),
            ]
        )
    if all(found["reference"] is None for found in metrics.values()):
        rows = [row[:2] for row in rows]
    yield from _aligned(rows)
    yield "  [low, high]: where it lies with 95 % confidence, as far as the choice of these samples goes"


def _estimate(found: Any, sign: str = "") -> str:
    if found["value"] is None:
        return "not defined"
    interval = "" if found["low"] is None else f" [{_number(found['low'], sign)}, {_number(found['high'], sign)}]"
    return f"{_number(found['value'], sign)}{interval}"


def _significance(difference: Any) -> str:
    p_value = difference["p_value"]
    by = "" if p_value is None else " (p < 1e-5)" if p_value < 1e-5 else f" (p = {p_value:.2g})"
    if difference["significant"] is None:
        return ""
    return f"{'significant' if difference['significant'] else 'not significant'}{by}"


def _outputs_table(outputs: Mapping[str, Any]) -> Iterator[str]:
    heads = {"top1": "top-1", "top5": "top-5", "exact": "equal"}
    shown = [name for name in AGREEMENTS if any(output[name] for output in outputs.values())]
    rows = [["", "cosine", "lowest", "SQNR", "largest error", *(heads[name] for name in shown), ""]]
    for name, output in outputs.items():
        ratio = "none" if output["sqnr_db"] is None else f"{output['sqnr_db']:.1f} dB"
        rows.append(
            [
                name,
                _number(output["cosine"]),
                _number(output["cosine_min"]),
                "exact" if output["sqnr_db"] is None and output["cosine"] == 1 else ratio,
                "" if output["max_abs_error"] is None else f"{output['max_abs_error']:.2g}",
                *("" if output[one] is None else f"{output[one]['agreed']} of {output[one]['of']}" for one in shown),
                _not_finite(output),
            ]
        )
    yield from _aligned(rows)


def _not_finite(output: Any) -> str:
    parts = [(output["nan_count"], "NaN"), (output["inf_count"], "infinite")]
    told = [f"{count} {what} where the reference has numbers" for count, what in parts if count]
    if count := output["reference_nan_count"]:
        told.append(f"{count} left out: NaN in the reference")
    return ", ".join(told)


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.4f}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
