"""optimize: the graph becomes smaller without leaving what every execution provider understands.

This is the declaration; the work is in :mod:`winml_dag.stages.optimize.work`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.engine.stage import Stage
from winml_dag.stages import kinds


@dataclass(frozen=True)
class OptimizeTarget:
    """``standard_domain_only``: no flag may bring in operators from outside the ONNX standard (``com.microsoft``)."""

    standard_domain_only: bool = False


@dataclass(frozen=True)
class OptimizeConfig:
    """``optim`` has the enabled flags only."""

    optim: Mapping[str, bool] = field(default_factory=dict)
    target: OptimizeTarget = OptimizeTarget()


OPTIMIZE = Stage(
    name="optimize",
    version=2,
    work="winml_dag.stages.optimize.work:run",
    config="winml_dag.stages.optimize:OptimizeConfig",
    inputs={"model": kinds.model_slot("optimized", kinds.FLOAT_MODEL)},
    outputs={"model": kinds.FLOAT_MODEL},
    packages=("onnxruntime", "onnx", "onnxscript", "onnx-ir", "numpy"),
)
