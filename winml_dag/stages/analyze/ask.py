"""Asks an installed execution provider what it does with each node of a model, by loading the model with it.

onnxruntime records which provider each node is assigned to. Where a build would quantize the model, Q and DQ are put in
first, with assumed ranges: which operators a provider takes depends on integer types, not on scales.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from winml_dag.ep.registry import Target
from winml_dag.ep.session import runs_on_cpu, session_for, session_options
from winml_dag.ep.support.case import Level, Verdict
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.facts import QDQ
from winml_dag.onnxmodel.files import resave
from winml_dag.onnxmodel.protos import subgraphs
from winml_dag.stages.analyze import RUNS, AnalyzeConfig, QuantizedTo

if TYPE_CHECKING:
    import onnxruntime

_ASKED_FILE, _TYPED_FILE, _QUANTIZED_FILE = Path("asked.onnx"), Path("typed.onnx"), Path("with_qdq.onnx")
# Names by which onnxruntime's assignment and its errors identify nodes, whatever names the file has.
_NAME = "analyzed_node_{}"
_NAMED = re.compile(r"analyzed_node_(\d+)\b")
_UNREGISTERED = re.compile(r"error: (\S*?):(\w+)\(-?\d+\) is not a registered")
# A session names one node that it cannot run. The next session is without it.
_MOST_SESSIONS = 25
# Larger constants are no shapes, axes or bounds: which kernel of the CPU runs a node does not depend on them.
_LARGE_BYTES = 1024

_LEFT = Verdict(Level.PARTIAL, "it is left to the CPU")


def ask(path: Path, config: AnalyzeConfig, stay_float: Collection[int]) -> list[Verdict]:
    """Return the verdict on each node of the model *path*, in file order; nodes of a subgraph follow its node.

    *stay_float*: the positions of nodes that quantize leaves in float. All nodes are unknown, with the reason, if the
    provider's device is missing or it fails on the model as a whole.
    """
    target = config.target.resolve()
    model = onnx.load(path, load_external_data=False)
    nodes = list(_nodes(model.graph))
    names = [node.name or next(iter(node.output), "") for node in nodes]
    for number, node in enumerate(nodes):
        node.name = _NAME.format(number)
    try:
        options = session_options(target, config.target.provider_options)
        refused, session = _load(_prepared(model, path, target, config.quant, stay_float), target, options)
    except StageError as error:
        return [Verdict(Level.UNKNOWN, str(error).rstrip("."))] * len(nodes)
    except Exception as error:  # onnxruntime's errors have no base class of their own
        failed = f"{target.ep.name} cannot load the model: {explanation(error)}"
        return [Verdict(Level.UNKNOWN, failed)] * len(nodes)
    if session is not None and not hasattr(session, "get_provider_graph_assignment_info"):
        silent = "onnxruntime reports which nodes a provider takes from version 1.24 on"
        return [Verdict(Level.UNKNOWN, silent)] * len(nodes)
    kernels = target.ep.runs_as or target.ep.name
    elsewhere = {
        node.name
        for part in (() if session is None else session.get_provider_graph_assignment_info())
        if part.ep_name != kernels
        for node in part.get_nodes()
    }
    # A node that is assigned to no provider was folded. Q and DQ at the edge of a graph are conversions for the CPU.
    return [
        Verdict(Level.UNSUPPORTED, _NAMED.sub(lambda found: names[int(found[1])], refused[node.name]))
        if node.name in refused
        else _LEFT
        if node.name in elsewhere and node.op_type not in QDQ
        else RUNS
        for node in nodes
    ]


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from _nodes(inner)


def _prepared(
    model: ModelProto, path: Path, target: Target, quant: QuantizedTo | None, stay_float: Collection[int]
) -> Path | ModelProto:
    """Return what to load: for the CPU the graph alone, else a file with weights, quantized if *quant* says so."""
    if runs_on_cpu(target):
        _take_out_weights(model.graph)
        return model
    resave(path, _ASKED_FILE)
    numbered = onnx.load(_ASKED_FILE, load_external_data=False)
    for node, named in zip(_nodes(numbered.graph), _nodes(model.graph), strict=True):
        node.name = named.name
    onnx.save(numbered, _ASKED_FILE)
    if quant is None or quant.activation_type == "float16":
        return _ASKED_FILE
    return with_qdq(_ASKED_FILE, target, quant, [_NAME.format(number) for number in sorted(stay_float)])


def _take_out_weights(graph: GraphProto) -> None:
    """Make inputs of large constants, so that their data is not needed."""
    kept = [tensor for tensor in graph.initializer if _bytes(tensor) <= _LARGE_BYTES]
    known = {value.name for value in graph.input} | {tensor.name for tensor in kept}
    for tensor in graph.initializer:
        if tensor.name not in known:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _bytes(tensor: TensorProto) -> int:
    external = tensor.data_location == TensorProto.EXTERNAL
    return _LARGE_BYTES + 1 if external else tensor.ByteSize()


def with_qdq(path: Path, target: Target, quant: QuantizedTo, stay_float: Sequence[str]) -> Path:
    """Return the file of the model *path* as quantize would write it, but with the range -1 to 1 for every tensor.

    *path* itself if nothing in it can be quantized. *stay_float*: names of nodes that stay in float.
    """
    # Imported here: a provider that is asked about floats needs none of it.
    from winml_dag.stages.float_model import float_tensors, write_typed
    from winml_dag.stages.quantize import QuantizeConfig, QuantizeFields, QuantizeTarget
    from winml_dag.stages.quantize.modes import quantize_typed
    from winml_dag.stages.ranges import Provenance, Ranges

    fields = QuantizeFields(
        "static",
        quant.weight_type,
        quant.activation_type,
        quant.per_channel,
        nodes_to_exclude=tuple(stay_float),
        equalize=False,
    )
    config = QuantizeConfig(fields, QuantizeTarget(target.ep.integers.rules, target.ep.integers.mixes_widths))
    try:
        write_typed(path, _TYPED_FILE, finite=True)
        graph = onnx.load(_TYPED_FILE, load_external_data=False).graph
        bounds = dict.fromkeys(float_tensors(graph), (-1.0, 1.0))
        model = quantize_typed(_TYPED_FILE, Ranges("assumed", bounds, Provenance("", "", 0, "")), config).model
    except StageError:
        return path
    onnx.save(model, _QUANTIZED_FILE, save_as_external_data=True, location=f"{_QUANTIZED_FILE}.data")
    return _QUANTIZED_FILE


def _load(
    model: Path | ModelProto, target: Target, settings: onnxruntime.SessionOptions
) -> tuple[dict[str, str], onnxruntime.InferenceSession | None]:
    """Return the reasons for nodes that no provider runs, by name, and a session of the rest; None if none is left.

    Raises what onnxruntime raises, if its error names no node.
    """
    import onnxruntime

    if runs_on_cpu(target):
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    refused: dict[str, str] = {}
    for _ in range(_MOST_SESSIONS):
        try:
            given = model if isinstance(model, Path) else model.SerializeToString()
            return refused, session_for(given, target, settings)
        except Exception as error:
            found = model if isinstance(model, ModelProto) else onnx.load(model, load_external_data=False)
            names = set(_refused_by(str(error), list(_nodes(found.graph))))
            if not names:
                raise
            refused |= dict.fromkeys(names, explanation(error))
            _take_out(found.graph, names)
            if not found.graph.node:
                return refused, None
            if isinstance(model, Path):
                onnx.save(found, model)
    raise StageError(f"More than {_MOST_SESSIONS} kinds of nodes do not run")


def _refused_by(error: str, nodes: Sequence[NodeProto]) -> Iterator[str]:
    """Yield the names of the nodes that *error* is about, and of the other nodes of an operator that is not known."""
    if found := _UNREGISTERED.search(error):
        yield from (node.name for node in nodes if (node.domain, node.op_type) == found.groups())
    if named := _NAMED.search(error):
        yield named[0]


def _take_out(graph: GraphProto, names: Collection[str]) -> None:
    """Replace the nodes with *names*, and those that contain them, by inputs."""
    kept, removed = list[NodeProto](), list[NodeProto]()
    for node in graph.node:
        inside = {each.name for attribute in node.attribute for sub in subgraphs(attribute) for each in _nodes(sub)}
        (removed if names & {node.name, *inside} else kept).append(node)  # type: ignore[operator]
    types = {value.name: value for value in (*graph.value_info, *graph.output)}
    for name in (name for node in removed for name in node.output if name):
        graph.input.append(types.get(name) or helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    del graph.node[:]
    graph.node.extend(kept)
