"""validate: load the result as its user will, run it, and hold it against the float reference.

The same random inputs go into both. Loading alone proves little: a compiled model can load, run and give noise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject, canonical_json
from winml_dag.engine.progress import Tell, tell_nobody
from winml_dag.engine.stage import InputSlot, Stage, Workspace
from winml_dag.ep.options import file_options
from winml_dag.ep.registry import CPU, Target, resolve_target
from winml_dag.errors import StageError
from winml_dag.stages import kinds
from winml_dag.stages.samples import Columns

if TYPE_CHECKING:
    import numpy as np
    import onnxruntime
    from numpy.typing import NDArray

    from winml_dag.onnxmodel.compare import OutputComparison
    from winml_dag.onnxmodel.feeds import InputSpec
    from winml_dag.stages.figures import OutputFigures

    Feed = Mapping[str, NDArray[np.generic]]

REPORT_NAME = "validation.json"

# The cosine between all of an output's values and the float model's, over all samples, below which a model is taken to
# be broken rather than less exact. What was measured on 3 samples, on the CPU, the lowest of both providers' rules (cpu
# and qnn): the lowest of random BERT, ViT and ResNet; a real sentence encoder of 22 M parameters on sentences; the same
# calibrated and measured on random tokens.
#   fp16    0.99999 1.0     1.0        w16a16  0.99999 0.99998 0.99996    w8a32   0.9998  0.9998  0.999
#   w8a16   0.9994  0.987   0.944      w16a8   0.959   0.989   0.959      w8a8    0.952   0.974   0.913
#   dynamic 0.9996  0.981   0.917      w4a32   0.898   0.956   0.836      w4a16   0.898   0.925   0.764
#   w4a8    0.921   0.904   0.732
# An attention mask of -3.4e38 that was quantized along gives the encoder 0.65 for w8a16 and about 0.4 for w8a8. So the
# bounds of these two lie between sound and broken models; the others are below the lowest value seen, with a margin.
# fp32 is no tighter than fp16: an NPU computes both in half precision. A model that is between its bound and what its
# precision usually has (USUAL_COSINE) passes, and its user is told.
MINIMUM_COSINE: Mapping[str, float] = {
    "fp32": 0.999,
    "fp16": 0.999,
    "w16a16": 0.99,
    "w8a32": 0.95,
    "w8a16": 0.85,
    "w16a8": 0.8,
    "w8a8": 0.8,
    "dynamic": 0.8,
    "w4a32": 0.7,
    "w4a16": 0.6,
    "w4a8": 0.6,
}

# How the tasks end in which a model gives scores of classes whatever it calls them.
CLASSIFYING_TASKS = ("classification", "fill-mask", "next-sentence-prediction")


@dataclass(frozen=True)
class ValidateFields:
    """What validate reads.

    Attributes:
        min_cosine: an output whose cosine to the reference's is below fails.
        samples: how many inputs to run; of a ``data`` input the last ones, which calibration leaves alone, and at most
            half of all.
        seed: of random inputs, which are used when there is no ``data`` input; None when there is.
        classifies: whether the first output has scores of classes, whatever it is called.
    """

    min_cosine: float
    samples: int = 3
    seed: int | None = 0
    classifies: bool = False


@dataclass(frozen=True)
class ValidateTarget:
    execution_provider: str
    device: str
    provider_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ValidateConfig:
    """``quant``: what the columns of a ``data`` input are; None where they need no names."""

    validate: ValidateFields
    target: ValidateTarget
    quant: Columns | None = None


VALIDATE = Stage(
    name="validate",
    version=2,
    work="winml_dag.stages.validate:run",
    config="winml_dag.stages.validate:ValidateConfig",
    inputs={
        "model": InputSlot(kinds.ANY_MODEL),
        "reference": InputSlot(kinds.ANY_MODEL - {kinds.COMPILED_MODEL}),
        "data": InputSlot(frozenset({kinds.CALIBRATION_DATA}), required=False),
        "processor": InputSlot(frozenset({kinds.PROCESSOR_FOLDER}), required=False),
    },
    outputs={"report": kinds.VALIDATION},
    packages=("onnxruntime", "onnx", "numpy"),
)


def run(config: ValidateConfig, workspace: Workspace) -> JsonObject:
    """Run ``model`` on its target and ``reference`` on the CPU, compare, and write ``validation.json``.

    All-ones inputs are run too, but there only NaN and infinities count: they lie outside of what a model was
    calibrated for, and sound models score lower on them (0.986 for a w8a16 that has 0.9999 on random inputs).

    Raises:
        StageError: when the model does not load or run on its target, gives NaN or infinities that the reference does
            not, or differs from it by more than ``min_cosine`` allows.
    """
    from winml_dag.ep.session import assigned_nodes, create_session
    from winml_dag.onnxmodel.feeds import model_inputs
    from winml_dag.onnxmodel.inspect import inspect_model
    from winml_dag.onnxmodel.top1 import class_scores
    from winml_dag.stages.figures import quality
    from winml_dag.stages.samples.read import samples_to_validate

    fields = config.validate
    target = resolve_target(config.target.execution_provider, config.target.device)
    reference_path = workspace.input_file("reference", ".onnx")
    model_path = workspace.input_file("model", ".onnx")
    options, compiled = _session_options(target, config.target), inspect_model(model_path).is_compiled
    candidate = create_session(model_path, target, options, compiled=compiled)
    reference = create_session(reference_path, Target(CPU, "cpu"), {})
    inputs = model_inputs(reference_path)
    names = _output_names(reference, candidate)

    samples, held_out = samples_to_validate(workspace, inputs, config.quant, count=fields.samples, seed=fields.seed)
    scores = class_scores(names, classifies=fields.classifies)
    outputs = _measure(reference, candidate, names, list(samples), scores, workspace.progress)
    ones = _measure(reference, candidate, names, [_ones(inputs)], scores)
    for figures in (*outputs, *ones):
        _require_numbers(figures.whole)
    for figures in outputs:
        _require_close(figures.read, fields.min_cosine, samples.count)

    report: JsonObject = {
        "execution_provider": target.ep.name,
        "device": target.device,
        # For the CPU there is nothing to tell, and the names of its fused operators depend on the processor.
        "assigned_nodes": assigned_nodes(candidate) if target.ep != CPU else {},
        "data": samples.kind,
        "samples": samples.count,
        "held_out": held_out,
        "seed": fields.seed,
        "min_cosine": fields.min_cosine,
        "outputs": {figures.read.name: figures.to_json() for figures in outputs},
        "quality": quality(outputs, samples=samples.count, data=samples.kind, held_out=held_out).to_json(),
        "all_ones_finite": True,
    }
    (workspace.outputs["report"] / REPORT_NAME).write_text(
        canonical_json(report) + "\n", encoding="utf-8", newline="\n"
    )
    return report


def _session_options(target: Target, given: ValidateTarget) -> dict[str, str]:
    """Without options that name files: they steer a compilation, and their files are not among our inputs."""
    files = file_options(target.ep)
    return {name: value for name, value in given.provider_options.items() if name not in files}


def _output_names(reference: onnxruntime.InferenceSession, candidate: onnxruntime.InferenceSession) -> list[str]:
    expected = [output.name for output in reference.get_outputs()]
    found = [output.name for output in candidate.get_outputs()]
    if set(expected) != set(found):
        raise StageError(f"The model has the outputs {', '.join(found)}, but its reference has {', '.join(expected)}.")
    return expected


def _ones(inputs: tuple[InputSpec, ...]) -> Feed:
    import numpy as np

    return {
        spec.name: np.ones([dim if isinstance(dim, int) else 1 for dim in spec.shape], np.dtype(spec.dtype))
        for spec in inputs
    }


def _measure(
    reference: onnxruntime.InferenceSession,
    candidate: onnxruntime.InferenceSession,
    names: list[str],
    feeds: Sequence[Feed],
    scores: Collection[str],
    progress: Tell = tell_nobody,
) -> tuple[OutputFigures, ...]:
    from winml_dag.stages.figures import measure

    expected, found = [], []
    for done, feed in enumerate(feeds):
        progress(done, len(feeds), "samples")
        expected.append(_run(reference, names, feed))
        found.append(_run(candidate, names, feed))
    progress(len(feeds), len(feeds), "samples")
    for index, name in enumerate(names):
        for wanted, got in zip(expected, found, strict=True):
            if wanted[index].shape != got[index].shape:
                shapes = f"{list(got[index].shape)}, but its reference's has {list(wanted[index].shape)}"
                raise StageError(f"Output {name!r} of the model has the shape {shapes}.")
    return measure(names, feeds, expected, found, scores)


def _run(session: onnxruntime.InferenceSession, names: list[str], feed: Feed) -> list[NDArray[np.generic]]:
    from winml_dag.ep.session import reason
    from winml_dag.onnxmodel.feeds import model_inputs

    dtypes = {spec.name: spec.dtype for spec in model_inputs(session)}
    if dtypes.keys() != feed.keys():
        raise StageError(
            f"The model has the inputs {', '.join(sorted(dtypes))}, but its reference has {', '.join(sorted(feed))}."
        )
    try:
        # A float16 model may take float16 where its reference takes float32.
        values: list[NDArray[np.generic]] = session.run(
            names, {name: value.astype(dtypes[name], copy=False) for name, value in feed.items()}
        )
    except Exception as error:
        raise StageError(f"The model loads but does not run: {reason(error)}") from error
    return values


def _require_numbers(comparison: OutputComparison) -> None:
    if comparison.nan_count or comparison.inf_count:
        raise StageError(
            f"Output {comparison.name!r} has {comparison.nan_count} NaN and {comparison.inf_count} infinite values"
            " where the reference has numbers.",
            advice="Half precision overflows beyond 65504: try optim.clamp_constant_values, or a quantized precision.",
        )


def _require_close(comparison: OutputComparison, min_cosine: float, samples: int) -> None:
    if comparison.cosine < min_cosine:
        raise StageError(
            f"Output {comparison.name!r} is too far from the reference: cosine {comparison.cosine:.7g} over"
            f" {samples} sample{'s' * (samples != 1)}, below the bound of {min_cosine:.7g} (signal to noise"
            f" {comparison.sqnr_db:.1f} dB, largest error {comparison.max_abs_error:.3g}).",
            advice="Try typical calibration data, optim.clamp_constant_values or a higher precision; "
            "validate.min_cosine moves the bound.",
        )
