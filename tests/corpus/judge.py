"""The quality of a built model, by numpy and onnxruntime only: its outputs compared with those of the original.

winml_dag's results are judged here and not by its own validate, which would not find its own mistakes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from netgraphs import Array, Feed

# Above this value a difference is only rounding.
CEILING_DB = 60.0
# By precision: the minimum cosine of an output, and the maximum deviation of its scale, of an acceptable model. Small
# graphs with 8 samples lose more than networks do, so these separate broken from coarse and nothing finer.
RIGHT: Mapping[str, tuple[float, float]] = {
    "fp32": (0.9999, 0.001),
    "fp16": (0.999, 0.02),
    "w16a16": (0.99, 0.05),
    "w8a16": (0.95, 0.15),
    "w8a8": (0.8, 0.35),
    "dynamic": (0.8, 0.35),
    "w4a32": (0.7, 0.5),
}


# Operators that compute with integers, which show whether anything was quantized.
_QUANTIZED = {
    *("DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "MatMulNBits", "GatherBlockQuantized"),
    *("MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
}


@dataclass(frozen=True)
class Figures:
    """How close a model's outputs are to the reference, over all samples.

    Attributes:
        cosine: the lowest of all float outputs; 1 without one.
        scale: likewise: the factor farthest from 1.
        sqnr_db: the mean of all float outputs, each at most CEILING_DB; None without one.
        agreement: the lowest share of equal values of all other outputs.
        strays: outputs that are not finite where the reference is, or no mask where that is infinite.
    """

    cosine: float = 1.0
    scale: float = 1.0
    sqnr_db: float | None = None
    agreement: float = 1.0
    strays: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "strays": list(self.strays)}


def wrong(found: Mapping[str, Any], precision: str) -> str:
    """Return why a model with these metrics is wrong in *precision*; empty if it is not."""
    least, off = RIGHT[precision]
    if found["strays"]:
        return f"{', '.join(found['strays'])}: infinite or NaN where the original is not"
    if found["cosine"] < least:
        return f"cosine {found['cosine']:.4g}, below {least}"
    if abs(found["scale"] - 1) > off:
        return f"{found['scale']:.4g} times as large as it should be"
    if precision == "fp32" and found["agreement"] < 1:
        return f"{1 - found['agreement']:.0%} of the integers, flags or texts are others"
    return ""


def open_on_cpu(model: Path, *, optimized: bool = True) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"])


# winml_dag's default options for QNN, so that plain onnxruntime's models are for the same chip.
QNN_OPTIONS = {
    "enable_htp_fp16_precision": "1",
    "htp_arch": "73",
    "htp_graph_finalization_optimization_mode": "3",
    "htp_performance_mode": "burst",
    "soc_model": "60",
}


@lru_cache(maxsize=1)
def _qnn() -> Any:
    import onnxruntime_qnn as plugin

    onnxruntime.register_execution_provider_library("QNNExecutionProvider", plugin.get_library_path())
    device = next(device for device in onnxruntime.get_ep_devices() if device.ep_name == "QNNExecutionProvider")
    return device, plugin.get_qnn_htp_path()


# Operators that only convert values from one form to another.
_CONVERSIONS = {"Cast", "DequantizeLinear", "QuantizeLinear", "Transpose"}


def open_on_qnn(model: Path) -> onnxruntime.InferenceSession:
    """Open a session of which QNN computes a part, on its emulator if there is no NPU.

    Raises:
        RuntimeError: when everything that computes would run on the CPU.
    """
    device, backend = _qnn()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_provider_for_devices([device], {**QNN_OPTIONS, "backend_path": backend})
    session = onnxruntime.InferenceSession(str(model), options)
    parts = session.get_provider_graph_assignment_info()
    nodes = {(node.op_type, part.ep_name == "QNNExecutionProvider") for part in parts for node in part.get_nodes()}
    taken, left = ({op for op, is_taken in nodes if is_taken == wanted} for wanted in (True, False))
    if not taken or (taken <= _CONVERSIONS and not left <= _CONVERSIONS):
        raise RuntimeError("QNN took no part of it")
    return session


def outputs(session: onnxruntime.InferenceSession, feeds: Sequence[Feed]) -> list[list[Any]]:
    """Return the outputs by sample; a sequence counts as its items in a row."""
    return [[_flat(value) for value in session.run(None, feed)] for feed in feeds]


def _flat(value: Any) -> Array:
    if isinstance(value, list):
        return np.concatenate([np.ravel(item) for item in value]) if value else np.zeros(0, np.float32)
    return np.asarray(value)


def compare(reference: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]], names: Sequence[str]) -> Figures:
    """Return the metrics of all outputs.

    Raises:
        ValueError: when an output has another shape.
    """
    cosine, scale, agreement, noise, strays = 1.0, 1.0, 1.0, [], []
    for at, name in enumerate(names):
        theirs = [sample[at] for sample in reference]
        ours = [sample[at] for sample in found]
        same_shapes = all(a.shape == b.shape for a, b in zip(theirs, ours, strict=True))
        a, b = (np.concatenate([np.ravel(array) for array in arrays]) for arrays in (theirs, ours))
        if not same_shapes:
            if a.dtype.kind == "f":
                raise ValueError(f"output {name} has the shape {ours[0].shape} instead of {theirs[0].shape}")
            agreement = 0.0  # the number of boxes or positions depends on values
            continue
        if not a.size:
            continue
        if a.dtype.kind != "f":
            agreement = min(agreement, float(np.mean(a == b)))
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(a)
        if not np.isfinite(b[finite]).all() or not _masks(a, b):
            strays.append(name)
            continue
        one = _figures(a[finite], b[finite])
        cosine, noise = min(cosine, one[0]), [*noise, one[2]]
        scale = max(scale, one[1], key=lambda factor: abs(factor - 1))
    return Figures(cosine, scale, float(np.mean(noise)) if noise else None, agreement, tuple(strays))


def _masks(a: Array, b: Array) -> bool:
    """Return whether *b* is at its limit wherever *a* is infinite: no integer represents infinity, and a mask still
    masks.
    """
    low, high, nan = (b[place] for place in (a == -np.inf, a == np.inf, np.isnan(a)))
    ends = (np.nanmin(b, initial=np.inf), np.nanmax(b, initial=-np.inf))
    return bool((low <= ends[0]).all() and (high >= ends[1]).all() and np.isnan(nan).all())


def _figures(a: Array, b: Array) -> tuple[float, float, float]:
    """Return cosine, scale and SQNR of *b*, with *a* as reference."""
    signal, noise = float(np.sum(a * a)), float(np.sum((a - b) ** 2))
    if noise <= signal * 1e-12 or signal + noise == 0:
        return 1.0, 1.0, CEILING_DB
    size = math.sqrt(signal / a.size)
    if size < 1e-6:  # an output of zeros has no direction: its distance from them counts
        return (1.0, 1.0, CEILING_DB) if math.sqrt(noise / a.size) < 1e-3 else (0.0, 1.0, 0.0)
    product, other = float(np.sum(a * b)), float(np.sum(b * b))
    cosine = product / math.sqrt(signal * other) if other else 0.0
    return cosine, product / signal, min(CEILING_DB, 10 * math.log10(signal / noise))


def integers(model: Path) -> int:
    """Return how many nodes of *model*, including subgraphs, compute with integers that represent floats."""
    return _integers(onnx.load(model, load_external_data=False).graph)


def _integers(graph: onnx.GraphProto) -> int:
    return sum(
        node.op_type in _QUANTIZED
        or any(_integers(each.g) for each in node.attribute if each.type == onnx.AttributeProto.GRAPH)
        for node in graph.node
    )


def halves(model: Path) -> bool:
    """Return whether *model* computes in half precision anywhere, including subgraphs. A Cast computes nothing."""
    return _halves(onnx.load(model, load_external_data=False).graph)


def _halves(graph: onnx.GraphProto, outer: frozenset[str] = frozenset()) -> bool:
    half = onnx.TensorProto.FLOAT16
    casts = (node for node in graph.node if node.op_type == "Cast" and node.attribute[0].i == half)
    cast = outer.union(node.output[0] for node in casts)
    return any(tensor.data_type == half for tensor in graph.initializer) or any(
        (node.op_type != "Cast" and cast.intersection(node.input))
        or any(_halves(each.g, cast) for each in node.attribute if each.type == onnx.AttributeProto.GRAPH)
        for node in graph.node
    )


def stored(model: Path) -> int:
    """Return how many weight elements *model* stores as integers.

    A tool may quantize weights in Constant nodes like activations, in their width, and store them in float.
    """
    graph = onnx.load(model, load_external_data=False).graph
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer if len(tensor.dims) > 1}
    read = {node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    return sum(size for name, size in sizes.items() if name in read)


def granularity(model: Path) -> str:
    """Return ``channel`` if a weight of a QDQ model has several scales, otherwise ``tensor``."""
    graph = onnx.load(model, load_external_data=False).graph
    dims = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in dims and math.prod(dims.get(node.input[1], [])) > 1:
            return "channel"
    return "tensor"


def changes(original: Path, built: Path, *, fixed: bool) -> list[str]:
    """Return what *built* has lost of a model's interface and metadata; *fixed*: it may have fixed dimensions."""
    before, after = (onnx.load(path, load_external_data=False) for path in (original, built))
    found = []
    for kind, theirs, ours in (
        ("input", *(_needed(model.graph) for model in (before, after))),
        ("output", before.graph.output, after.graph.output),
    ):
        names = [value.name for value in ours]
        if names != [value.name for value in theirs]:
            found.append(f"{kind}s are {', '.join(names) or 'none'}")
            continue
        for value, now in zip(theirs, ours, strict=True):
            if value.type.WhichOneof("value") != now.type.WhichOneof("value"):
                found.append(f"{kind} {value.name} is no {value.type.WhichOneof('value')} any more")
            elif value.type.HasField("tensor_type"):
                found += _tensor_changes(kind, value, now, fixed=fixed)
    words = {item.key: item.value for item in after.metadata_props}
    lost = [item.key for item in before.metadata_props if words.get(item.key) != item.value]
    lost += [
        field
        for field in ("producer_name", "producer_version", "domain", "doc_string", "model_version")
        if getattr(before, field) and getattr(before, field) != getattr(after, field)
    ]
    return [*found, *([f"lost: {', '.join(lost)}"] if lost else [])]


def _needed(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller must provide: IR 3 lists initializers among them."""
    initializers = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initializers]


def _tensor_changes(kind: str, value: onnx.ValueInfoProto, now: onnx.ValueInfoProto, *, fixed: bool) -> list[str]:
    theirs, ours = value.type.tensor_type, now.type.tensor_type
    if theirs.elem_type != ours.elem_type:
        return [f"{kind} {value.name} has another type"]
    if not theirs.HasField("shape") or not ours.HasField("shape"):
        return []
    if len(theirs.shape.dim) != len(ours.shape.dim):
        return [f"{kind} {value.name} has another rank"]
    for old, new in zip(theirs.shape.dim, ours.shape.dim, strict=True):
        is_open = not (old.HasField("dim_value") and old.dim_value >= 0)
        if is_open and not fixed and new.HasField("dim_value") and kind == "input":
            return [f"{kind} {value.name} has lost an open dimension"]
        if not is_open and new.HasField("dim_value") and new.dim_value != old.dim_value:
            return [f"{kind} {value.name} has another shape"]
    return []
