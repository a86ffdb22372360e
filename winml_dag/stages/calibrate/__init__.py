"""calibrate: run the model on data and write down the range of every activation.

Ranges depend on the model, the data and the method, not on the integer types; so one calibration serves every
precision. This is the declaration; the work is in :mod:`winml_dag.stages.calibrate.observe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from winml_dag.engine.stage import InputSlot, Memory, Stage
from winml_dag.stages import artifact_types


@dataclass(frozen=True)
class CalibrateFields:
    """What calibrate reads.

    Attributes:
        samples: how many random samples; of a ``data`` input, the maximum, in their order, of those that are not held
            out for validation.
        calibration_method: minmax, entropy or percentile.
        seed: of random data, which is used if there is no ``data`` input; of data, selects the samples, the first ones
            if it is None.
        distribution: of random data (uniform, normal); None if there is a ``data`` input.
        columns_mapping: of data with rows; see :class:`winml_dag.stages.samples.Columns`.
    """

    samples: int
    calibration_method: str
    seed: int | None
    distribution: str | None
    columns_mapping: Mapping[str, str] | None = None


@dataclass(frozen=True)
class KeptBack:
    """``samples``: how many of a ``data`` input are held out for validation; None without such an input."""

    samples: int | None = None


@dataclass(frozen=True)
class CalibrateConfig:
    quant: CalibrateFields
    validate: KeptBack = KeptBack()


CALIBRATE = Stage(
    name="calibrate",
    version=4,
    work="winml_dag.stages.calibrate.observe:run",
    config="winml_dag.stages.calibrate:CalibrateConfig",
    inputs={
        "model": artifact_types.model_slot("calibrated", artifact_types.FLOAT_MODEL),
        "data": InputSlot(frozenset({artifact_types.CALIBRATION_DATA}), required=False),
        "processor": InputSlot(frozenset({artifact_types.PROCESSOR_FOLDER}), required=False),
    },
    outputs={"ranges": artifact_types.RANGES},
    published={"ranges": artifact_types.RANGES_FILE},
    packages=("onnxruntime", "onnx", "numpy"),
    memory=Memory(300 << 20, 3.0),
)
