"""The case of a model of one node, read from its file as every other model is."""

from __future__ import annotations

from pathlib import Path

from winml_dag.ep.support.case import Case
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages.probe.cases import Scope, case_of
from winml_dag.stages.probe.onenode import PROBED


def case_of_model(model: bytes, folder: Path) -> Case:
    """The case of the node called ``PROBED`` in *model*, by way of a file in *folder*."""
    path = folder / "one_node.onnx"
    path.write_bytes(model)
    read = read_model(path, values=True)
    node = next(node for node in read.graph.nodes if node.name == PROBED)
    return case_of(node, Scope.of(read))
