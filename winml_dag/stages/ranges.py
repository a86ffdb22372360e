"""The file that calibrate writes and quantize reads: the lowest and highest value of every activation.

A format of our own, because onnxruntime's differs from run to run (its tensors are in the order of a set), holds
histograms that nobody reads, and is known to some of its versions only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from winml_dag.canonical import canonical_json
from winml_dag.errors import StageError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import digest_file

# Under this name it is also shown in an output folder.
RANGES_FILE = "calibration_ranges.json"
_FORMAT = 1


@dataclass(frozen=True)
class Provenance:
    """What ranges come from. Whatever files hold them, the same samples leave the same here.

    Attributes:
        model: digest of the model as an artifact, as the manifest has it.
        data: npz, npy, text, images, dataset or random.
        samples: how many the model was run on; ``digest``: of their arrays, as they were fed.
        seed, distribution: of random data; else None.
    """

    model: str
    data: str
    samples: int
    digest: str
    seed: int | None = None
    distribution: str | None = None


@dataclass(frozen=True)
class Ranges:
    """``bounds``: lowest and highest value by tensor, each exactly a float32. ``method``: how they were found."""

    method: str
    bounds: Mapping[str, tuple[float, float]]
    provenance: Provenance

    def write(self, path: Path) -> None:
        """Write the one text of these ranges."""
        bounds = {name: list(pair) for name, pair in self.bounds.items()}
        text = canonical_json(
            {"format": _FORMAT, "method": self.method, "from": asdict(self.provenance), "ranges": bounds}
        )
        path.write_text(text + "\n", encoding="utf-8", newline="\n")

    def require_model(self, folder: Path) -> None:
        """Raise StageError when the model in *folder* is not the one that these are of."""
        if model_digest(folder) != self.provenance.model:
            raise StageError(
                "The activation ranges are of another model: what is quantized now has other bytes than what was"
                f" calibrated ({self.provenance.samples} samples, {self.provenance.data}).",
                advice="Calibrate this model: take quant.calibration_load_path away, or load ranges of this model.",
            )

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
            return cls(str(content["method"]), bounds, Provenance(**content["from"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StageError(
                f"{path.name} has no activation ranges as calibrate writes them ({error!r}).",
                advice="Calibrate the model again.",
            ) from error


def model_digest(folder: Path) -> str:
    """The digest of the model in *folder* as an artifact: of all of its files and their names."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return Artifact.of(
        FileEntry(path.relative_to(folder).as_posix(), digest_file(path), path.stat().st_size) for path in files
    ).digest
