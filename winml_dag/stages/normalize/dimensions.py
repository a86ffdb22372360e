"""Fixes open dimensions: inputs get their sizes, and every shape that follows from them is inferred anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, TensorShapeProto, ValueInfoProto

from winml_dag.errors import StageError
from winml_dag.onnxmodel.files import save_model
from winml_dag.onnxmodel.inspect import UNKNOWN_DIMENSION
from winml_dag.onnxmodel.protos import graphs_of
from winml_dag.stages.float_model import open_session

Shape = tuple[int | str, ...]

_PROBE_FILE = Path("fixed.onnx")


def fix_dimensions(source: Path, model: ModelProto, shapes: Mapping[str, Shape]) -> tuple[ModelProto, int]:
    """*model*, as read from *source*, with *shapes* at its inputs, and how many dimensions that fixed.
    *model* itself changes.

    Shapes of values and outputs are what follows from the inputs. What the file said of them is gone: it was said for
    open dimensions, and exporters often write down the sizes of the example that they traced.

    Raises:
        StageError: when an input is not there, or the model cannot have these sizes.
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
    found = _told_by_onnxruntime(source, model, shapes)
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            _complete(value, found.get(value.name, ()), stated[value.name] or ())
    return model, fixed


def _set_shape(value: ValueInfoProto, shape: Sequence[int | str], sizes: dict[str, int]) -> int:
    """How many dimensions of *value* this fixes; *sizes* learns what those with a name are."""
    before = _dims(value) or (UNKNOWN_DIMENSION,) * len(shape)
    if len(before) != len(shape):
        raise StageError(f"Input {value.name!r} has {len(before)} dimensions, not {len(shape)}.")
    was_open = [(old, new) for old, new in zip(before, shape, strict=True) if isinstance(new, int) and old != new]
    sizes.update((old, new) for old, new in was_open if isinstance(old, str) and old != UNKNOWN_DIMENSION)
    _write(value, shape)
    return len(was_open)


def _forget_shapes(graph: GraphProto, sizes: Mapping[str, int]) -> None:
    """Leave of all shapes behind the inputs the types alone, since operators that inference does not know need those.

    What goes into a subgraph keeps its shape: nothing infers it.
    """
    for inner in graphs_of(graph):
        for value in (*inner.value_info, *inner.output):
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
        for value in inner.input:
            if (dims := _sized(_dims(value), sizes)) is not None:
                _write(value, dims)


def _told_by_onnxruntime(source: Path, model: ModelProto, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shape of each output: onnxruntime knows its own operators, and folds sizes that onnx leaves open. Nothing for
    a model that only another provider loads.
    """
    save_model(model, _PROBE_FILE)
    try:
        session = open_session(_PROBE_FILE, "the model with these sizes")
    except StageError as error:
        if not _loads(source):
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


def _loads(source: Path) -> bool:
    try:
        open_session(source, "the model")
    except StageError:
        return False
    return True


def _complete(value: ValueInfoProto, found: Sequence[int | str], stated: Sequence[int | str]) -> None:
    """Write what is known of an output's shape: what inference says first, then what the file said."""
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
    """The shape of *value*; None when it has none, not even an open one."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(map(_dim, value.type.tensor_type.shape.dim))


def _dim(dim: TensorShapeProto.Dimension) -> int | str:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return dim.dim_param or UNKNOWN_DIMENSION


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
