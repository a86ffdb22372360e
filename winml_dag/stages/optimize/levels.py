"""What onnxruntime does to a model: its portable level, and single transformers of the next level.

The portable level is onnxruntime's basic optimizations, whose result every execution provider supports. The next level
as a whole is for CPUs: a compiler for NPUs does not support its operators, and the model splits (a ResNet-50 into 34
partitions, compiled in 528 s instead of 1 s).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Set
from pathlib import Path

import onnx
import onnxruntime as ort
from onnx import GraphProto, ModelProto, NodeProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented  # noqa: A004

from winml_dag.ep.session import open_session, unread_version
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.description import describe_model
from winml_dag.onnxmodel.files import use_short_domain, with_shapes
from winml_dag.onnxmodel.graph import all_graphs, all_nodes, standard_opset
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.protos import (
    Naming,
    attributes_of,
    graphs_of,
    nodes_of,
    read_inside,
    remove_items,
    rename_values,
    replace_items,
)
from winml_dag.stages.optimize import PORTABLE

_PORTABLE_LEVEL = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
_NEXT_LEVEL = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
# The name prefix of the casts that onnxruntime adds around operators without a float16 CPU kernel.
_INSERTED_CAST = "InsertedPrecisionFreeCast_"
_INLINE_BELOW_BYTES = 1024
# Of earlier opsets, onnxruntime has only operators that have not changed since.
_FIRST_OPSET = 7
_UNKNOWN_OPERATOR = re.compile("is not a registered function/op|No opset import for domain")
_NO_LOCALE = re.compile("Failed to construct locale with name:([^:]+)")

IN_HALF_PRECISION = "it computes in float16, which onnxruntime would surround with casts to float32"

_NAME_PREFIX = "optimized/"
_HARD_SWISH_SINCE = 14
_HARD_SIGMOID_ALPHA, _HARD_SIGMOID_BETA = 1 / 6, 0.5
_RELATIVE_ERROR = 1e-5

# All transformers that onnxruntime 1.31 runs at the next level for its CPU provider. A session accepts a list of
# transformers to disable, but not one to enable; it ignores unknown names. If a transformer is missing here, the stage
# finds its operators when it compares the operators before and after.
_OF_NEXT_LEVEL = frozenset(
    {
        "AttentionFusion",
        "BiasDropoutFusion",
        "BiasGeluFusion",
        "BiasSkipLayerNormFusion",
        "BiasSoftmaxFusion",
        "ConcatSliceElimination",
        "ConvActivationFusion",
        "ConvAddActivationFusion",
        "DQMatMulNBitsFusion",
        "DynamicQuantizeMatMulFusion",
        "EmbedLayerNormFusion",
        "FastGeluFusion",
        "GatherSliceToSplitFusion",
        "GatherToSliceFusion",
        "GeluApproximation",
        "GeluFusionL2",
        "GemmActivationFusion",
        "GroupQueryAttentionFusion",
        "GroupQueryAttentionPreNormFusion",
        "LayerNormFusionL2",
        "MatMulActivationFusion",
        "MatMulIntegerToFloatFusion",
        "MatMulNBitsMlpFusion",
        "MatMulNBitsQkvFusion",
        "MatMulScaleFusion",
        "MatmulTransposeFusion",
        "NchwcTransformer",
        "NhwcTransformer",
        "QDQSelectorActionTransformer",
        "QuickGeluFusion",
        "SimplifiedLayerNormFusion",
        "SkipLayerNormFusion",
    }
)


class HalfPrecisionError(StageError):
    """The model has float16 operators that onnxruntime optimizes only with casts around them."""


def to_portable_level(
    source: Path, destination: Path, *, keep_shapes: bool = False, without: Set[str] = frozenset()
) -> None:
    """Write the model *source*, optimized, as *destination*, with its large weights next to it in ``<name>.data``.

    Fuses only within the ONNX standard, folds constants, and removes operators without effect. The weights are always
    separate, so that later steps handle a small graph regardless of the model size. All shapes are inferred again,
    since exporters leave shapes of an earlier version of the graph. With *keep_shapes*, shapes that inference does not
    find stay as in *source*. *without* names transformers of onnxruntime to disable. Peak memory: the weights once;
    much less for weights in separate files, which are mapped.

    Raises:
        HalfPrecisionError: onnxruntime would have to convert float16.
        StageError: onnxruntime cannot load the model, or the stated shapes contradict each other.
    """
    model = _optimize_in_session(source, destination, _PORTABLE_LEVEL, without)
    _refuse_half_precision(model)
    has_hard_swish = standard_opset(model) >= _HARD_SWISH_SINCE
    for graph in graphs_of(model.graph):
        _order_initializers(graph)
        if has_hard_swish:
            _fuse_hard_swish(graph)
        if not keep_shapes:
            del graph.value_info[:]
    _rename_generated(model, _names_in(source))
    model = with_shapes(model, data_prop=True)
    for graph in graphs_of(model.graph):
        _order_value_info(graph)
    onnx.save(model, destination)


def run_alone(transformer: str, source: Path, destination: Path) -> None:
    """Apply only *transformer* of the next level to *source* and write the result to *destination*.

    With an empty name the model is only rewritten in the form in which onnxruntime writes models.

    Raises:
        StageError: onnxruntime cannot load the model.
    """
    model = _optimize_in_session(source, destination, _NEXT_LEVEL, (_OF_NEXT_LEVEL - {transformer}) | PORTABLE)
    _rename_generated(model, _names_in(source))
    onnx.save(model, destination)


def _optimize_in_session(
    source: Path, destination: Path, level: ort.GraphOptimizationLevel, without: Set[str]
) -> ModelProto:
    """Return *source* as onnxruntime optimizes it at *level*, with the transformers *without* disabled.

    Also writes it to *destination*, with large weights next to it.

    Raises:
        StageError: onnxruntime cannot load the model.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(destination)
    options.log_severity_level = 3
    # A folded sum must not depend on the number of cores.
    options.intra_op_num_threads = 1
    for name, value in {
        # The session never runs, so it needs no second copy of the weights in a runtime layout.
        "session.disable_prepacking": "1",
        "session.optimized_model_external_initializers_file_name": f"{destination.name}.data",
        "session.optimized_model_external_initializers_min_size_in_bytes": str(_INLINE_BELOW_BYTES),
    }.items():
        options.add_session_config_entry(name, value)
    try:
        ort.InferenceSession(
            str(source), options, providers=["CPUExecutionProvider"], disabled_optimizers=sorted(without)
        )
    except Exception as error:  # onnxruntime's errors have no base class of their own
        raise unread_version(error) or _cannot(source, error) from error
    if not destination.is_file():
        raise StageError(f"onnxruntime optimized {source.name} but wrote no model.")
    model = onnx.load(destination, load_external_data=False)
    use_short_domain(model)
    for graph in graphs_of(model.graph):
        _drop_repeated_constants(graph)
    return model


