"""``winml-dag eval``: the quality of a finished model, on labelled data or compared with the float model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonValue
from winml_dag.cli import Note, echo, show
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
from winml_dag.errors import StageError, UsageError
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.assess.eval import EvaluationPlan
    from winml_dag.pipeline.assess.measurement import AssessmentRequest, Measurement
    from winml_dag.recipe.schema import Eval

_EVAL = Settings.of(
    "eval",
    ("task", TEXT, "The task whose metrics are computed [the model's]; see --schema.", "-t", "--task"),
    ("mode", click.Choice(["onnx", "compare"]),
     "onnx: the metrics of a task. compare: compare all outputs with the reference [onnx]."),
    ("model_id", TEXT, "The model whose tokenizer or image processor and labels are used."),
    ("reference_path", FILE, "The float model to compare with [that of the build].", "--reference"),
    ("input_data", FILE, "Inputs for --mode compare, such as a .npz file [random ones]."),
    ("batch_size", COUNT, "Samples per inference, for a model with a dynamic batch size [1]."),
    ("pooling", click.Choice(["mean", "cls"]), "How token embeddings become the embedding of a text."),
)  # fmt: skip
_DATASET = Settings.of(
    "eval.dataset",
    ("path", TEXT, "Labelled data: a file, a folder, or a data set's hub id.", "--dataset"),
    ("name", TEXT, "Subset of the data set [its default].", "--dataset-name"),
    ("revision", TEXT, "Branch, tag or commit of the data set [main].", "--dataset-revision"),
    ("split", TEXT, "Split of the data set [validation]."),
    ("samples", COUNT, "Maximum number of samples [100]."),
    ("shuffle", bool, "Use random samples, or the first ones."),
    ("seed", SEED, "Seed of the choice of samples and of random inputs [42]."),
    ("columns_mapping", [TEXT], "Use this column of the data, such as label=category.", "--column",
     {"metavar": "WHAT=COLUMN", "callback": pairs}),
)  # fmt: skip


@click.command(name="eval", cls=Command, panel="Evaluation")
@built_model_options
@_EVAL
@run_target_options
@_DATASET
@click.option(
    "--label-mapping",
    type=TEXT,
    metavar="FILE|LABEL=CLASS",
    multiple=True,
    help="The model's class for a label, or a JSON file of them. Repeatable.",
)
@click.option("--no-reference", is_flag=True, help="Do not evaluate the float model.")
@click.option(
    "--min",
    "bounds",
    type=TEXT,
    metavar="METRIC=VALUE",
    multiple=True,
    callback=pairs,
    help="Exit with 1 if a metric is lower, such as accuracy=0.8. Repeatable.",
)
@click.option("--schema", is_flag=True, help="List the columns and metrics of the task, or of all tasks, and exit.")
@folder_option("Write evaluation.json to this folder.")
@stage_timeout_option
@how_options
def command(**options: Any) -> int:
    """Measure the accuracy of a model on labelled data, with confidence intervals, and of its float model on the same
    samples. With --mode compare, compare the outputs of both.

    \b
    winml-dag eval out --dataset pairs.csv
    winml-dag eval model.onnx -t text-classification --model-id ./bert --dataset nyu-mll/glue --dataset-name sst2
    winml-dag eval out --mode compare --input-data inputs.npz
    """
    from winml_dag.pipeline.assess.eval import figures, plan_evaluation, refuse_unbuilt

    how = How.of(options)
    if options["schema"]:
        return _print_schema(options["task"])
    bounds = _numbers(options["bounds"] or {})
    request = _request_of(options)
    if options["recipe"] is not None:
        refuse_unbuilt(request.section)
    plan, done = assessed(options, how, request, partial(plan_evaluation, bounds=bounds))
    found = figures(done)
    for name in bounds:
        if name not in found:
            raise UsageError(f"--min: there is no metric {name!r}.", advice=f"There are: {', '.join(found)}.")
    _print(plan, done, how, options["output_dir"])
    return 0 if all(plan.kept(done).values()) else StageError.exit_code


def _request_of(options: Mapping[str, Any]) -> AssessmentRequest[Eval]:
    """Return the request for the *options* of a call, by the names of the command's parameters, and for its recipe."""
    from winml_dag.pipeline.assess.eval import eval_section

    refuse_both(options, "reference")
    loaded, base = loaded_recipe(options)
    given_fields, dataset = _EVAL.given(options), _DATASET.given(options)
    given_fields |= {name: options[name] for name in ("ep", "device") if options[name] is not None}
    for given, name in ((given_fields, "model_id"), (dataset, "path")):
        if name in given:
            given[name] = _as_seen_here(given[name])
    section = eval_section(
        None if loaded is None else loaded.recipe.eval, given_fields, {**dataset, **_labels(options["label_mapping"])}
    )
    return request_for(section, base, options)


