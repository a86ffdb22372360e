"""Which version of the ONNX standard a model is written in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto


def standard_opset(model: ModelProto) -> int:
    """0 for a model that imports no version of the standard, since it has no operator of it."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
