"""winml_dag: a declarative DAG build system with a content-addressed cache for deployment-ready ONNX models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
# The name of this program in records, manifests and signatures.
TOOL_ID = f"winml_dag {__version__}"
__all__ = [
    "CommandResult",
    "EvalResult",
    "PerfResult",
    "QuantizeResult",
    "SweepResult",
    "WinMLCompileConfig",
    "WinMLQuantizationConfig",
    "__version__",
    "build_hf_model",
    "build_onnx_model",
    "build_sweep",
    "calibrate_onnx",
    "compile_onnx",
    "evaluate_onnx",
    "export_model",
    "measure_onnx",
    "optimize_onnx",
    "quantize_onnx",
    "validate_onnx",
]

if TYPE_CHECKING:
    from winml_dag.api import (
        build_hf_model,
        build_onnx_model,
        build_sweep,
        calibrate_onnx,
        compile_onnx,
        evaluate_onnx,
        export_model,
        measure_onnx,
        optimize_onnx,
        quantize_onnx,
        validate_onnx,
    )
    from winml_dag.api.results import EvalResult, PerfResult
    from winml_dag.pipeline.buildresult import CommandResult
    from winml_dag.pipeline.stageresults import QuantizeResult
    from winml_dag.pipeline.sweep.result import SweepResult
    from winml_dag.recipe.schema import Compile as WinMLCompileConfig
    from winml_dag.recipe.schema import Quant as WinMLQuantizationConfig


def __getattr__(name: str) -> Any:
    """Import the API on first use, so that the command line and the workers do not pay for it."""
    if name in __all__:
        from winml_dag import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