def _as_seen_here(text: JsonValue) -> JsonValue:
    """Resolve a path against the current folder, which may not be the recipe's. A hub id stays as it is."""
    path = Path(str(text)).expanduser()
    return str(path.absolute()) if path.exists() else text


def _labels(given: tuple[str, ...]) -> dict[str, JsonValue]:
    """Return the labels as fields of ``eval.dataset``: one file, or pairs."""
    if not given:
        return {}
    if len(given) == 1 and Path(given[0]).is_file():
        return {"label_mapping_file": str(Path(given[0]).absolute())}
    mapping: dict[str, JsonValue] = {}
    for text in given:
        label, equals, number = text.rpartition("=")
        if not (equals and number.strip().isdecimal()):
            raise UsageError(f"--label-mapping: {text!r} is neither a JSON file nor LABEL=CLASS, with a number.")
        mapping[label.strip()] = int(number)
    return {"label_mapping": mapping}


def _numbers(given: Mapping[str, str]) -> dict[str, float]:
    found = {}
    for name, text in given.items():
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = math.nan
        if not math.isfinite(found[name]):  # JSON cannot represent others
            raise UsageError(f"--min: {text!r} is not a number.", advice="Give one, such as accuracy=0.8.")
    return found


def _print(plan: EvaluationPlan, done: Measurement, how: How, folder: Path | None) -> None:
    from winml_dag.pipeline.assess.eval import figures

    found = figures(done)
    for name, keeps in plan.kept(done).items():
        if not keeps:
            value = "not defined" if found[name] is None else _number(found[name])
            echo(f"error: {name} is {value}, and the bound is {plan.bounds[name]:g}.", err=True)
    show(plan.report(done, folder), _lines(plan, done, folder, quiet=how.quiet))


def _print_schema(task: str | None) -> int:
    from winml_dag.stages.evaluate import METRICS, TASKS

    if task is not None and task not in TASKS:
        raise UsageError(f"There are no metrics for {task}.", advice=f"Tasks are: {', '.join(TASKS)}.")
    chosen = {name: roles for name, roles in TASKS.items() if task in (None, name)}
    tasks = {
        name: {"columns": {role: list(names) for role, names in roles.items()}, "metrics": list(METRICS[name])}
        for name, roles in chosen.items()
    }
    lines = []
    for name, roles in chosen.items():
        lines.append(f"{name}: {', '.join(METRICS[name])}")
        others = {role: f" (or {', '.join(names[1:])})" if len(names) > 1 else "" for role, names in roles.items()}
        lines += [f"  {role}{other}" for role, other in others.items()]
    show({"success": True, "tasks": tasks}, lines)
    return 0


def _lines(plan: EvaluationPlan, done: Measurement, folder: Path | None, *, quiet: bool) -> Iterator[str]:
    """Format the measurements for people. *quiet* keeps only the numbers."""
    from winml_dag.pipeline.assess.eval import report_of
    from winml_dag.stages.evaluate import REPORT_FILE

    found: Any = report_of(done)
    if not quiet:
        yield headline(plan, done, "evaluate")
        samples = counted(found["samples"], "sample")
        of = "" if found["of"] in (None, found["samples"]) else f" of {found['of']}"
        beside = "" if plan.reference is None else f", beside {plan.reference.path}"
        yield f"{plan.task or 'outputs'} on {samples}{of} ({found['data']}){beside}"
    yield from _outputs_table(found["outputs"]) if "outputs" in found else _metrics_table(found["metrics"])
    if quiet:
        return
    yield from map(Note, plan.all_notices(done))
    if folder is not None:
        yield f"report: {folder / REPORT_FILE}"


def _metrics_table(metrics: Mapping[str, Any]) -> Iterator[str]:
    rows = [["", "model", "reference", "difference", ""]]
    for name, found in metrics.items():
        candidate, reference, difference = found["candidate"], found["reference"], found["difference"]
        compared = ["", ""] if difference is None else [_estimate(difference, sign="+"), _significance(difference)]
        rows.append([name, _estimate(candidate), "" if reference is None else _estimate(reference), *compared])
    if all(found["reference"] is None for found in metrics.values()):
        rows = [row[:2] for row in rows]
    yield from _aligned(rows)
    yield "  [low, high]: 95 % confidence interval"


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
    from winml_dag.pipeline.assess.eval import AGREEMENTS

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
    counts = [f"{count} {what} where the reference has numbers" for count, what in parts if count]
    if count := output["reference_nan_count"]:
        counts.append(f"{count} skipped: NaN in the reference")
    return ", ".join(counts)


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.4f}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
