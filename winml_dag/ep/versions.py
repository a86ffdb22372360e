"""Models of other versions of ONNX than the installed onnxruntime reads, told from its error."""

from __future__ import annotations

import re

from winml_dag.errors import StageError

_NEWER_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_NEWER_OPSET = re.compile(
    r"Opset (\d+) is under development.*?official support for domain (\S+) is till opset (\d+)", re.DOTALL
)
_NO_OPSET = "Missing opset in the model"


def unread_version(error: Exception) -> StageError | None:
    """The refusal of a model that no session of this onnxruntime loads, because of its version of ONNX; None when
    *error*, of loading it, is about something else.
    """
    import onnxruntime

    text, reader = str(error), f"onnxruntime {onnxruntime.__version__}"
    if found := _NEWER_IR.search(text):
        return StageError(
            f"The model is of ONNX IR version {found[1]}; {reader} reads up to {found[2]}.",
            advice="Install a newer onnxruntime, or save the model with an older version of the onnx package.",
        )
    if found := _NEWER_OPSET.search(text):
        return StageError(
            f"The model uses opset {found[1]} of {found[2]}; {reader} knows it up to {found[3]}.",
            advice="Install a newer onnxruntime, or export the model with that opset.",
        )
    if _NO_OPSET in text:
        return StageError(
            "The model does not say which opset it uses, as models before ONNX IR version 3 do not.",
            advice="Export it again with opset 7 or newer.",
        )
    return None
