"""Builds of a tiny ONNX model, real but for the work of their stages, which runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
from memory_executor import MemoryExecutor
from onnx import NodeProto, TensorProto, helper

from winml_dag.canonical import JsonObject, canonical_json
from winml_dag.engine.stage import Node, Workspace
from winml_dag.errors import StageError
from winml_dag.pipeline.build import build
from winml_dag.pipeline.buildresult import BuildResult
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Request
from winml_dag.pipeline.run import Driver
from winml_dag.store.digest import digest_bytes
from winml_dag.store.store import Store

RELU = helper.make_node("Relu", ["x"], ["y"])
FLOAT = TensorProto.FLOAT


def save_model(
    path: Path, *nodes: NodeProto, dtype: int = FLOAT, constants: tuple[TensorProto, ...] = (), **fields: str
) -> Path:
    """Save a model of *nodes*, Relu without any, from ``x`` to ``y`` of 1 x 4 numbers."""
    x, y = (helper.make_tensor_value_info(name, dtype, [1, 4]) for name in "xy")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes or [RELU], "g", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10, **fields), path)
    return path


def build_tiny(
    request: Request,
    *,
    metrics: Mapping[str, JsonObject] | None = None,
    fails: Mapping[str, str] | None = None,
    content: Callable[[str], bytes] = str.encode,
) -> BuildResult:
    """Build *request* with the cache in the current folder.

    Every output is *content* of a text that depends on the stage, its config and its inputs, so that an edit propagates
    as it would in reality. *metrics* and *fails*, error messages, are by the id or name of a stage.
    """

    def work(node: Node, workspace: Workspace) -> JsonObject:
        if fails and node.stage.name in fails:
            raise StageError(fails[node.stage.name])
        read = [
            [path.name, path.read_bytes().hex()]
            for _, folder in sorted(workspace.inputs.items())
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ]
        made_from = digest_bytes(canonical_json([node.stage.name, node.config, read]).encode(), "xxh3-128")
        for slot, folder in workspace.outputs.items():
            name = node.stage.published.get(slot, f"{slot}.json")
            (folder / name).write_bytes(content(f"{node.id} {slot} {made_from}"))
        found = metrics or {}
        return found.get(node.id) or found.get(node.stage.name, {})

    store = Store(Path("cache"))
    try:
        planned = plan_request(request, store, download=False)
        return build(planned, Driver(store, executor=MemoryExecutor(work)))
    finally:
        store.close()
