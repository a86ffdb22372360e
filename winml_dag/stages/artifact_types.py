"""The artifact types that the built-in stages exchange; they determine which stage may follow which.

The refusals are shown to a user who connects stages that do not fit; the graph is checked before anything runs.
"""

from __future__ import annotations

from winml_dag.engine.stage import InputSlot

MODEL_FOLDER = "model folder"  # config.json and weights as transformers saves them
USER_SCRIPT = "user script"  # a Python file that creates the model
PROCESSOR_FOLDER = "processor folder"  # tokenizer and preprocessor files
CALIBRATION_DATA = "calibration data"  # .npz, .npy or .txt
OPTION_FILES = "provider option files"

FLOAT_MODEL = "onnx"  # an ordinary model in float32
HALF_MODEL = "float16 onnx"
QUANTIZED_MODEL = "quantized onnx"  # QDQ or QOperator
WEIGHT_ONLY_MODEL = "weight-only quantized onnx"  # MatMulNBits: integer weights, everything else in float32
COMPILED_MODEL = "compiled onnx"  # has EPContext nodes with an execution provider's own binary
COMPILED_MODELS = "compiled onnx models"  # several that share one binary

RANGES = "activation ranges"
RANGES_FILE = "calibration_ranges.json"
OPTIMIZATIONS = "optimizations"  # one file optimizations.json: {capability: true} for each that analyze discovered
SUPPORT = "operator support"  # tables of how execution providers support operators
ANALYSIS = "analysis"
HIERARCHY = "module hierarchy"
VALIDATION = "validation report"
SENSITIVITY = "sensitivity report"
SENSITIVITY_FILE, SENSITIVITY_PICTURE = "sensitivity.json", "sensitivity.png"
EVALUATION = "evaluation report"
PERFORMANCE = "performance report"
PICTURE = "picture"

ANY_MODEL = frozenset({FLOAT_MODEL, HALF_MODEL, QUANTIZED_MODEL, WEIGHT_ONLY_MODEL, COMPILED_MODEL})
INTEGER_MODELS = frozenset({QUANTIZED_MODEL, WEIGHT_ONLY_MODEL})
FINISHED_MODELS = INTEGER_MODELS | {COMPILED_MODEL}  # not quantized again

_COMPILED = (
    "it is a compiled EPContext model, an execution provider's own binary that cannot be {done} again; "
    "use the ONNX model that it was compiled from"
)


def model_slot(done: str, *accepts: str) -> InputSlot:
    """Return the model input of a stage in which a model is *done* (such as "quantized"), with its refusal messages."""
    refusals = {
        COMPILED_MODEL: _COMPILED.format(done=done),
        QUANTIZED_MODEL: f"it is already quantized and cannot be {done} again; use the float model",
        WEIGHT_ONLY_MODEL: (
            f"its weights are quantized already (MatMulNBits) and it cannot be {done} again; use the float model"
        ),
        HALF_MODEL: f"it is already in float16 and cannot be {done}; use the float32 model",
    }
    return InputSlot(
        frozenset(accepts), refusals={kind: text for kind, text in refusals.items() if kind not in accepts}
    )
