"""Plan the command validate: a finished model, a reference and inputs, as a graph.

It uses the same stage as builds, so a validation that a build already did is a cache hit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Source, SourceFile, config_json
from winml_dag.ep.availability import require_installed
from winml_dag.ep.registry import CPU, Target
from winml_dag.errors import UsageError
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.precision import precision_of
from winml_dag.pipeline.assess.builtmodel import (
    BuiltModel,
    StoredModel,
    float_model,
    measured_on,
    processor_of,
    reference_at,
    run_target,
)
from winml_dag.pipeline.assess.measurement import (
    AssessmentPlan,
    AssessmentRequest,
    Measurement,
    measuring_node,
    plan_measurement,
)
from winml_dag.pipeline.buildgraph import prefixed
from winml_dag.pipeline.data import calibration_source, columns_of, packages_of, require_packages
from winml_dag.pipeline.layout import RANGES
from winml_dag.pipeline.model import OnnxFile
from winml_dag.pipeline.stageconfigs import bounds_of, validate_fields
from winml_dag.recipe.fields import resolve_path
from winml_dag.recipe.precision import parse_precision
from winml_dag.recipe.schema import Quant, Validate
from winml_dag.stages import artifact_types
from winml_dag.stages.quality import AS_IT_IS, Bounds, rounding
from winml_dag.stages.samples import TABLES, Columns, kind_of
from winml_dag.stages.validate import VALIDATE, ValidateConfig
from winml_dag.store.store import Store

_WITHOUT_RANGES = ("dynamic", "rtn", "fp16")


@dataclass(frozen=True)
class ValidationPlan(AssessmentPlan):
    """A validation ready to run."""

    bounds: Bounds

    def report(self, done: Measurement, folder: Path | None = None) -> JsonObject:  # noqa: ARG002 - it names no file
        reference = None if self.reference is None else str(self.reference.path)
        head = self.head(done, reference_path=reference, precision=self.precision)
        return {**head, **done.report, "toolchain": done.toolchain, "errors": []}


def plan_validation(
    built: BuiltModel, request: AssessmentRequest[Validate], store: Store, precision: str | None = None
) -> ValidationPlan:
    """Plan the validation of *built* that *request* describes, with the bounds of *precision*, by default its own.

    Raises:
        UsageError: for a target that is not installed or that the model cannot run on, and for bounds without a
            reference.
        InputError: for missing inputs, tokenizer or reference.
    """
    target = measured_on(built, request.ep, request.device)
    require_installed(target)
    reference = _reference(built, request, target, store)
    precision = parse_precision(precision).name if precision is not None else _precision(built, reference)
    data = processor = kind = None
    if request.section.input_data is not None:
        data = calibration_source(resolve_path(request.base, request.section.input_data), "validate.input_data")
        kind = str(kind_of(data.files[0].name))
        require_packages(kind)
        # Arrays are used as inputs without a processor.
        if request.model_id is not None or kind not in ("npz", "npy"):
            processor = processor_of(built, request.model_id, request.base, download=request.download)
    bounds = bounds_of(request.section)
    if reference is None and bounds != Bounds():
        raise UsageError(
            f"There is no model to compare {built.model.path} with, so bounds have no effect.",
            advice="Give the model that it was made from as --reference, or remove the bounds.",
        )
    fields = validate_fields(
        request.section,
        bounds if reference is None else bounds.completed(precision),
        request.task or built.task,
        on_given_data=data is not None,
        is_random=data is None,
        calibrated=data is not None and _is_calibrated(built),
        rounding=0.0 if reference is None else rounding(precision, in_half=target.ep != CPU),
    )
    columns = columns_of(Quant(), request.task or built.task) if kind in TABLES else None
    config = ValidateConfig(
        fields,
        run_target(built, target, request.options),
        None if columns is None else Columns(columns),
    )
    inputs = {
        "model": built.model.source(),
        "reference": None if reference is None else reference.source(),
        "input_data": data,
        "processor": processor,
        "ranges": _ranges(built) if fields.calibrated else None,
    }
    packages = packages_of(data, processor)
    node = measuring_node(VALIDATE, config_json(config), inputs, target, store.fingerprints, packages)
    scope = f"validate {built.model.path.resolve()}"
    planned = plan_measurement([node], inputs.values(), store.fingerprints, scope)
    return ValidationPlan(planned, built, target, reference, precision, fields.bounds)


def _reference(
    built: BuiltModel, request: AssessmentRequest[Validate], target: Target, store: Store
) -> OnnxFile | StoredModel | None:
    """Return the reference: the user's, else the float model of the build, else the model itself on the CPU.

    The last works because a provider that takes ONNX must give the same results as the CPU.
    """
    if request.reference is not None:
        return reference_at(request.reference)
    if not request.has_reference:
        return None
    itself = built.model
    made = float_model(built, store)
    if made is not None and made.path.resolve() != itself.path.resolve():
        return made
    return None if target.ep == CPU or itself.kind == artifact_types.COMPILED_MODEL else itself


def _precision(built: BuiltModel, reference: OnnxFile | StoredModel | None) -> str:
    """Return the precision whose bounds apply; none for a model that is compared with itself."""
    if reference is not None and reference.path == built.model.path:
        return AS_IT_IS
    return built.precision or precision_of(read_model(built.model.path)).name or AS_IT_IS


def _is_calibrated(built: BuiltModel) -> bool:
    """Whether the model may have activation ranges: all except float models and builds that quantize without ranges."""
    quant = built.settings.get("quant")
    mode = quant.get("mode") if isinstance(quant, Mapping) else None
    return built.model.kind != artifact_types.FLOAT_MODEL and mode not in _WITHOUT_RANGES


def _ranges(built: BuiltModel) -> Source | None:
    """Return the ranges that the build kept next to the model, if it did."""
    if built.manifest is None:
        return None
    name = prefixed(RANGES, built.component)
    if name not in {entry.name for entry in built.manifest.files}:
        return None
    return Source("activation ranges", artifact_types.RANGES, (SourceFile(RANGES, built.folder / name),))
