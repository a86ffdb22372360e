"""Types and shapes of values that a file does not tell, as onnx infers them.

onnx is imported only for models that leave something open: what optimize writes has all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from winml_dag.onnxmodel.graph import Graph, Model, Value
from winml_dag.onnxmodel.graphfile import read_model

_LARGEST_PROTOBUF = 2**31 - 1


def untold(graph: Graph) -> list[str]:
    """The values that nodes of *graph* make and whose type or rank the file does not tell."""
    known = {value.name for value in (*graph.values, *graph.outputs) if value.data_type and value.dims is not None}
    return [
        name for node in graph.nodes if node.op_type != "Constant" for name in node.outputs if name not in known | {""}
    ]


def inferred(path: Path, model: Model) -> tuple[Value, ...]:
    """What onnx infers for the values of *model*, as read from *path*; nothing where the file tells them all.

    Weights in files of their own are not read. Operators that onnx does not know stay open, and what follows them.
    """
    if not untold(model.graph) or path.stat().st_size > _LARGEST_PROTOBUF:
        return ()
    import onnx

    proto = onnx.load_model(path, load_external_data=False)
    _drop_data(proto.graph.initializer)
    try:
        found = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (ValueError, RuntimeError, onnx.shape_inference.InferenceError):
        return ()  # what is not known stays so: the model may be fine for all that
    inferred_file = Path("inferred.onnx")
    inferred_file.write_bytes(found.SerializeToString())
    return read_model(inferred_file, values=True).graph.values


def _drop_data(initializers: Iterable[object]) -> None:
    """Only numbers that may be a shape are of use; the others would be written and read again for nothing."""
    for tensor in initializers:
        if len(tensor.raw_data) > 1024:  # type: ignore[attr-defined]
            tensor.ClearField("raw_data")  # type: ignore[attr-defined]
