"""The work of the normalize stage: remove initializers from the inputs, fix open dimensions, raise the opset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.ep.session import open_session
from winml_dag.errors import InputError, StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.feeds import INPUTS_KEY, model_inputs, random_feeds, write_io_specs
from winml_dag.onnxmodel.files import EXTERNAL_TENSOR_MINIMUM, load_model, save_model
from winml_dag.onnxmodel.graph import standard_opset
from winml_dag.onnxmodel.inspect import UNKNOWN_DIMENSION, inspect_model
from winml_dag.onnxmodel.protos import graphs_of, nodes_of, remove_items, without_data
from winml_dag.stages.normalize import FIRST_OPSET, NormalizeConfig

# The opset is raised with onnx's converter. What it loses is restored, and outputs have to stay equal: it drops the
# metadata of nodes, and gives Resize of opset 10 the defaults of later versions.

# Exports have 21; some models convert only to one of the others.
VERSIONS = (21, 17, 13)

# The first opset in which Resize specifies its sample positions.
_MODES_OF_RESIZE = 11
# Below this IR version, every initializer had to be an input as well.
_FIRST_IR = 4
_SAMPLES = 2
_BEFORE_FILE, _AFTER_FILE = Path("before.onnx"), Path("after.onnx")


def ir_version_for(model: ModelProto) -> int:
    """The lowest IR version that supports the operators of *model* and initializers that are not inputs."""
    needed = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    return max(int(model.ir_version), _FIRST_IR, int(needed))


def raise_opset(model: ModelProto) -> tuple[ModelProto, bool, str | None]:
    """Convert *model* to the highest of :data:`VERSIONS` in which it gives the same results on random inputs.

    Returns the converted model or, if no version works, the original; whether outputs were compared, as some models do
    not run on random inputs; and why the original is kept.
    """
    if model.functions or any(graph.sparse_initializer for graph in graphs_of(model.graph)):
        return model, False, "the converter takes neither functions nor sparse tensors"
    save_model(model, _BEFORE_FILE)
    try:
        open_session(_BEFORE_FILE, "it")
    except StageError as error:
        # Nothing to compare with. That matters below opset 7, which onnxruntime does not run: for an axis of
        # broadcasting that the operators have there, the converter stretches the wrong one.
        return model, False, error.message
    try:
        expected = _outputs(_BEFORE_FILE)
    except (StageError, InputError):
        expected = None
    why = None
    for version in VERSIONS:
        try:
            converted = _converted(model, version)
            save_model(converted, _AFTER_FILE)
            if expected is None:
                open_session(_AFTER_FILE, "it")
                return converted, False, None
            pairs = zip(expected, _outputs(_AFTER_FILE), strict=True)
            if all(len(mine) == len(theirs) and all(map(_same, mine, theirs)) for mine, theirs in pairs):
                return converted, True, None
            why = f"in opset {version} its outputs differ"
        except StageError as error:
            why = f"opset {version}: {error.message}"
        except (RuntimeError, ValueError, onnx.shape_inference.InferenceError) as error:
            why = f"it cannot be converted to opset {version}: {explanation(error)}"
    return model, False, why


def _outputs(path: Path) -> list[list[NDArray[np.generic]]]:
    """The outputs of the model *path* for random inputs."""
    session = open_session(path, "it")
    feeds = list(random_feeds(model_inputs(session), seed=0, count=_SAMPLES))
    try:
        return [session.run(None, feed) for feed in feeds]
    except Exception as error:  # onnxruntime's errors have no base class of their own
        raise StageError(f"it does not run: {explanation(error)}") from error


def _same(expected: object, found: object) -> bool:
    """Whether the values are equal up to the noise of summing in another order."""
    mine, theirs = np.asarray(expected), np.asarray(found)
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return False
    if mine.dtype.kind != "f":
        return bool(np.array_equal(mine, theirs))
    finite = mine[np.isfinite(mine)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(theirs, mine, rtol=1e-3, atol=1e-5 * largest, equal_nan=True))


def _converted(model: ModelProto, version: int) -> ModelProto:
    # Some conversions depend on the rank: with a known rank, Softmax stays one node.
    whole = onnx.shape_inference.infer_shapes(model, data_prop=True)
    large = _without_large(whole.graph)
    converted = onnx.version_converter.convert_version(whole, version)
    for node in nodes_of(converted.graph):
        if node.op_type == "Resize" and standard_opset(model) < _MODES_OF_RESIZE:
            # The only mode of Resize and Upsample before; the converter leaves today's default, which differs.
            _set_attributes(node, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    for tensor in converted.graph.initializer:
        if tensor.name in large:
            tensor.CopyFrom(large[tensor.name])
    _carry_metadata(model, converted)
    converted.ir_version = ir_version_for(converted)
    return onnx.shape_inference.infer_shapes(converted, data_prop=True)


def _without_large(graph: GraphProto) -> dict[str, TensorProto]:
    """Move the data of large initializers out of *graph* and return it by name: the converter does not need weights."""
    found: dict[str, TensorProto] = {}
    for tensor in graph.initializer:
        if tensor.ByteSize() < EXTERNAL_TENSOR_MINIMUM and tensor.data_location != TensorProto.EXTERNAL:
            continue
        found[tensor.name] = deepcopy(tensor)
        tensor.CopyFrom(without_data(tensor, "elsewhere"))
    return found


def _set_attributes(node: NodeProto, **values: str) -> None:
    remove_items(node.attribute, lambda attribute: attribute.name in values)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in values.items())


def _carry_metadata(before: ModelProto, after: ModelProto) -> None:
    """Restore what the converter drops: metadata of nodes and of the graph, and quantization annotations."""
    by_output = {node.output[0]: node for node in nodes_of(before.graph) if node.output}
    for node in nodes_of(after.graph):
        owner = by_output.get(node.output[0]) if node.output else None
        if owner is not None and not node.metadata_props:
            node.metadata_props.extend(owner.metadata_props)
    for field in ("metadata_props", "quantization_annotation"):
        if not getattr(after.graph, field):
            getattr(after.graph, field).extend(getattr(before.graph, field))


# Fixes open dimensions: inputs get their sizes, and all shapes that follow from them are inferred again.

Shape = tuple[int | str, ...]

_PROBE_FILE = Path("fixed.onnx")


def fix_dimensions(source: Path, model: ModelProto, shapes: Mapping[str, Shape]) -> tuple[ModelProto, int]:
    """Set *shapes* on the inputs of *model*, read from *source*; return it and the number of dimensions fixed.

    *model* itself changes. Shapes of values and outputs are inferred from the inputs. The shapes in the file are
    dropped: they describe open dimensions, and exporters often write the sizes of the traced example.

    Raises:
        StageError: an input does not exist, or the model cannot have these sizes.
    """
    fixed, sizes = 0, dict[str, int]()
    inputs = {value.name: value for value in model.graph.input}
    for name, shape in shapes.items():
        if name not in inputs:
            raise StageError(f"The model has no input {name!r}.", advice=f"It has: {', '.join(inputs)}.")
        fixed += _set_shape(inputs[name], shape, sizes)
    if not fixed:
        return model, 0
    stated = {value.name: _sized(_dims(value), sizes) for value in model.graph.output}
    _forget_shapes(model.graph, sizes)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    found = _shapes_from_onnxruntime(source, model, shapes)
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            _complete(value, found.get(value.name, ()), stated[value.name] or ())
    return model, fixed


def _set_shape(value: ValueInfoProto, shape: Sequence[int | str], sizes: dict[str, int]) -> int:
    """Set *shape* on *value*, return how many dimensions that fixes, and record named dimensions in *sizes*."""
    before = _dims(value) or (UNKNOWN_DIMENSION,) * len(shape)
    if len(before) != len(shape):
        raise StageError(f"Input {value.name!r} has {len(before)} dimensions, not {len(shape)}.")
    was_open = [(old, new) for old, new in zip(before, shape, strict=True) if isinstance(new, int) and old != new]
    sizes.update((old, new) for old, new in was_open if isinstance(old, str) and old != UNKNOWN_DIMENSION)
    _write(value, shape)
    return len(was_open)


def _forget_shapes(graph: GraphProto, sizes: Mapping[str, int]) -> None:
    """Clear all shapes downstream of the inputs, but keep the types, which operators without inference need.

    The inputs of a subgraph keep their shapes: nothing infers those.
    """
    for inner in graphs_of(graph):
        for value in (*inner.value_info, *inner.output):
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
        for value in inner.input:
            if (dims := _sized(_dims(value), sizes)) is not None:
                _write(value, dims)


def _shapes_from_onnxruntime(source: Path, model: ModelProto, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shape of each output from onnxruntime, which infers shapes that onnx leaves open.

    onnxruntime also supports its own operators. Empty for a model that only another provider can load.
    """
    save_model(model, _PROBE_FILE)
    try:
        session = open_session(_PROBE_FILE, "the model with these sizes")
    except StageError as error:
        try:
            open_session(source, "the model")
        except StageError:
            return {}
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise StageError(
            f"The model does not load with the input shapes {listed}: {error.message}",
            advice="Give it sizes that it can have, or export it again: it may have a size of its own written into it.",
        ) from error
    return {
        output.name: tuple(dim if isinstance(dim, int) else UNKNOWN_DIMENSION for dim in output.shape)
        for output in session.get_outputs()
    }


