"""How a build's result is validated: its data, its target, and its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.engine.stage import Source
from winml_dag.ep.availability import is_at_hand
from winml_dag.ep.registry import CPU, Target
from winml_dag.pipeline.calibration import Calibration, columns_of, processor_of, require_packages
from winml_dag.pipeline.compilation import file_option_names, provider_options
from winml_dag.pipeline.context import Model, ResolveContext
from winml_dag.pipeline.sources import calibration_source, folders_in
from winml_dag.pipeline.variant import Skip, chosen
from winml_dag.recipe.paths import resolve_path
from winml_dag.recipe.schema import Quant
from winml_dag.stages import kinds
from winml_dag.stages.bounds import Bounds, rounding
from winml_dag.stages.compile import CompileConfig
from winml_dag.stages.samples import TABLES, Columns, kind_of
from winml_dag.stages.target import RunTarget
from winml_dag.stages.validate import CLASSIFYING_TASKS, ValidateConfig, ValidateFields


@dataclass(frozen=True)
class ValidationData:
    """The data that a build is validated on, if that is not kept back by calibration; all None if it is.

    Attributes:
        data: arrays, texts, images or tables; ``processor`` converts all except arrays to inputs.
        columns: for tables, the meaning of each column; None for other data.
        looked_at: files and folders that decided the choice of these files.
    """

    data: Source | None = None
    processor: Source | None = None
    columns: Mapping[str, str] | None = None
    looked_at: tuple[Path, ...] = ()


def find_validation_data(
    context: ResolveContext,
    model: Model,
    quant: Quant | Skip,
    calibration: Calibration,
    task: str | None,
    *,
    download: bool,
) -> ValidationData:
    """Find the files that ``validate.input_data`` names, without reading them.

    Raises:
        InputError: for a missing file.
        UsageError: for a missing package or processor.
    """
    wanted = context.recipe.validation
    if wanted.input_data is None or left_out(context) is not None:
        return ValidationData()
    path = resolve_path(context.base, wanted.input_data)
    found = replace(calibration_source(path, "validate.input_data"), name="validation data")
    kind = str(kind_of(found.files[0].name))
    require_packages(kind)
    # This section names the processor and the columns, even for a model that is not quantized.
    section = chosen(quant) or context.recipe.quant or Quant()
    columns = columns_of(section, task) if kind in TABLES else None
    folder = processor_of(context, model, section, kind, columns, download=download)
    # Calibration's processor is that of the same model, and a graph has each source once.
    processor = calibration.processor or (None if folder is None else folder.processor_source())
    return ValidationData(
        found,
        None if folder is None else processor,
        columns,
        looked_at=(*folders_in(path), *(() if folder is None else folder.looked_at)),
    )


def validate_config(
    context: ResolveContext,
    target: Target,
    precision: str,
    quant: Quant | Skip,
    compiled: CompileConfig | Skip,
    calibration: Calibration,
    given: ValidationData,
    *,
    model_kind: str,
    task: str | None,
) -> ValidateConfig | Skip:
    """Return the config of validate, or why it is skipped; *model_kind* is that of the build's initial model."""
    if skip := left_out(context):
        return skip
    came_compiled = model_kind == kinds.COMPILED_MODEL
    if came_compiled and not is_at_hand(target.ep):
        return Skip(f"{target.ep.name}, which the model came compiled for, is not installed")
    fields = replace(
        _fields(context, precision, calibration, given, task),
        # A model that was given in integers has ranges, too; none apply to validate's random inputs.
        calibrated=(given.data is not None or calibration.data is not None)
        and (model_kind != kinds.FLOAT_MODEL if isinstance(quant, Skip) else quant.mode == "static"),
        rounding=rounding(precision, in_half=target.ep != CPU),
    )
    if came_compiled:
        # There is nothing to compare with bounds.
        fields = replace(fields, min_cosine=None, min_sqnr_db=None, max_abs_error=None, min_top1_agreement=None)
    columns = calibration.columns if given.data is None else given.columns
    names = None if columns is None else Columns(columns)
    as_it_is = isinstance(compiled, Skip) and not came_compiled
    if as_it_is and not (target.ep.takes_onnx and is_at_hand(target.ep)):
        # Compiling the model on load, for a provider that it is never shipped to uncompiled, would show nothing about
        # it.
        return ValidateConfig(fields, RunTarget(CPU.name, "cpu"), names)
    # A session gets no options that name files: they control compilation, and their paths are not content.
    named = file_option_names(context, target)
    options = {name: value for name, value in provider_options(context, target).items() if name not in named}
    return ValidateConfig(fields, RunTarget(target.ep.name, target.device, options), names)


def left_out(context: ResolveContext) -> Skip | None:
    """Return why validation is skipped; None if it is not."""
    section = context.recipe.compile
    if context.overrides.validate is not None:
        return None if context.overrides.validate else Skip("--no-validate was given")
    if not context.recipe.validation.enabled:
        return Skip("validate.enabled is false")
    return Skip("compile.validate is false") if section is not None and not section.validation else None


def _fields(
    context: ResolveContext, precision: str, calibration: Calibration, given: ValidationData, task: str | None
) -> ValidateFields:
    wanted = context.recipe.validation
    samples: int | None = wanted.samples
    if given.data is not None and "samples" not in wanted.model_fields_set:
        samples = None
    given_bounds = Bounds(wanted.min_cosine, wanted.min_sqnr_db, wanted.max_abs_error, wanted.min_top1_agreement)
    bounds = given_bounds.completed(precision)
    return ValidateFields(
        min_cosine=bounds.min_cosine,
        samples=samples,
        seed=None if given.data is not None or calibration.data is not None else wanted.seed,
        classifies=task is not None and task.endswith(CLASSIFYING_TASKS),
        min_sqnr_db=bounds.min_sqnr_db,
        max_abs_error=bounds.max_abs_error,
        min_top1_agreement=bounds.min_top1_agreement,
    )
