"""``winml-dag validate``: run a finished model and compare it with the one that it was made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.cli import Note, show
from winml_dag.cli.command import FILE, TEXT, Command, folder_option
from winml_dag.cli.measuring import (
    assessed,
    built_model_options,
    loaded_recipe,
    refuse_both,
    request_for,
    run_target_options,
)
from winml_dag.cli.options import How, how_options
from winml_dag.cli.settings import BOUNDS, VALIDATION
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.assess.measurement import AssessmentRequest, Measurement
    from winml_dag.pipeline.assess.validate import ValidationPlan
    from winml_dag.recipe.schema import Validate


@click.command(name="validate", cls=Command, panel="Validation")
@built_model_options
@click.option("--reference", type=FILE, help="The model to compare with [the float model of the build].")
@click.option("--no-reference", is_flag=True, help="Only check that all outputs are finite.")
@click.option("-p", "--precision", type=TEXT, help="Precision whose bounds apply [the model's].")
@VALIDATION
@BOUNDS
@run_target_options
@click.option("-t", "--task", type=TEXT, help="The model's task, such as text-classification.")
@click.option("--model-id", type=TEXT, help="The model whose tokenizer or image processor prepares the inputs.")
@folder_option("Write validation.json to this folder.")
@how_options
def command(**options: Any) -> None:
    """Run a model on its target and compare each output with that of its float model. Fails if an output has NaN or
    infinite values or violates a bound.

    \b
    winml-dag validate out
    winml-dag validate quantized.onnx --reference model.onnx --input-data samples.npz
    winml-dag validate compiled.onnx --ep qnn --no-reference
    """
    from winml_dag.pipeline.assess.validate import plan_validation

    how = How.of(options)
    plan, done = assessed(options, how, _request_of(options), partial(plan_validation, precision=options["precision"]))
    show(plan.report(done), _lines(plan, done, quiet=how.quiet))


def _request_of(options: Mapping[str, Any]) -> AssessmentRequest[Validate]:
    """Return the request for the *options* of a call, by the names of the command's parameters, and for its recipe."""
    from winml_dag.recipe.schema import Validate

    refuse_both(options, "reference")
    loaded, base = loaded_recipe(options)
    written = {} if loaded is None else loaded.recipe.validation.to_dict()
    model_id = options["model_id"]
    if model_id is not None and Path(model_id).exists():
        model_id = str(Path(model_id).absolute())
    section = Validate.from_dict({**written, **VALIDATION.given(options), **BOUNDS.given(options)})
    return request_for(section, base, options, task=options["task"], model_id=model_id)


def _lines(plan: ValidationPlan, done: Measurement, *, quiet: bool) -> Iterator[str]:
    from winml_dag.cli.stage_lines import outputs_table

    report: Any = done.report
    if not quiet:
        for warning in report["warnings"]:
            yield Note(warning, "warning")
        yield from outputs_table(report.get("outputs", {}))
        if bounds := [f"{name} {bound:g}" for name, bound in plan.bounds.to_json().items() if bound is not None]:
            yield f"bounds kept: {', '.join(bounds)} ({plan.precision})"
    against = "without a reference" if plan.reference is None else f"against {plan.reference.path}"
    when = f"in {done.elapsed_seconds:.1f} s" if done.is_live else f"reused, made {done.made_at}"
    yield (
        f"Valid: {plan.built.model.path} on {plan.target.ep.name} {plan.target.device}, {against}, on"
        f" {counted(report['samples'], 'sample')} ({report['data']}) and on ones, {when}."
    )
