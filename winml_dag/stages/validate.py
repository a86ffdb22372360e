"""validate: load the result as its user will, run it, and compare it with the float reference.

The same inputs go into both. Loading alone proves little: a compiled model can load, run and give noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject, canonical_json
from winml_dag.engine.stage import InputSlot, Memory, Stage, Workspace
from winml_dag.ep.availability import RunTarget
from winml_dag.ep.registry import CPU, Target
from winml_dag.errors import MeasuredError, StageError
from winml_dag.stages import artifact_types
from winml_dag.stages.quality import MOST_NOISE, Bounds, scale_tolerance, too_large_or_small
from winml_dag.stages.samples import Columns

if TYPE_CHECKING:
    from pathlib import Path

    from winml_dag.stages.figures import OutputFigures
    from winml_dag.stages.pair import Pair
    from winml_dag.stages.samples.read import ValidationSamples

REPORT_NAME = "validation.json"
_ONES = "inputs of ones"
# A provider counts as wrong if the SQNR is below the first value and the CPU's, for the same file, is higher by more
# than the second. QNN reaches 6.7 dB for a ShuffleNet in w8a8 and in w8a16, the CPU 18.4 and 31.8. Rounding alone has
# cost a sentence encoder 3 of 5 dB (w8a8).
_POOR_DB, _WORSE_THAN_CPU_DB = 12.0, 10.0
# Values whose scale is off by more than this cosine allows (1.14 times) cause a warning.
_USUALLY_SCALED = 0.99

# Suffixes of the tasks in which a model outputs class scores, whatever the output's name.
CLASSIFYING_TASKS = ("classification", "fill-mask", "next-sentence-prediction")


@dataclass(frozen=True)
class ValidateFields:
    """What validate reads.

    Attributes:
        min_cosine, min_sqnr_db, max_abs_error, min_top1_agreement: see :class:`~winml_dag.stages.quality.Bounds`; an
            output that does not meet one of them fails.
        samples: how many inputs to run. Of a ``data`` input, the last ones, which calibration does not use, and at most
            half of all. None: all of an ``input_data`` input.
        seed: of random inputs, which are used if neither input exists; None if one does.
        classifies: whether the first output has class scores, whatever its name.
        calibrated: whether the model has activation ranges, which may come from the samples that it is run on.
        rounding: relative size of a rounding error; errors up to this size count as none in an output that itself
            consists only of such errors.
    """

    min_cosine: float | None
    samples: int | None = 3
    seed: int | None = 0
    classifies: bool = False
    min_sqnr_db: float | None = None
    max_abs_error: float | None = None
    min_top1_agreement: float | None = None
    calibrated: bool = False
    rounding: float = 0.0

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.min_cosine, self.min_sqnr_db, self.max_abs_error, self.min_top1_agreement)


@dataclass(frozen=True)
class ValidateConfig:
    """``quant``: the meaning of the data's columns; None if they need no names."""

    validate: ValidateFields
    target: RunTarget
    quant: Columns | None = None


VALIDATE = Stage(
    name="validate",
    version=6,
    work="winml_dag.stages.validate:run",
    config="winml_dag.stages.validate:ValidateConfig",
    inputs={
        "model": InputSlot(artifact_types.ANY_MODEL),
        "reference": InputSlot(artifact_types.ANY_MODEL - {artifact_types.COMPILED_MODEL}, required=False),
        # What a compiled model was compiled from, which the CPU can also run.
        "uncompiled": InputSlot(artifact_types.ANY_MODEL - {artifact_types.COMPILED_MODEL}, required=False),
        "data": InputSlot(frozenset({artifact_types.CALIBRATION_DATA}), required=False),
        "input_data": InputSlot(frozenset({artifact_types.CALIBRATION_DATA}), required=False),
        "processor": InputSlot(frozenset({artifact_types.PROCESSOR_FOLDER}), required=False),
        "ranges": InputSlot(frozenset({artifact_types.RANGES}), required=False),
    },
    outputs={"report": artifact_types.VALIDATION},
    packages=("onnxruntime", "onnx", "numpy"),
    memory=Memory(250 << 20, 2.5),
)


