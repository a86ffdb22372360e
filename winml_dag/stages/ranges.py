"""The file that calibrate writes and quantize reads: the lowest and highest value of every activation.

A format of our own, because onnxruntime's differs from run to run (its tensors are in the order of a set), holds
histograms that nobody reads, and is known to some of its versions only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import canonical_json
from winml_dag.errors import StageError

RANGES_FILE = "ranges.json"
_FORMAT = 1


@dataclass(frozen=True)
class Ranges:
    """``bounds``: lowest and highest value by tensor, each exactly a float32. ``method``: how they were found."""

    method: str
    bounds: Mapping[str, tuple[float, float]]

    def write(self, path: Path) -> None:
        """Write the one text of these ranges."""
        bounds = {name: list(pair) for name, pair in self.bounds.items()}
        text = canonical_json({"format": _FORMAT, "method": self.method, "ranges": bounds})
        path.write_text(text + "\n", encoding="utf-8", newline="\n")

    @classmethod
    def read(cls, path: Path) -> Ranges:
        """Raises StageError when the file is not one that :meth:`write` wrote."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']}")
            bounds = {str(name): (float(low), float(high)) for name, (low, high) in content["ranges"].items()}
            if not all(math.isfinite(bound) for pair in bounds.values() for bound in pair):
                raise ValueError("not finite")
            return cls(str(content["method"]), bounds)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StageError(
                f"{path.name} has no activation ranges as calibrate writes them ({error!r}).",
                advice="Calibrate the model again.",
            ) from error
