"""The file that calibrate writes and quantize reads: the range of values of every activation.

It says more about inputs and outputs of normalizations, and this module finds those.

onnxruntime's format is not used: it differs from run to run (its tensors are in the order of a set), holds histograms
that nothing reads, and only some of its versions have it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import canonical_json
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import digest_file

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_FORMAT = 2


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
        typical: magnitude of most values of the inputs and outputs of normalizations. It is the square of the mean of
            the roots of magnitudes, which a few huge ones affect little: one channel of 32 that is 400 times as large
            as the others makes it 2.5 times as large, and the mean of magnitudes 13 times.
        channels: lowest and highest values of the channels of the last axis, for outputs of normalizations for which 8
            bits are too coarse.
        infinite: tensors that had values that are not finite: their bounds are 0, and integers cannot stand for them.
    """

    method: str
    bounds: Mapping[str, tuple[float, float]]
    provenance: Provenance = Provenance("", "", 0, "")
    typical: Mapping[str, float] = field(default_factory=dict)
    channels: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    infinite: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write the canonical text of these ranges."""
        bounds = {name: list(pair) for name, pair in self.bounds.items()}
        text = canonical_json(
            {
                "format": _FORMAT,
                "method": self.method,
                "from": asdict(self.provenance),
                "ranges": bounds,
                "typical": dict(self.typical),
                "channels": {name: [list(low), list(high)] for name, (low, high) in self.channels.items()},
                **({"infinite": list(self.infinite)} if self.infinite else {}),
            }
        )
        path.write_text(text + "\n", encoding="utf-8", newline="\n")

    def renamed(self, names: Mapping[str, str]) -> Ranges:
        """Return these ranges with renamed tensors: *names* maps old names to new ones."""
        return replace(
            self,
            bounds={names.get(name, name): pair for name, pair in self.bounds.items()},
            typical={names.get(name, name): value for name, value in self.typical.items()},
            channels={names.get(name, name): ends for name, ends in self.channels.items()},
            infinite=tuple(names.get(name, name) for name in self.infinite),
        )

    def require_model(self, folder: Path) -> None:
        """Raise StageError if the model in *folder* is not the one that was calibrated."""
        if model_digest(folder) != self.provenance.model:
            raise StageError(
                "The activation ranges are of another model: what is quantized now has other bytes than what was"
                f" calibrated ({self.provenance.samples} samples, {self.provenance.data}).",
                advice="Calibrate this model: remove quant.calibration_load_path, or load ranges of this model.",
            )

    @classmethod
    def read(cls, path: Path) -> Ranges:
        """Read a file. Raises StageError if :meth:`write` did not write it."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']}")
            bounds = {str(name): (float(low), float(high)) for name, (low, high) in content["ranges"].items()}
            typical = {str(name): float(value) for name, value in content["typical"].items()}
            channels = {str(name): (_numbers(low), _numbers(high)) for name, (low, high) in content["channels"].items()}
            if any(len(low) != len(high) for low, high in channels.values()):
                raise ValueError("a channel with one end")
            ends = (number for low, high in channels.values() for number in (*low, *high))
            if not all(map(math.isfinite, (*chain(*bounds.values()), *typical.values(), *ends))):
                raise ValueError("not finite")
            came = {**content["from"], "seen": tuple(map(str, content["from"].get("seen", ())))}
            infinite = tuple(map(str, content.get("infinite", ())))
            return cls(str(content["method"]), bounds, Provenance(**came), typical, channels, infinite)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StageError(
                f"{path.name} has no activation ranges as calibrate writes them ({explanation(error)}).",
                advice="Calibrate the model again.",
            ) from error


def _numbers(values: list[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def model_digest(folder: Path) -> str:
    """Return the digest of the model in *folder* as an artifact: of all of its files and their names."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return Artifact.of(
        FileEntry(path.relative_to(folder).as_posix(), digest_file(path), path.stat().st_size) for path in files
    ).digest


# A few values in transformers are hundreds of times larger than the others (one channel, at one token, in every layer).
# They widen the range of a residual sum so much that its other values get only one or two steps in 8 bits. After a
# normalization, small rows cannot be distinguished from large ones, so the noise reaches the output (Bondarenko et al.,
# "Understanding and Overcoming the Challenges of Efficient Transformer Quantization").

_OP_TYPES = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"})

# Steps of a quarter of the typical value are noise 23 dB below it. Pooled embeddings of all-MiniLM-L6-v2 in w8a8, worst
# cosine over 36 sentences with a threshold of 0.15, 0.2, 0.25, 0.35 and 0.5: 0.964, 0.962, 0.961, 0.953, 0.893; without
# treatment 0.622. Tensors in 16 bits: 65, 63, 50, 44, 34.
_COARSE = 0.25
_STEPS = 255


@dataclass(frozen=True)
class Normalization:
    """A node that normalizes the rows of ``source`` (its last axis) and multiplies their channels by ``scale``.

    ``bias`` is None if it has none.
    """

    node: NodeProto
    source: str
    scale: str
    bias: str | None
    output: str


def normalizations(graph: GraphProto) -> Iterator[Normalization]:
    """Yield the normalizations over the last axis with constant scales."""
    constants = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        over_last = all(attribute.i == -1 for attribute in node.attribute if attribute.name == "axis")
        if node.op_type not in _OP_TYPES or constants.get(node.input[1]) != 1 or not over_last:
            continue
        bias = node.input[2] if len(node.input) > 2 and node.input[2] else None
        if bias is None or constants.get(bias) == 1:
            yield Normalization(node, node.input[0], node.input[1], bias, node.output[0])


def is_coarse(bounds: tuple[float, float], typical: float) -> bool:
    """Return whether the 8-bit step over *bounds* (including zero) is large compared with a *typical* magnitude."""
    low, high = min(bounds[0], 0.0), max(bounds[1], 0.0)
    return (high - low) / _STEPS > _COARSE * typical
