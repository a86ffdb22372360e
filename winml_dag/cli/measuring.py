"""Shared by perf, eval, validate and analyze: open a built model, run the measurement, and say when it was made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from winml_dag.cli import Note, echo
from winml_dag.cli.command import FILE, SECONDS, TEXT, with_options
from winml_dag.cli.options import How, opened, submodel_option
from winml_dag.cli.settings import ep_option
from winml_dag.errors import StageError, UsageError

if TYPE_CHECKING:
    from winml_dag.pipeline.assess.builtmodel import BuiltModel
    from winml_dag.pipeline.assess.measurement import (
        AssessmentPlan,
        AssessmentRequest,
        Measurement,
        MeasurementGraph,
    )
    from winml_dag.recipe.load import LoadedRecipe
    from winml_dag.store.store import Store

R = TypeVar("R")
S = TypeVar("S")
P = TypeVar("P", bound="AssessmentPlan")


# What names the model: PATH, its synonym ``-m``, or a recipe.
built_model_options = with_options(
    click.argument("path", type=FILE, required=False),
    click.option("-m", "--model", type=FILE, help="An ONNX model or the output folder of a build, like PATH."),
    click.option("-c", "--config", "recipe", type=FILE, help="Build this recipe first, and use its result."),
    submodel_option,
)
# Where the model runs, by default on the target that it was built for.
run_target_options = with_options(
    click.option("--ep", type=TEXT, help="Execution provider [that of the build]."),
    click.option("-d", "--device", type=TEXT, help="npu, gpu, cpu or auto, or the name of an execution provider."),
    ep_option,
)
stage_timeout_option = click.option("--stage-timeout", type=SECONDS, help="Give up after this many seconds [3600].")


def loaded_recipe(options: Mapping[str, Any]) -> tuple[LoadedRecipe | None, Path]:
    """Return the recipe of ``--config``, if it is given, and the folder that paths of the request are relative to."""
    if options["recipe"] is None:
        return None, Path.cwd()
    from winml_dag.recipe.load import load_recipe

    loaded = load_recipe(options["recipe"])
    return loaded, loaded.path.parent


def refuse_both(options: Mapping[str, Any], name: str) -> None:
    """Raise UsageError when both ``--NAME`` and ``--no-NAME`` are given."""
    if options[name] is not None and options[f"no_{name}"]:
        raise UsageError(f"--{name} and --no-{name} exclude each other.", advice="Give one of them.")


def request_for(
    section: S, base: Path, options: Mapping[str, Any], reference: str = "reference", **others: Any
) -> AssessmentRequest[S]:
    """Return the request of a call for *section*; ``--REFERENCE`` and ``--no-REFERENCE`` say what to compare with."""
    from winml_dag.pipeline.assess.measurement import AssessmentRequest

    return AssessmentRequest(
        section,
        base,
        options["ep"],
        options["device"],
        options["ep_option"] or {},
        options[reference],
        has_reference=not options[f"no_{reference}"],
        **others,
    )


def assessed(
    options: Mapping[str, Any], how: How, request: R, plan: Callable[[BuiltModel, R, Store], P]
) -> tuple[P, Measurement]:
    """Open the built model of a call, plan *request* for it, and run that.

    Raises:
        UsageError, InputError, StageError: as :func:`built_model_of`, *plan* and :func:`measured`.
    """

    built = built_model_of(options, how)
    store = opened(how.cache_dir, how.remote)
    planned = plan(built, request, store)
    timeout = options.get("stage_timeout")
    return planned, measured(planned.measurement, store, how, folder=options["output_dir"], timeout_seconds=timeout)


def headline(plan: AssessmentPlan, done: Measurement, verb: str) -> str:
    """Format ``out/model.onnx (w8a8) on CPUExecutionProvider, cpu: measured live, in 1.2 s``."""
    what = f"{plan.built.model.path}{f' ({plan.precision})' if plan.precision else ''}"
    when = f"cached, {verb}d {done.made_at} (--rebuild {verb}s again)"
    if done.is_live:
        when = f"{verb}d live, in {done.elapsed_seconds:.1f} s"
    return f"{what} on {plan.target.ep.name}, {plan.target.device}: {when}"


def built_model_of(options: Mapping[str, Any], how: How) -> BuiltModel:
    """Return the model that the :func:`built_model_options` name, after building an outdated recipe.

    Raises:
        UsageError: when none is given, or more than one.
        InputError: when it does not exist.
        StageError: when the recipe cannot be built. The reason has been printed by then.
    """
    from winml_dag.pipeline.assess.builtmodel import find_built_model

    recipe: Path | None = options["recipe"]
    given = [one for one in dict.fromkeys((options["path"], options["model"], recipe)) if one is not None]
    if len(given) != 1:
        what = " and ".join(map(str, given))
        raise UsageError(
            f"{what} are {len(given)} models." if given else "No model is given.",
            advice="Give an .onnx file or the output folder of a build, or a recipe with -c.",
        )
    component: str | None = options["submodel"]
    return find_built_model(given[0] if recipe is None else _built(recipe, component, how), component)


def _built(recipe: Path, component: str | None, how: How) -> Path:
    """Bring the output folder of *recipe* up to date and return it.

    Nothing is built if it has no single model for *component*.
    """
    from winml_dag.cli.build import carry_out, look
    from winml_dag.pipeline.assess.builtmodel import refuse_component, request_for
    from winml_dag.pipeline.layout import output_dir_of
    from winml_dag.pipeline.run import BuildOptions
    from winml_dag.pipeline.uptodate import log_use

    request = replace(request_for(recipe), remote=how.remote)
    current_plan = look(request, how.cache_dir)
    if current_plan is not None and current_plan.is_up_to_date:
        log_use(str(how.cache_dir.absolute()), current_plan)
        return output_dir_of(request, how.cache_dir)
    jobs = BuildOptions(jobs=os.cpu_count() or 1)
    refuse = partial(refuse_component, recipe, component=component)
    result = carry_out(request, current_plan, jobs, how, refuse=refuse)
    if result.failed:
        raise StageError(f"{recipe} could not be built, so there is no model to look at.")
    return result.build.output_dir


def measured(
    planned: MeasurementGraph,
    store: Store,
    how: How,
    *,
    folder: Path | None = None,
    timeout_seconds: float | None = None,
) -> Measurement:
    """Run *planned*, show its progress, and write its files to *folder*.

    Raises:
        StageError: when it fails. The log has been printed by then.
    """
    from winml_dag.cli.buildreport import failure_lines
    from winml_dag.cli.progress import progress
    from winml_dag.pipeline.assess.measurement import carry_out
    from winml_dag.pipeline.run import BuildOptions

    options = BuildOptions(rebuild=how.rebuild, stage_timeout_seconds=timeout_seconds, overwrite=how.overwrite)
    with progress(quiet=how.quiet, to_stderr=True, stages=len(planned.graph.nodes)) as observer:
        done = carry_out(planned, store, options, folder=folder, observer=observer)
    if done.note:
        echo(Note(done.note), err=True)
    if done.failed is not None:
        # The first line is the error, which is printed when it is raised.
        for line in list(failure_lines(done.failed, whole=how.verbose))[1:]:
            echo(line, err=True)
        raise done.failed.as_error()
    return done
