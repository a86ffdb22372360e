"""The file that calibrate writes and quantize reads: the range of values of every activation.

onnxruntime's format is not used: it differs from run to run (its tensors are in the order of a set), holds histograms
that nothing reads, and only some of its versions have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from winml_dag.canonical import canonical_json
from winml_dag.errors import StageError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import digest_file

_FORMAT: Literal[2] = 2
# Lowest and highest values by channel.
_Ends: TypeAlias = tuple[tuple[FiniteFloat, ...], tuple[FiniteFloat, ...]]


@dataclass(frozen=True)
class Provenance:
    """The source of ranges. The same samples result in the same values, whatever files hold them.

    Attributes:
        model: digest of the model as an artifact, as in the manifest.
        data: npz, npy, text, images, dataset or random.
        samples: how many the model was run on; ``digest``: of their arrays, as they were fed.
        seed, distribution: of random data; else None.
        seen: the digest of each sample (:class:`~winml_dag.stages.samples.samples.Fed` defines what it covers); empty
            for random data and in files of older versions.
    """

    model: str
    data: str
    samples: int
    digest: str
    seed: int | None = None
    distribution: str | None = None
    seen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ranges:
    """The ranges of a model's activations by tensor; each number is exactly a float32.

    Attributes:
        method: how the bounds were found.
        bounds: lowest and highest value.
        typical: magnitude of most values of the inputs and outputs of normalizations.
        channels: lowest and highest values of the channels of the last axis, for outputs of normalizations for which 8
            bits are too coarse.
    """

    method: str
    bounds: Mapping[str, tuple[float, float]]
    provenance: Provenance
    typical: Mapping[str, float] = field(default_factory=dict)
    channels: Mapping[str, _Ends] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the canonical text of these ranges."""
        content = _File(
            _FORMAT, self.method, self.provenance, dict(self.bounds), dict(self.typical), dict(self.channels)
        )
        text = canonical_json(TypeAdapter(_File).dump_python(content, mode="json", by_alias=True))
        path.write_text(text + "\n", encoding="utf-8", newline="\n")

    def renamed(self, names: Mapping[str, str]) -> Ranges:
        """Return these ranges with renamed tensors: *names* maps old names to new ones."""
        return replace(
            self,
            bounds={names.get(name, name): pair for name, pair in self.bounds.items()},
            typical={names.get(name, name): value for name, value in self.typical.items()},
            channels={names.get(name, name): ends for name, ends in self.channels.items()},
        )

    def require_model(self, folder: Path) -> None:
        """Raise StageError if the model in *folder* is not the one that was calibrated."""
        if model_digest(folder) != self.provenance.model:
            raise StageError(
                "The activation ranges are of another model: what is quantized now has other bytes than what was"
                f" calibrated ({self.provenance.samples} samples, {self.provenance.data}).",
                advice="Calibrate this model: take quant.calibration_load_path away, or load ranges of this model.",
            )

    @classmethod
    def read(cls, path: Path) -> Ranges:
        """Read a file. Raises StageError if :meth:`write` did not write it."""
        try:
            found = TypeAdapter(_File).validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise StageError(
                f"{path.name} has no activation ranges as calibrate writes them ({where}: {first['msg']}).",
                advice="Calibrate the model again.",
            ) from error
        return cls(found.method, found.ranges, found.provenance, found.typical, found.channels)


@dataclass(frozen=True)
class _File:
    """The content of the file."""

    format: Literal[2]
    method: str
    provenance: Annotated[Provenance, Field(alias="from")]
    ranges: dict[str, tuple[FiniteFloat, FiniteFloat]]
    typical: dict[str, FiniteFloat]
    channels: dict[str, _Ends]

    def __post_init__(self) -> None:
        if any(len(low) != len(high) for low, high in self.channels.values()):
            raise ValueError("a channel with one end")


def model_digest(folder: Path) -> str:
    """Return the digest of the model in *folder* as an artifact: of all of its files and their names."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return Artifact.of(
        FileEntry(path.relative_to(folder).as_posix(), digest_file(path), path.stat().st_size) for path in files
    ).digest
