"""A failure that has figures: whoever has to decide what to do about it needs all of them, not only the one that fails.

Apart from the other errors, which are below JSON.
"""

from __future__ import annotations

from winml_dag.canonical import JsonObject
from winml_dag.errors import StageError, WinmlDagError


class MeasuredError(StageError):
    """A stage failed over what it measured. ``metrics``: all that it had measured by then."""

    def __init__(self, message: str, *, advice: str = "", metrics: JsonObject) -> None:
        super().__init__(message, advice=advice)
        self.metrics = metrics


def measured_by(error: WinmlDagError) -> JsonObject:
    """Empty for an error without figures."""
    return error.metrics if isinstance(error, MeasuredError) else {}
