"""Save single nodes of a model as models of their own, with their weights: test cases for a provider's developers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import StoreError, UsageError
from winml_dag.onnxmodel.protos import constant_tensors

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

MOST = 100
_SAFE = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class SavedNode:
    """A node to save: its name in the model, and the name of its file without suffix."""

    node: str
    stem: str


def nodes_to_save(cases: Sequence[object], verdicts: Set[str]) -> Iterator[SavedNode]:
    """Yield one node for each of *cases*, as listed by analyze, with one of *verdicts*; at most :data:`MOST`."""
    number = 0
    for case in cases:
        if number == MOST:
            return
        assert isinstance(case, dict)
        if case["verdict"] in verdicts and case["nodes"]:
            number += 1
            op_type = _SAFE.sub("_", str(case["operator"]))
            yield SavedNode(case["nodes"][0], f"{number:03}_{case['verdict']}_{op_type}")


def save_nodes(model: Path, nodes: Sequence[SavedNode], folder: Path, *, overwrite: bool) -> list[Path]:
    """Write *nodes* of *model* into *folder*, one file each; returns the files. Nodes in subgraphs are skipped.

    Raises:
        UsageError: when a file is in the way, and *overwrite* does not allow replacing it.
        StoreError: when a file cannot be written.
    """
    import onnx

    whole = onnx.load_model(model, load_external_data=False)
    by_name = {name: node for node in whole.graph.node for name in (node.output[0], node.name) if name}
    types = _types(whole)
    written = []
    for each in nodes:
        if each.node not in by_name:
            continue
        path = folder / f"{each.stem}.onnx"
        content = _alone(whole, by_name[each.node], types, model.parent).SerializeToString()
        if path.exists() and not overwrite and path.read_bytes() != content:
            raise UsageError(f"{path} is in the way.", advice="Give --overwrite, or another folder with --save-dir.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be written: {error.strerror or error}.",
                advice="Choose another folder with --save-dir.",
            ) from error
        written.append(path)
    return written


def _types(model: ModelProto) -> dict[str, ValueInfoProto]:
    from onnx import shape_inference

    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    return {value.name: value for group in (graph.value_info, graph.input, graph.output) for value in group}


def _alone(model: ModelProto, node: NodeProto, types: dict[str, ValueInfoProto], base: Path) -> ModelProto:
    from onnx import TensorProto, helper
    from onnx.external_data_helper import load_external_data_for_model

    constants = constant_tensors(model.graph)
    names = dict.fromkeys(name for name in node.input if name)

    def value_info(name: str) -> ValueInfoProto:
        return types.get(name) or helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    inputs = [value_info(name) for name in names if name not in constants]
    graph = helper.make_graph([node], "one_node", inputs, [value_info(name) for name in node.output if name])
    for name in names:
        if name in constants:
            tensor = graph.initializer.add()
            tensor.CopyFrom(constants[name])
            tensor.name = name
    opsets = [opset for opset in model.opset_import if opset.domain in ("", node.domain)]
    alone = helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
    load_external_data_for_model(alone, str(base))
    return alone
