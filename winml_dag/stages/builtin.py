"""The built-in stages of a build: a row each, in the order that users see."""

from __future__ import annotations

from collections.abc import Mapping

from winml_dag.engine.stage import Stage
from winml_dag.stages.analyze import ANALYZE
from winml_dag.stages.calibrate import CALIBRATE
from winml_dag.stages.compile import COMPILE
from winml_dag.stages.export import EXPORT
from winml_dag.stages.finalize import FINALIZE
from winml_dag.stages.normalize import NORMALIZE
from winml_dag.stages.optimize import OPTIMIZE
from winml_dag.stages.quantize import QUANTIZE
from winml_dag.stages.validate import VALIDATE

LINE: Mapping[str, Stage] = {
    stage.name: stage
    for stage in (EXPORT, NORMALIZE, OPTIMIZE, ANALYZE, CALIBRATE, QUANTIZE, COMPILE, VALIDATE, FINALIZE)
}
