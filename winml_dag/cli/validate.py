"""``winml-dag validate``: run a finished model and compare it with the one that it was made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli import echo, errors_as_object, print_object
from winml_dag.cli.measuring import built_model_of, built_model_options, measured
from winml_dag.cli.onestage import How, how_options
from winml_dag.cli.options import FILE, TEXT
from winml_dag.cli.settings import BOUNDS, VALIDATION, ep_option
from winml_dag.errors import UsageError
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.assess.measurement import Measurement
    from winml_dag.pipeline.assess.validate import ValidationPlan, ValidationRequest


@click.command(name="validate")
@built_model_options
@click.option("--reference", type=FILE, help="The model to hold it against [the float model that its build left].")
@click.option("--no-reference", is_flag=True, help="Only run it: it must give numbers.")
@click.option("-p", "--precision", type=TEXT, help="Whose bounds count [what the model has].")
@VALIDATION
@BOUNDS
@click.option("--ep", type=TEXT, help="Execution provider to run on [the one that it was built for].")
@click.option("-d", "--device", type=TEXT, help="npu, gpu, cpu or auto; an execution provider's name works too.")
@ep_option
@click.option("-t", "--task", type=TEXT, help="What the model is for, such as text-classification.")
@click.option("--model-id", type=TEXT, help="The model whose tokenizer or image processor prepares the inputs.")
@click.option("-o", "--output-dir", type=FILE, help="Where validation.json goes [nowhere].")
@how_options
def command(**options: Any) -> int:
    """Load a finished model where it is to run, run it, and hold every output against the model that it was made from.
    It fails for what is no number, and for an output that is too far away.

    \b
    winml-dag validate out
    winml-dag validate quantized.onnx --reference model.onnx --input-data samples.npz
    winml-dag validate compiled.onnx --ep qnn --no-reference
    """
    how = How.of(options)
    with errors_as_object(how.as_json, success=False):
        plan, done = _validate(options, how)
    if how.as_json:
        print_object(_value(plan, done))
        return 0
    for line in _lines(plan, done, quiet=how.quiet):
        echo(line)
    return 0


def _validate(options: Mapping[str, Any], how: How) -> tuple[ValidationPlan, Measurement]:
    from winml_dag.cli.remotes import opened
    from winml_dag.pipeline.assess.validate import plan_validation

    request = request_of(options)
    built = built_model_of(options, how)
    store = opened(how.cache_dir, how.remote)
    plan = plan_validation(built, request, store)
    return plan, measured(plan.measurement, store, how, folder=options["output_dir"])


def request_of(options: Mapping[str, Any]) -> ValidationRequest:
    """Return the request for the *options* of a call, by the names of the command's parameters, and for its recipe."""
    from winml_dag.pipeline.assess.validate import ValidationRequest
    from winml_dag.recipe.load import load_recipe
    from winml_dag.recipe.schema import Validate

    if options["no_reference"] and options["reference"] is not None:
        raise UsageError("--reference and --no-reference exclude each other.", advice="Give one of them.")
    loaded = None if options["recipe"] is None else load_recipe(options["recipe"])
    written = {} if loaded is None else loaded.recipe.validation.to_dict()
    model_id = options["model_id"]
    if model_id is not None and Path(model_id).exists():
        model_id = str(Path(model_id).absolute())
    return ValidationRequest(
        section=Validate.from_dict({**written, **VALIDATION.given(options), **BOUNDS.given(options)}),
        base=Path.cwd() if loaded is None else loaded.path.parent,
        reference=options["reference"],
        has_reference=not options["no_reference"],
        precision=options["precision"],
        ep=options["ep"],
        device=options["device"],
        options=options["ep_option"] or {},
        task=options["task"],
        model_id=model_id,
    )


def _value(plan: ValidationPlan, done: Measurement) -> JsonObject:
    return {
        "success": True,
        "model": str(plan.built.model.path),
        "reference_path": None if plan.reference is None else str(plan.reference.path),
        "precision": plan.precision,
        "measured": done.told,
        "made_at": done.made_at,
        "elapsed_seconds": round(done.elapsed_seconds, 3),
        **done.report,
        "toolchain": done.toolchain,
        "errors": [],
    }


def _lines(plan: ValidationPlan, done: Measurement, *, quiet: bool) -> Iterator[str]:
    from winml_dag.cli.stage_lines import outputs_table

    report: Any = done.report
    if not quiet:
        for warning in report["warnings"]:
            yield f"warning: {warning}"
        yield from outputs_table(report.get("outputs", {}))
        if bounds := [f"{name} {bound:g}" for name, bound in plan.bounds.to_json().items() if bound is not None]:
            yield f"bounds kept: {', '.join(bounds)} ({plan.precision})"
    against = "nothing to hold it against" if plan.reference is None else f"against {plan.reference.path}"
    when = f"in {done.elapsed_seconds:.1f} s" if done.is_live else f"reused, made {done.made_at}"
    yield (
        f"Valid: {plan.built.model.path} on {plan.target.ep.name} {plan.target.device}, {against}, on"
        f" {counted(report['samples'], 'sample')} ({report['data']}) and on ones, {when}."
    )