def run(config: ValidateConfig, workspace: Workspace) -> JsonObject:
    """Run ``model`` on its target and ``reference`` on the CPU, compare, and write ``validation.json``.

    All-ones inputs are run too, but for them only NaN and infinities count: they lie outside the calibrated ranges, and
    intact models score lower on them (0.986 for a w8a16 that has 0.9999 on random inputs). Without a ``reference``,
    which a model that was given compiled does not have, it must load, run and output finite numbers. Raises StageError:
    the model does not load or run on its target, outputs NaN or infinities (also if the reference does), or does not
    meet its thresholds; the last with the metrics of all outputs. Also if the reference has NaN, or if ``uncompiled``
    shows that the provider computes the model wrongly.
    """
    from winml_dag.ep.session import assigned_nodes, create_session, runs_on_cpu
    from winml_dag.onnxmodel.feeds import inputs_of_both, model_inputs
    from winml_dag.onnxmodel.inspect import inspect_model
    from winml_dag.stages.pair import Pair, ones, run_alone, threads_of_each
    from winml_dag.stages.samples.read import samples_to_validate

    target = config.target.resolve()
    model_path = workspace.input_file("model", ".onnx")
    compiled = inspect_model(model_path).is_compiled
    reference_path = workspace.input_file("reference", ".onnx") if workspace.has("reference") else None
    threads = threads_of_each() if reference_path is not None and runs_on_cpu(target) else None
    options = config.target.provider_options
    candidate = create_session(model_path, target, options, threads=threads, compiled=compiled)
    inputs = model_inputs(model_path) if reference_path is None else inputs_of_both(reference_path, model_path)
    fields = config.validate
    given = samples_to_validate(
        workspace, inputs, config.quant, count=fields.samples, seed=fields.seed, calibrated=fields.calibrated
    )
    pair, warnings = None, list[str]()
    if reference_path is not None:
        pair = Pair(create_session(reference_path, Target(CPU, "cpu"), {}, threads=threads), candidate)
        warnings = _leave_out_random(pair, reference_path, given)
    found: JsonObject = {"reference": False}
    if pair is None or not pair.names:
        run_alone(candidate, given.samples, str(given), workspace.progress)
        run_alone(candidate, ones(next(iter(given.samples))), _ONES)
    else:
        found, more = _compared(fields, pair, given, workspace)
        warnings += more
    report: JsonObject = {
        "execution_provider": target.ep.name,
        "device": target.device,
        # The CPU has nothing to report here, and the names of its fused operators depend on the processor.
        "assigned_nodes": assigned_nodes(candidate) if target.ep != CPU else {},
        "inputs": given.source,
        "data": given.samples.kind,
        "samples": given.samples.count,
        "held_out": given.held_out,
        "seed": fields.seed,
        "all_ones_finite": True,
        "warnings": warnings,
        **found,
    }
    (workspace.outputs["report"] / REPORT_NAME).write_text(
        canonical_json(report) + "\n", encoding="utf-8", newline="\n"
    )
    return report


def _leave_out_random(pair: Pair, reference: Path, given: ValidationSamples) -> list[str]:
    """Make *pair* compare only outputs that are the same from run to run; return warnings about the others."""
    from winml_dag.onnxmodel.graph import all_nodes
    from winml_dag.onnxmodel.graphfile import read_model
    from winml_dag.stages.analyze.lint import RANDOM_OPERATORS
    from winml_dag.stages.samples.samples import failures_explained

    operators = {node.op_type for node in all_nodes(read_model(reference))}
    drawing = sorted(name for name in operators if name.startswith(RANDOM_OPERATORS))
    if not drawing:
        return []
    with failures_explained(given.samples.kind):
        left_out = pair.leave_out_random(next(iter(given.samples)))
    names = ", ".join(map(repr, left_out))
    return [
        f"The float model draws random numbers ({', '.join(drawing)}): {names} has other values in each run, so it is"
        " not compared, and nothing is known of it but that the model runs."
    ] * bool(left_out)


def _compared(
    fields: ValidateFields, pair: Pair, given: ValidationSamples, workspace: Workspace
) -> tuple[JsonObject, list[str]]:
    """Return what the report has about a model that was compared with its reference, and warnings."""
    from winml_dag.onnxmodel.compare import class_scores
    from winml_dag.stages.figures import quality
    from winml_dag.stages.pair import ones

    scores = class_scores(pair.names, classifies=fields.classifies)
    measured = pair.measure(given.samples, scores, workspace.progress)
    measured.require_numbers(str(given))
    first = next(iter(given.samples))
    # Without float inputs, the ones are the first sample, which has been run.
    has_ones = any(values.dtype.kind == "f" for values in first.values()) or any(measured.reference.values())
    of_ones = pair.measure(ones(first), scores) if has_ones else measured
    of_ones.require_numbers(_ONES)
    outputs, noise = _without_rounding(measured.outputs, fields, given, workspace.input_file("reference", ".onnx"))
    _require_as_on_cpu(outputs, pair.names, given, workspace)
    _require_close(outputs, fields.bounds, given, workspace)
    kind, held_out = given.samples.kind, given.held_out
    found: JsonObject = {
        "reference": True,
        **fields.bounds.to_json(),
        "outputs": {output.read.name: output.to_json() for output in outputs},
        "quality": quality(outputs, samples=given.samples.count, data=kind, held_out=held_out).to_json(),
    }
    return found, [*noise, *_scales(outputs), *measured.warnings(str(given)), *of_ones.warnings(_ONES)]