def _complete(value: ValueInfoProto, found: Sequence[int | str], stated: Sequence[int | str]) -> None:
    """Write what is known about an output's shape: inference comes before what the file states."""
    inferred = _dims(value)
    first = inferred if inferred is not None else found or stated
    candidates = [dims for dims in (first, found, stated) if len(dims) == len(first)]
    if first:
        _write(value, [_known(dims) for dims in zip(*candidates, strict=True)])


def _known(dims: Sequence[int | str]) -> int | str:
    sizes = [dim for dim in dims if isinstance(dim, int)]
    names = [dim for dim in dims if dim != UNKNOWN_DIMENSION]
    return next(iter(sizes or names), UNKNOWN_DIMENSION)


def _sized(dims: Sequence[int | str] | None, sizes: Mapping[str, int]) -> Shape | None:
    return None if dims is None else tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)


def _dims(value: ValueInfoProto) -> Shape | None:
    """The shape of *value*; None if it has none, not even an open one."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or UNKNOWN_DIMENSION
        for dim in value.type.tensor_type.shape.dim
    )


def _write(value: ValueInfoProto, dims: Sequence[int | str]) -> None:
    shape = value.type.tensor_type.shape
    shape.ClearField("dim")
    shape.SetInParent()  # a scalar has a shape without dimensions
    for dim in dims:
        if isinstance(dim, int):
            shape.dim.add(dim_value=dim)
        elif dim == UNKNOWN_DIMENSION:
            shape.dim.add()
        else:
            shape.dim.add(dim_param=dim)


NORMALIZED_FILE = "normalized.onnx"


def run(config: NormalizeConfig, workspace: Workspace) -> JsonObject:
    """Write the model in the form that all later stages take.

    The metrics are ``dimensions_fixed``, ``initializers_dropped_from_inputs``, ``opset_before``, ``opset_after``,
    ``opset_kept_because`` (None unless no later opset works for the model) and ``outputs_compared`` (whether the
    outputs of the converted model were compared with the original's).

    Peak memory: the graph plus twice the size of weights in the model itself; weights in other files stay there.

    Raises:
        StageError: the model cannot have the requested sizes.
        InputError: the model is damaged.
    """
    source = workspace.input_file("model", ".onnx")
    model = load_model(source, weights=False)
    dropped = _drop_listed(model)
    model.ir_version = ir_version_for(model)
    given = config.export.input_tensors
    shapes = {name: each.shape for name, each in given.items() if each.shape is not None}
    ranges = {name: each.value_range for name, each in given.items() if each.value_range is not None}
    model, fixed = fix_dimensions(source, model, shapes)
    before = standard_opset(model)
    compared, kept = False, None
    if config.raise_opset and 0 < before < FIRST_OPSET:
        model, compared, kept = raise_opset(model)
    output = workspace.outputs["model"] / NORMALIZED_FILE
    save_model(model, output)
    if ranges or any(entry.key == INPUTS_KEY for entry in model.metadata_props):
        # The shapes that the file now has, and the ranges of values.
        inputs = [replace(spec, value_range=ranges.get(spec.name, spec.value_range)) for spec in model_inputs(output)]
        write_io_specs(model, inputs, inspect_model(output).outputs)
        save_model(model, output)
    return {
        "dimensions_fixed": fixed,
        "initializers_dropped_from_inputs": dropped,
        "opset_before": before,
        "opset_after": standard_opset(model),
        "opset_kept_because": kept,
        "outputs_compared": compared,
    }


def _drop_listed(model: ModelProto) -> int:
    """Remove initializers from the inputs: onnxruntime's optimizer merges equal ones, but leaves the inputs.

    As inputs they are defaults that a caller may override; no file built here needs that.
    """
    names = {tensor.name for tensor in model.graph.initializer}
    count = len(model.graph.input)
    remove_items(model.graph.input, lambda value: value.name in names)
    return count - len(model.graph.input)