def _drop_repeated_constants(graph: GraphProto) -> None:
    """Drop Constant nodes that duplicate an initializer.

    With external weights, onnxruntime also writes the Constant nodes of a graph nested two or more deep as
    initializers. It then cannot load its own output, where two values have one name.
    """
    names = {tensor.name for tensor in graph.initializer}
    remove_items(graph.node, lambda node: node.op_type == "Constant" and node.output[0] in names)


def _cannot(source: Path, error: Exception) -> StageError:
    """Turn *error* from optimizing *source* into a StageError that suggests ``skip_optimize`` only where that helps."""
    reason = explanation(error)
    if isinstance(error, NotImplemented):
        advice = "For a target that runs this operator, set skip_optimize (--no-optimize)."
        summary = inspect_model(source)
        if "bfloat16" in {*summary.tensor_bytes, *(spec.dtype for spec in summary.inputs)}:
            advice = "Export it in float32: onnxruntime's CPU provider has hardly an operator in bfloat16."
        elif 0 < summary.opsets.get("", 0) < _FIRST_OPSET:
            advice = f"Export it in opset 17 or later: onnxruntime runs models from opset {_FIRST_OPSET} on."
        return StageError(
            f"onnxruntime's CPU provider, which optimizes models, cannot run the model: {reason}.", advice=advice
        )
    if problems := describe_model(source).problems:
        return StageError(problems[0])
    try:
        open_session(source, "the model")
    except StageError:
        advice = "Correct the model or export it again: onnxruntime refuses it for every target."
        if _UNKNOWN_OPERATOR.search(reason):
            advice = (
                "Builds run onnxruntime without libraries of further operators, such as onnxruntime-extensions. Cut"
                " these nodes, often pre- or postprocessing, from the model."
            )
        elif found := _NO_LOCALE.search(reason):
            reason = f"this machine does not have the locale {found[1]!r} of its StringNormalizer"
            advice = "Install it, such as with a language pack, or cut that node from the model."
        return StageError(f"onnxruntime cannot load the model: {reason}.", advice=advice)
    return StageError(
        f"onnxruntime cannot optimize the model: {reason}.",
        advice="It loads unoptimized: set skip_optimize (--no-optimize) to use it as it is.",
    )


