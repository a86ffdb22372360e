"""Raises the opset of a model: onnx's converter, with what it loses put back, and a check that outputs stay equal.

The converter drops metadata of nodes, and takes Resize of opset 10 for one with the defaults of later versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from winml_dag.errors import InputError, StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.facts import standard_opset
from winml_dag.onnxmodel.feeds import model_inputs, random_feeds
from winml_dag.onnxmodel.files import EXTERNAL_TENSOR_MINIMUM, save_model
from winml_dag.onnxmodel.protos import graphs_of
from winml_dag.stages.float_model import open_session

# 21 is what exports have; some models convert to one of the others only.
VERSIONS = (21, 17, 13)

# The opset from which on Resize says where its samples lie.
_MODES_OF_RESIZE = 11
# Before it, every initializer had to be an input as well.
_FIRST_IR = 4
_SAMPLES = 2
_BEFORE_FILE, _AFTER_FILE = Path("before.onnx"), Path("after.onnx")
_Outputs = list[list[NDArray[np.generic]]]


@dataclass(frozen=True)
class Raised:
    """``model`` is the one that was given where no version suits it; ``kept`` says why then. ``compared``: whether
    outputs were, since some models do not run on random inputs.
    """

    model: ModelProto
    compared: bool = False
    kept: str = ""


def ir_version_for(model: ModelProto) -> int:
    """The lowest version of the file format that holds *model*: its operators, and initializers that are no inputs."""
    needed = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    return max(int(model.ir_version), _FIRST_IR, int(needed))


def raise_opset(model: ModelProto) -> Raised:
    """*model* in the highest of :data:`VERSIONS` in which it loads and, on random inputs, computes what it did."""
    if model.functions or any(graph.sparse_initializer for graph in graphs_of(model.graph)):
        return Raised(model, kept="the converter takes neither functions nor sparse tensors")
    save_model(model, _BEFORE_FILE)
    expected = _outputs(_BEFORE_FILE)
    why = ""
    for version in VERSIONS:
        try:
            converted = _converted(model, version)
            save_model(converted, _AFTER_FILE)
            if expected is None:
                open_session(_AFTER_FILE, "it")
                return Raised(converted)
            if _equal(expected, _outputs(_AFTER_FILE, needed=True)):
                return Raised(converted, compared=True)
            why = f"in opset {version} its outputs differ"
        except StageError as error:
            why = f"opset {version}: {error.message}"
        except (RuntimeError, ValueError, onnx.shape_inference.InferenceError) as error:
            why = f"it cannot be converted to opset {version}: {explanation(error)}"
    return Raised(model, kept=why)


def _outputs(path: Path, *, needed: bool = False) -> _Outputs | None:
    """What the model *path* gives for random inputs; None for one that does not take such, unless that is *needed*."""
    try:
        session = open_session(path, "it")
        feeds = random_feeds(model_inputs(session), seed=0, count=_SAMPLES)
        return [session.run(None, feed) for feed in feeds]
    except (StageError, InputError):
        if needed:
            raise
        return None
    except Exception as error:  # onnxruntime's errors have no base class of their own
        if needed:
            raise StageError(f"it does not run: {explanation(error)}") from error
        return None


def _equal(expected: _Outputs, found: _Outputs | None) -> bool:
    return found is not None and all(
        len(mine) == len(theirs) and all(map(_same, mine, theirs)) for mine, theirs in zip(expected, found, strict=True)
    )


def _same(expected: object, found: object) -> bool:
    """Equal up to the noise of another order of the same sums."""
    mine, theirs = np.asarray(expected), np.asarray(found)
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return False
    if mine.dtype.kind != "f":
        return bool(np.array_equal(mine, theirs))
    finite = mine[np.isfinite(mine)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(theirs, mine, rtol=1e-3, atol=1e-5 * largest, equal_nan=True))


def _converted(model: ModelProto, version: int) -> ModelProto:
    # What rank a value has decides how some operators are converted: Softmax stays one node where that is known.
    whole = onnx.shape_inference.infer_shapes(model, data_prop=True)
    large = _without_large(whole.graph)
    converted = onnx.version_converter.convert_version(whole, version)
    for node in _nodes(converted):
        if node.op_type == "Resize" and standard_opset(model) < _MODES_OF_RESIZE:
            # The only way in which it and Upsample worked before; the converter leaves today's default, another one.
            _set_attributes(node, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    for tensor in converted.graph.initializer:
        if tensor.name in large:
            tensor.CopyFrom(large[tensor.name])
    _carry_metadata(model, converted)
    converted.ir_version = ir_version_for(converted)
    return onnx.shape_inference.infer_shapes(converted, data_prop=True)


def _nodes(model: ModelProto) -> Iterator[NodeProto]:
    for graph in graphs_of(model.graph):
        yield from graph.node


def _without_large(graph: GraphProto) -> dict[str, TensorProto]:
    """Take the data out of large initializers, and return these by name: weights need not go through the converter."""
    found: dict[str, TensorProto] = {}
    for tensor in graph.initializer:
        if tensor.ByteSize() < EXTERNAL_TENSOR_MINIMUM and tensor.data_location != TensorProto.EXTERNAL:
            continue
        whole = found[tensor.name] = TensorProto()
        whole.CopyFrom(tensor)
        tensor.Clear()
        tensor.name, tensor.data_type, tensor.data_location = whole.name, whole.data_type, TensorProto.EXTERNAL
        tensor.dims.extend(whole.dims)
        tensor.external_data.add(key="location", value="elsewhere")
    return found


def _set_attributes(node: NodeProto, **values: str) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name not in values]
    copies = [onnx.AttributeProto.FromString(attribute.SerializeToString()) for attribute in kept]
    del node.attribute[:]
    node.attribute.extend([*copies, *(helper.make_attribute(name, value) for name, value in values.items())])


def _carry_metadata(before: ModelProto, after: ModelProto) -> None:
    """What the converter drops: metadata of nodes and of the graph, and notes on quantization."""
    by_output = {node.output[0]: node for node in _nodes(before) if node.output}
    for node in _nodes(after):
        owner = by_output.get(node.output[0]) if node.output else None
        if owner is not None and not node.metadata_props:
            node.metadata_props.extend(owner.metadata_props)
    for field in ("metadata_props", "quantization_annotation"):
        if not getattr(after.graph, field):
            getattr(after.graph, field).extend(getattr(before.graph, field))
