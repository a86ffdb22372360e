"""The names of files in an output folder: which artifact lies there under which name.

The names are winml-cli's, so that whatever picks up its results finds ours.
"""

from __future__ import annotations

MODEL = "model.onnx"
EXPORTED = "export.onnx"
OPTIMIZED = "optimized.onnx"
QUANTIZED = "quantized.onnx"
COMPILED = "compiled.onnx"
HIERARCHY = "export_htp_metadata.json"
MANIFEST = "build_manifest.json"
BUILD_CONFIG = "winml_build_config.json"

# What each stage leaves in the output folder, by output slot. A stage that is not here leaves nothing there.
VISIBLE_OUTPUTS: dict[str, tuple[str, ...]] = {
    "export": ("model", "hierarchy"),
    "optimize": ("model",),
    "analyze": ("result",),
    "quantize": ("model",),
    "compile": ("model",),
    "finalize": ("model",),
}

STAGE_FILE: dict[str, str] = {
    "export": EXPORTED,
    "optimize": OPTIMIZED,
    "quantize": QUANTIZED,
    "compile": COMPILED,
    "finalize": MODEL,
}

# Names that a build may write, whatever its recipe: none of them may be a file of somebody else's.
RESERVED = (MODEL, EXPORTED, OPTIMIZED, QUANTIZED, COMPILED, HIERARCHY, MANIFEST, BUILD_CONFIG)
