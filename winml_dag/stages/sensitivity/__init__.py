"""sensitivity: what quantizing each node alone costs, and what leaving the worst of them in float gains.

This is the declaration; the work is in :mod:`winml_dag.stages.sensitivity.nodes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from winml_dag.engine.stage import InputSlot, Memory, Stage
from winml_dag.stages import artifact_types
from winml_dag.stages.quantize import QuantizeFields, QuantizeTarget

if TYPE_CHECKING:
    from winml_dag.stages.quantize import QuantizeConfig
    from winml_dag.stages.validate import ValidateConfig

# How the worst nodes are treated, by field of the quant section, in messages.
RELIEF: Mapping[str, str] = {"nodes_to_exclude": "in float", "node_overrides": "in 16 bits"}


@dataclass(frozen=True)
class RankedFields(QuantizeFields):
    """What quantize reads, so that the ranking is of what is quantized.

    ``columns_mapping``: the meaning of the columns of a ``data`` input; None if they need no names.
    """

    columns_mapping: Mapping[str, str] | None = None


@dataclass(frozen=True)
class SamplesFields:
    """The samples of validate.

    Attributes:
        samples: how many inputs to run; of a ``data`` input those that are held out from calibration. None: all of an
            ``input_data`` input.
        seed: of random inputs, which are used if there is neither input; None if there is one.
        classifies: whether the first output has class scores, whatever its name.
        calibrated: whether the ranges may come from these samples.
    """

    samples: int | None
    seed: int | None
    classifies: bool
    calibrated: bool = False


@dataclass(frozen=True)
class SensitivityConfig:
    quant: RankedFields
    target: QuantizeTarget
    validate: SamplesFields

    @classmethod
    def of(cls, quantize: QuantizeConfig, validate: ValidateConfig) -> SensitivityConfig:
        """Return the config for ranking the nodes that *quantize* quantizes, on the samples of *validate*."""
        same = {field.name: getattr(quantize.quant, field.name) for field in fields(quantize.quant)}
        columns = None if validate.quant is None else validate.quant.columns_mapping
        of = validate.validate
        samples = SamplesFields(of.samples, of.seed, of.classifies, of.calibrated)
        return cls(RankedFields(**same, columns_mapping=columns), quantize.target, samples)


SENSITIVITY = Stage(
    name="sensitivity",
    version=5,
    work="winml_dag.stages.sensitivity.nodes:run",
    config="winml_dag.stages.sensitivity:SensitivityConfig",
    inputs={
        "model": artifact_types.model_slot("ranked by sensitivity", artifact_types.FLOAT_MODEL),
        "ranges": InputSlot(frozenset({artifact_types.RANGES}), required=False),
        "data": InputSlot(frozenset({artifact_types.CALIBRATION_DATA}), required=False),
        "input_data": InputSlot(frozenset({artifact_types.CALIBRATION_DATA}), required=False),
        "processor": InputSlot(frozenset({artifact_types.PROCESSOR_FOLDER}), required=False),
    },
    outputs={"report": artifact_types.SENSITIVITY},
    published={"report": artifact_types.SENSITIVITY_FILE},
    packages=("onnxruntime", "onnx", "numpy", "onnx-ir", "matplotlib"),
    memory=Memory(250 << 20, 8.0),
)
