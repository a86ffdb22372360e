"""Asks an installed execution provider what it does with each node of a model, by loading the model with it.

onnxruntime records which provider each node is assigned to. Where a build would quantize the model, Q and DQ are put in
first. Ranges are assumed and weights are zeros, whose file is not read: which operators a provider takes depends on
types and shapes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_model

from winml_dag.ep.registry import Target
from winml_dag.ep.session import runs_on_cpu, session_for, session_options
from winml_dag.ep.support import Level, Verdict
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.graph import CHANNEL_AXES, QDQ, byte_size
from winml_dag.onnxmodel.protos import (
    attributes_of,
    nodes_of,
    read_inside,
    replace_items,
    subgraphs,
    without_data,
    without_weights,
)
from winml_dag.stages.analyze import AnalyzeConfig, QuantizedTo
from winml_dag.stages.analyze.judging import RUNS

if TYPE_CHECKING:
    import onnxruntime

_ASKED_FILE, _ZEROS_FILE = Path("asked.onnx"), Path("zeros")
# By onnxruntime's quantizer: appended to the name of a constant.
_QUANTIZED = "_quantized"
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
    nodes = list(nodes_of(model.graph))
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


def _prepared(
    model: ModelProto, path: Path, target: Target, quant: QuantizedTo | None, stay_float: Collection[int]
) -> Path:
    """Write the file to load, quantized if *quant* says so, and return it. Its weights are zeros.

    For the CPU, these are all large constants. Elsewhere constants that are added may decide, zeros above all.
    """
    on_cpu = runs_on_cpu(target)
    weights = [
        tensor
        for tensor, is_weight in _weights(model.graph)
        if (_is_large(tensor) if on_cpu else is_weight) and tensor.data_type != TensorProto.STRING
    ]
    for tensor in weights:
        tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims))
    load_external_data_for_model(model, str(path.parent))
    for tensor in weights:
        _set_to_zeros(tensor, tensor.dims)
    if not on_cpu and quant is not None and quant.activation_type != "float16":
        names = [_NAME.format(number) for number in sorted(stay_float)]
        with suppress(StageError):  # nothing in it can be quantized
            model = with_qdq(deepcopy(model), target, quant, names)
    data = Path(f"{_ASKED_FILE}.data")
    data.unlink(missing_ok=True)  # of an earlier question; onnx replaces no such file
    onnx.save(model, _ASKED_FILE, save_as_external_data=True, location=data.name)
    return _ASKED_FILE


def _weights(graph: GraphProto) -> Iterator[tuple[TensorProto, bool]]:
    """Yield the constants of *graph*, each with whether only products and lookups read it, whatever its values are."""
    read: dict[str, bool] = dict.fromkeys({value.name for value in graph.output} | read_inside(graph.node), False)
    for node in graph.node:
        for position, name in enumerate(node.input):
            weighs = position == (0 if node.op_type == "Gather" else 1)
            read[name] = read.get(name, True) and weighs and node.op_type in ("Gather", *CHANNEL_AXES)
    for tensor in graph.initializer:
        yield tensor, tensor.data_type == TensorProto.FLOAT and read.get(tensor.name, False)


def _is_large(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL or tensor.ByteSize() > _LARGE_BYTES


def _set_to_zeros(tensor: TensorProto, dims: Iterable[int]) -> None:
    """Let *tensor* have these dimensions, and its data in a sparse file of zeros, which all share."""
    resized = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=dims)
    tensor.CopyFrom(without_data(resized, str(_ZEROS_FILE)))
    with _ZEROS_FILE.open("ab") as file:
        file.truncate(max(file.tell(), byte_size(tensor.data_type, tensor.dims)))


def with_qdq(model: ModelProto, target: Target, quant: QuantizedTo, stay_float: Sequence[str] = ()) -> ModelProto:
    """Return *model* as quantize would write it, but with the range -1 to 1 for every tensor; *model* is modified.

    Weights without data (see :func:`_set_to_zeros`) stay without. *stay_float*: names of nodes that stay in float.
    Raises StageError if nothing in it can be quantized.
    """
    # Imported here: a provider that is asked about floats needs none of it.
    from winml_dag.stages.float_model import float_tensors, typed
    from winml_dag.stages.quantize import QuantizeConfig, QuantizeFields, QuantizeTarget
    from winml_dag.stages.quantize.mixed import name_nodes, own_constants, use_of
    from winml_dag.stages.quantize.modes import hide, quantize_model
    from winml_dag.stages.ranges import Ranges

    fields = QuantizeFields(
        "static",
        quant.weight_type,
        quant.activation_type,
        quant.per_channel,
        nodes_to_exclude=tuple(stay_float),
        equalize=False,
    )
    config = QuantizeConfig(fields, QuantizeTarget(target.ep.integers.rules, target.ep.integers.mixes_widths))
    model, _ = typed(model, _ASKED_FILE, finite=True)
    name_nodes(model.graph)
    own_constants(model.graph, use_of)
    before = without_weights(model)
    _shrink_weights(model.graph)
    bounds = dict.fromkeys(float_tensors(before.graph), (-1.0, 1.0))
    sizes = {tensor.name: tuple(tensor.dims) for tensor in before.graph.initializer}
    made = quantize_model(model, Ranges("assumed", bounds), config).model
    # Quantizing renames some tensors, and gives only those that remain their names back.
    hide(before.graph)
    renamed = {tensor.name: tuple(tensor.dims) for tensor in before.graph.initializer}
    _restore_sizes(made.graph, {**sizes, **renamed})
    return made


def _shrink_weights(graph: GraphProto) -> None:
    """Shrink weights without data, and the biases beside them, to two elements on each axis.

    The quantizer takes the channels one by one, each in as much time as a large one.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    empty = {name for name, tensor in tensors.items() if tensor.data_location == TensorProto.EXTERNAL}
    products = [node for node in graph.node if node.op_type in CHANNEL_AXES and empty & {*node.input[1:2]}]
    beside = {name for node in products for name in node.input[2:]}
    for name in empty | (beside & tensors.keys()):
        values = np.resize(np.array([-1, 0.5], np.float32), [min(size, 2) for size in tensors[name].dims])
        tensors[name].CopyFrom(numpy_helper.from_array(values, name))