def _scales(outputs: Sequence[OutputFigures]) -> Iterator[str]:
    """Yield a warning for each output whose scale is off by more than that of any intact model measured: 1.1 times."""
    for output in outputs:
        scale = output.scale or 1.0
        if max(scale, 1 / scale) > 1 + scale_tolerance(_USUALLY_SCALED):
            yield f"Output {output.read.name!r}: {too_large_or_small(scale)}, which its cosine does not show."


def _without_rounding(
    outputs: Sequence[OutputFigures], fields: ValidateFields, given: ValidationSamples, reference: Path
) -> tuple[Sequence[OutputFigures], Sequence[str]]:
    """Return *outputs*, and a message for each whose errors count as none.

    Only outputs that would fail or have tiny values are checked, because that runs the reference again.
    """
    suspects = [
        output.read.name
        for output in outputs
        if any(fields.bounds.broken_by(output)) or (0 < output.read.largest < MOST_NOISE and output.max_abs_error)
    ]
    if not suspects or not fields.rounding:
        return outputs, ()
    from winml_dag.stages.magnitude import without_rounding

    judged = without_rounding(outputs, suspects, reference, given.samples, fields.rounding)
    return judged, [
        f"Output {output.read.name!r} of the float model is what cancelling or saturated values leave: errors up to"
        f" {output.floor:.2g} are those of rounding, and count as none."
        for output in judged
        if output.floor is not None
    ]


def _require_close(
    outputs: Sequence[OutputFigures], bounds: Bounds, given: ValidationSamples, workspace: Workspace
) -> None:
    if bounds.min_top1_agreement is not None and all(output.top1 is None for output in outputs):
        raise StageError(
            "validate.min_top1_agreement is set, but no output of the model has scores of classes.",
            advice="If one has, say what the model is for (loader.task); else leave the field out.",
        )
    broken = {output.read.name: dict(bounds.broken_by(output)) for output in outputs}
    first = next((output.read for output in outputs if broken[output.read.name]), None)
    if first is None:
        return
    others = sum(1 for each in broken.values() if each) - 1
    raise MeasuredError(
        f"Output {first.name!r} is too far from the reference on {given}: {'; '.join(broken[first.name].values())}"
        f" (cosine {first.cosine:.7g}, signal to noise {first.sqnr_db:.1f} dB, largest error"
        f" {first.max_abs_error:.3g}){f'; {others} more of {len(outputs)} outputs too' if others else ''}.",
        advice=_advice(
            workspace.input_file("reference", ".onnx"), scale=any("scale" in each for each in broken.values())
        ),
        metrics={
            **bounds.to_json(),
            "outputs": {output.read.name: output.to_json() for output in outputs},
            "broken": {name: list(each) for name, each in broken.items() if each},
        },
    )


def _require_as_on_cpu(
    outputs: Sequence[OutputFigures], names: Sequence[str], given: ValidationSamples, workspace: Workspace
) -> None:
    """Raise StageError for an output that is poor on the target but not on the CPU, with the uncompiled model."""
    from winml_dag.ep.session import create_session
    from winml_dag.stages.pair import Pair

    poor = [output for output in outputs if output.exact is None and output.read.sqnr_db < _POOR_DB]
    if not poor or not workspace.has("uncompiled"):
        return
    reference, uncompiled = (workspace.input_file(slot, ".onnx") for slot in ("reference", "uncompiled"))
    cpu = Target(CPU, "cpu")
    pair = Pair(create_session(reference, cpu, {}), create_session(uncompiled, cpu, {}))
    pair.names = list(names)
    on_cpu = {output.read.name: output.read.sqnr_db for output in pair.measure(given.samples, ()).outputs}
    for output in poor:
        name, here = output.read.name, output.read.sqnr_db
        if on_cpu[name] > here + _WORSE_THAN_CPU_DB:
            raise StageError(
                f"The provider computes output {name!r} wrongly: on {given} its signal to noise is {here:.1f} dB, and"
                f" {on_cpu[name]:.1f} dB where the CPU runs the model that was compiled.",
                advice="Leave an operator in float (quant.nodes_to_exclude), or take another precision or --ep."
                " --no-validate builds the model as it is.",
            )


def _advice(reference: Path, *, scale: bool) -> str:
    """Return advice for a result that differs too much from *reference*; *scale*: the scale differs too."""
    from winml_dag.onnxmodel.description import findings
    from winml_dag.onnxmodel.graphfile import read_model

    if wrong := next(findings(reference, read_model(reference)), None):
        return wrong
    if scale:
        return (
            "A range that is too narrow does that (give typical calibration data), or an operator that the provider"
            " computes otherwise: leave that in float (quant.nodes_to_exclude), or take another --ep."
        )
    return "Try typical calibration data, optim.clamp_constant_values or a higher precision, or change the bound."