def _refuse_half_precision(model: ModelProto) -> None:
    """Refuse a model in which onnxruntime put casts around float16 operators, which would undo the half precision."""
    if any(node.name.startswith(_INSERTED_CAST) for node in nodes_of(model.graph)):
        raise HalfPrecisionError(
            f"The model cannot be optimized: {IN_HALF_PRECISION}.",
            advice="Optimize the float32 model and set precision fp16, or set skip_optimize.",
        )


def _order_initializers(graph: GraphProto) -> None:
    """Sort the initializers: onnxruntime writes them in hash table order, which may differ between systems."""
    replace_items(graph.initializer, sorted(graph.initializer, key=lambda initializer: initializer.name))


def _order_value_info(graph: GraphProto) -> None:
    """Keep the entries of values that nodes produce, in the order of these nodes."""
    known = {entry.name: entry for entry in graph.value_info}
    outputs = {output.name for output in graph.output}
    ordered = [known[name] for node in graph.node for name in node.output if name in known and name not in outputs]
    replace_items(graph.value_info, ordered)


def _fuse_hard_swish(graph: GraphProto) -> None:
    """Replace every HardSigmoid(x) * x of *graph* by HardSwish, in place; subgraphs are not changed.

    onnxruntime expands HardSwish in this way, since its CPU provider does not implement it. QNN fuses the two nodes
    again if the HardSigmoid has a name, but computes something else: outputs of a model of these two nodes are up to
    4.5 times too large (SDK 2.51, float32 and float16). HardSwish itself is correct.
    """
    gates = {node.output[0]: node for node in graph.node if _is_gate(node)}
    readers = Counter(name for node in graph.node for name in node.input)
    outside = {value.name for value in graph.output} | read_inside(graph.node)
    fused = set()
    for node in graph.node:
        if node.op_type != "Mul" or node.domain:
            continue
        for name, other in (tuple(node.input), tuple(reversed(node.input))):
            gate = gates.get(name)
            if gate is None or gate.input[0] != other or readers[name] != 1 or name in outside:
                continue
            swish = helper.make_node("HardSwish", [other], list(node.output), node.name)
            swish.metadata_props.extend(node.metadata_props)
            node.CopyFrom(swish)
            fused.add(name)
            break
    remove_items(graph.node, lambda node: not fused.isdisjoint(node.output))


def _is_gate(node: NodeProto) -> bool:
    if node.op_type != "HardSigmoid" or node.domain:
        return False
    numbers = attributes_of(node)
    return math.isclose(numbers.get("alpha", 0.2), _HARD_SIGMOID_ALPHA, rel_tol=_RELATIVE_ERROR) and math.isclose(
        numbers.get("beta", 0.5), _HARD_SIGMOID_BETA, rel_tol=_RELATIVE_ERROR
    )


def _names_in(path: Path) -> frozenset[str]:
    """The names of all values of the model *path*, including those in subgraphs and functions."""
    model = read_model(path)
    graphs = list(all_graphs(model))
    names = {value.name for graph in graphs for value in (*graph.inputs, *graph.outputs)}
    names.update(tensor.name for graph in graphs for tensor in graph.initializers)
    return frozenset(names.union(*((*node.inputs, *node.outputs) for node in all_nodes(model))))


def _rename_generated(model: ModelProto, known: frozenset[str]) -> None:
    """Rename, in place, every value whose name is not in *known*; the same model always gets the same names.

    onnxruntime's name generator restarts with every session and ignores existing initializers. A saved model with a
    Gemm fusion may then fail to load at the level of fusions that sessions have by default (``Attempt to replace the
    existing tensor``), and every later stage fails with it.
    """
    renamed: dict[str, str] = {}
    naming = Naming(known)
    for graph in graphs_of(model.graph):
        made = [initializer.name for initializer in graph.initializer]
        made.extend(name for node in graph.node for name in node.output)
        for name in made:
            if name and name not in known and name not in renamed:
                renamed[name] = naming.new(_NAME_PREFIX + name.lstrip("/"))
    rename_values(model.graph, renamed)