def _restore_sizes(graph: GraphProto, sizes: Mapping[str, tuple[int, ...]]) -> None:
    """Give the constants of *graph* their *sizes*, by their names in float, and each of their channels a scale."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for name, tensor in tensors.items():
        size = sizes.get(name, sizes.get(name.removesuffix(_QUANTIZED)))
        if size is not None and size != tuple(tensor.dims):
            _set_to_zeros(tensor, size)
    for node in graph.node:
        tensor = tensors.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if tensor is None or tensor.data_location != TensorProto.EXTERNAL:
            continue
        axis = attributes_of(node).get("axis", 1)
        for each in (tensors[name] for name in node.input[1:]):
            if prod(each.dims) > 1:
                values = np.resize(numpy_helper.to_array(each), tensor.dims[axis])
                each.CopyFrom(numpy_helper.from_array(values, each.name))


def _load(
    model: Path, target: Target, settings: onnxruntime.SessionOptions
) -> tuple[dict[str, str], onnxruntime.InferenceSession | None]:
    """Return the reasons for nodes that no provider runs, by name, and a session of the rest; None if none is left.

    Raises what onnxruntime raises, if its error names no node.
    """
    import onnxruntime

    if runs_on_cpu(target):
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        settings.add_session_config_entry("session.disable_prepacking", "1")
    refused: dict[str, str] = {}
    for _ in range(_MOST_SESSIONS):
        try:
            return refused, session_for(model, target, settings)
        except Exception as error:
            found = onnx.load(model, load_external_data=False)
            names = set(_refused_by(str(error), list(nodes_of(found.graph))))
            if not names:
                raise
            refused |= dict.fromkeys(names, explanation(error))
            _take_out(found.graph, names)
            if not found.graph.node:
                return refused, None
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
        inside = {each.name for attribute in node.attribute for sub in subgraphs(attribute) for each in nodes_of(sub)}
        (removed if names & {node.name, *inside} else kept).append(node)  # type: ignore[operator]
    types = {value.name: value for value in (*graph.value_info, *graph.output)}
    for name in (name for node in removed for name in node.output if name):
        graph.input.append(types.get(name) or helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    replace_items(graph.node, kept)
