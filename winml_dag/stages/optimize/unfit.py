"""Models that there is nothing to optimize in, told with what to do instead."""

from __future__ import annotations

from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import ModelSummary


def refuse_unfit(name: str, model: ModelSummary) -> None:
    """Raise StageError for the *model* in the file *name* when it is compiled or quantized."""
    if model.is_compiled:
        raise StageError(
            f"{name} is a compiled model: its EPContext nodes hold an execution provider's own binary, in which "
            "there is no graph left to optimize.",
            advice="Use the ONNX model that it was compiled from.",
        )
    if model.is_quantized:
        # onnxruntime would turn QDQ groups into QLinear operators, which compilers for NPUs do not take.
        raise StageError(
            f"{name} is quantized already, and optimizing it would take its quantization apart.",
            advice="Optimize the float32 model, or set skip_optimize.",
        )
