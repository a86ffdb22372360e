"""optimize: the graph becomes smaller without leaving what every execution provider understands.

This is the declaration; the work is in :mod:`winml_dag.stages.optimize.apply`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.engine.stage import InputSlot, Memory, Stage
from winml_dag.stages import kinds


@dataclass(frozen=True)
class OptimizeTarget:
    """``standard_domain_only``: no capability may add operators from outside the ONNX standard."""

    standard_domain_only: bool = False


@dataclass(frozen=True)
class OptimizeConfig:
    """``optim`` has the capabilities that a recipe switches on or off, where they differ from the defaults."""

    optim: Mapping[str, bool] = field(default_factory=dict)
    target: OptimizeTarget = OptimizeTarget()


OPTIMIZE = Stage(
    name="optimize",
    version=4,
    work="winml_dag.stages.optimize.apply:run",
    config="winml_dag.stages.optimize:OptimizeConfig",
    inputs={
        "model": kinds.model_slot("optimized", kinds.FLOAT_MODEL),
        # What an analysis of the model recommends. The recipe's own settings win.
        "flags": InputSlot(frozenset({kinds.OPTIMIZATIONS}), required=False),
    },
    outputs={"model": kinds.FLOAT_MODEL},
    packages=("onnxruntime", "onnx", "onnxscript", "onnx-ir", "numpy"),
    memory=Memory(150 << 20, 3.5),
)
