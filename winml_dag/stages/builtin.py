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

# The declaration of each, and what decides its config for a build, or a Skip: a function of the decisions on the build.
_ROWS = (
    (EXPORT, "winml_dag.pipeline.stageconfigs:export"),
    (NORMALIZE, "winml_dag.pipeline.stageconfigs:normalize"),
    (OPTIMIZE, "winml_dag.pipeline.stageconfigs:optimize"),
    (ANALYZE, "winml_dag.pipeline.stageconfigs:analyze"),
    (CALIBRATE, "winml_dag.pipeline.stageconfigs:calibrate"),
    (QUANTIZE, "winml_dag.pipeline.stageconfigs:quantize"),
    (COMPILE, "winml_dag.pipeline.stageconfigs:compile_"),
    (VALIDATE, "winml_dag.pipeline.stageconfigs:validate"),
    (FINALIZE, "winml_dag.pipeline.stageconfigs:finalize"),
)
LINE: Mapping[str, Stage] = {stage.name: stage for stage, _ in _ROWS}
DECIDED_BY: Mapping[str, str] = {stage.name: function for stage, function in _ROWS}
