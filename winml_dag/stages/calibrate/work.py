"""The work of the calibrate stage: which data, which ranges, one file."""

from __future__ import annotations

import time
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.onnxmodel.facts import MASK_MAGNITUDE
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.stages.calibrate import RANGES_FILE, CalibrateConfig
from winml_dag.stages.calibrate.observe import METHODS, observe
from winml_dag.stages.float_model import refuse_unless_float, write_typed
from winml_dag.stages.ranges import Provenance, Ranges, model_digest
from winml_dag.stages.samples import Columns
from winml_dag.stages.samples.read import samples_of
from winml_dag.stages.samples.samples import Fed, Samples, random_samples

_MODEL_FILE = Path("float.onnx")


def run(config: CalibrateConfig, workspace: Workspace) -> JsonObject:
    """Write ``calibration_ranges.json``: the range of every float activation, whatever a later quantization will ask
    for, and what they come from.

    Metrics: ``data`` (npz, npy, text, images, dataset or random); ``samples`` taken; ``tensors``; ``extreme_tensors``,
    how many reach magnitudes that only a mask has, which ruins the precision of what they meet; ``clamped_constants``,
    how many stood for infinity and got a number that integers can hold; ``calibration_time_seconds``, of running the
    model; ``data_time_seconds``, of reading the samples it ran on.

    Raises:
        StageError: for a model that is not in float32, data that does not fit it, or ranges that are not finite.
    """
    method = config.quant.calibration_method
    if method not in METHODS:
        raise StageError(f"Unknown calibration method {method!r}.", advice=f"Known are: {', '.join(METHODS)}.")
    source = workspace.input_file("model", ".onnx")
    refuse_unless_float(source, "calibrated")
    clamped = write_typed(source, _MODEL_FILE, finite=True)
    fed = Fed(_samples(config, workspace, source))
    samples = fed.samples
    started = time.perf_counter()
    measured = observe(_MODEL_FILE, samples, method, workspace.progress)
    bounds = measured.bounds
    seconds = time.perf_counter() - started - fed.seconds
    random = samples.kind == "random"
    provenance = Provenance(
        model=model_digest(workspace.inputs["model"]),
        data=samples.kind,
        samples=samples.count,
        digest=fed.digest,
        seed=config.quant.seed if random else None,
        distribution=config.quant.distribution if random else None,
        seen=() if random else tuple(fed.each),
    )
    ranges = Ranges(method, bounds, provenance, measured.typical, measured.channels)
    ranges.write(workspace.outputs["ranges"] / RANGES_FILE)
    return {
        "data": samples.kind,
        "samples": samples.count,
        "tensors": len(bounds),
        "extreme_tensors": sum(max(abs(low), abs(high)) > MASK_MAGNITUDE for low, high in bounds.values()),
        "clamped_constants": clamped,
        "calibration_time_seconds": seconds,
        "data_time_seconds": fed.seconds,
    }


def _samples(config: CalibrateConfig, workspace: Workspace, model: Path) -> Samples:
    fields = config.quant
    if fields.samples < 1:
        raise StageError(f"Calibration needs at least one sample, but quant.samples is {fields.samples}.")
    inputs = model_inputs(model)
    if workspace.has("data"):
        data = samples_of(workspace, inputs, Columns(fields.columns_mapping or {}))
        return data.to_calibrate(fields.samples, config.validate.samples or 0, fields.seed)
    assert fields.seed is not None
    assert fields.distribution is not None
    return random_samples(inputs, fields.samples, fields.seed, fields.distribution)
