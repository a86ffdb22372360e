"""The Python API: the same builds as on the command line, with the same files and the same cache.

from winml_dag import build_hf_model
result = build_hf_model("./minilm", "out", config="recipe.yaml", precision="w8a16")

from winml_dag import quantize_onnx
done = quantize_onnx("model.onnx", precision="w8a16", calibration_data="samples.npz")

export_model, optimize_onnx, calibrate_onnx, compile_onnx and validate_onnx run one stage each, in the same way.
measure_onnx measures the latency of a model, evaluate_onnx its accuracy. build_sweep builds many models as one graph.
"""

from winml_dag.api.builds import (
    build_hf_model,
    build_onnx_model,
    build_sweep,
    calibrate_onnx,
    compile_onnx,
    export_model,
    optimize_onnx,
    quantize_onnx,
)
from winml_dag.api.measures import evaluate_onnx, measure_onnx, validate_onnx
from winml_dag.api.results import EvalResult, PerfResult
from winml_dag.pipeline.buildresult import CommandResult
from winml_dag.pipeline.stageresults import QuantizeResult
from winml_dag.pipeline.sweep.result import SweepResult
from winml_dag.recipe.schema import Compile as WinMLCompileConfig
from winml_dag.recipe.schema import Quant as WinMLQuantizationConfig

__all__ = [
    "CommandResult",
    "EvalResult",
    "PerfResult",
    "QuantizeResult",
    "SweepResult",
    "WinMLCompileConfig",
    "WinMLQuantizationConfig",
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
