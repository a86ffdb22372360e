"""What onnxruntime does to a model: its portable level, and one transformer of the next level alone.

The portable level is onnxruntime's basic optimizations, which every execution provider understands the result of. The
next level as a whole is for CPUs: a compiler for NPUs leaves its operators out, and the model falls apart (a ResNet-50
into 34 parts, compiled in 528 s instead of 1 s).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path

import onnx
import onnxruntime as ort
from onnx import GraphProto, ModelProto, NodeProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented  # noqa: A004

from winml_dag.ep.session import open_session, unread_version
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel import graph as onnx_graph
from winml_dag.onnxmodel.facts import standard_opset
from winml_dag.onnxmodel.files import use_short_domain
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.protos import Naming, graphs_of, read_inside, rename_values
from winml_dag.stages.optimize import PORTABLE

_PORTABLE_LEVEL = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
_NEXT_LEVEL = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
# onnxruntime's name for the conversions that it puts around what its CPU kernels cannot do in float16.
_INSERTED_CAST = "InsertedPrecisionFreeCast_"
_INLINE_BELOW_BYTES = 1024

IN_HALF_PRECISION = "it computes in float16, which onnxruntime would surround with casts to float32"

_NAME_PREFIX = "optimized/"
_HARD_SWISH_SINCE = 14
_HARD_SIGMOID_ALPHA, _HARD_SIGMOID_BETA = 1 / 6, 0.5
_RELATIVE_ERROR = 1e-5

# All transformers that onnxruntime 1.31 runs at the next level for its CPU provider. A session can be told which
# transformers not to run, and not which to run; it ignores names that it does not know. An operator that comes from one
# that is missing here is found when the stage compares the operators before and after.
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
    """The model has operators in float16 that onnxruntime optimizes only with casts around them."""


def to_portable_level(
    source: Path, destination: Path, *, keep_shapes: bool = False, without: Set[str] = frozenset()
) -> None:
    """Write the model *source*, optimized, as *destination*, its large weights beside it in ``<name>.data``.

    Fuses only within the ONNX standard, folds constants, removes what has no effect. The weights are always apart, so
    that what comes after handles a small graph, whatever the model's size. All shapes are inferred anew, since
    exporters leave some of another version of the graph behind; with *keep_shapes*, what inference does not find stays
    as *source* says. *without* names transformers of onnxruntime's that are not to run. Peak of memory: the weights
    once; much less for weights in files of their own, which are mapped.

    Raises:
        HalfPrecisionError: when onnxruntime would have to convert float16.
        StageError: when onnxruntime cannot load the model, or the stated shapes contradict each other.
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
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise StageError(f"The shapes that the model states contradict each other: {explanation(error)}.") from error
    for graph in graphs_of(model.graph):
        _order_value_info(graph)
    onnx.save(model, destination)


def run_alone(transformer: str, source: Path, destination: Path) -> None:
    """Write what *transformer* of the next level makes of *source*, with no other transformer, to *destination*.

    With an empty name the model is only written as onnxruntime writes models.

    Raises:
        StageError: when onnxruntime cannot load the model.
    """
    model = _optimize_in_session(source, destination, _NEXT_LEVEL, (_OF_NEXT_LEVEL - {transformer}) | PORTABLE)
    _rename_generated(model, _names_in(source))
    onnx.save(model, destination)


def _optimize_in_session(
    source: Path, destination: Path, level: ort.GraphOptimizationLevel, without: Set[str]
) -> ModelProto:
    """*source* as onnxruntime has it at *level*, but for the transformers *without*; it is written to *destination*
    too, and its large weights beside that.

    Raises:
        StageError: when onnxruntime cannot load the model.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(destination)
    options.log_severity_level = 3
    # A folded sum must not depend on the number of cores.
    options.intra_op_num_threads = 1
    for name, value in {
        # The session is never run: no second copy of the weights in a layout for running.
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
    _drop_repeated_constants(model)
    return model


def _drop_repeated_constants(model: ModelProto) -> None:
    """With weights apart, onnxruntime writes the Constant nodes of a graph that lies two or more deep as initializers
    as well, and does not load what it wrote: two values have one name.
    """
    for graph in graphs_of(model.graph):
        initializers = {tensor.name for tensor in graph.initializer}
        for index in reversed(range(len(graph.node))):
            node = graph.node[index]
            if node.op_type == "Constant" and node.output[0] in initializers:
                del graph.node[index]


def _cannot(source: Path, error: Exception) -> StageError:
    """*error* of optimizing *source*, with ``skip_optimize`` as advice only where that gets any further."""
    said = explanation(error)
    if isinstance(error, NotImplemented):
        return StageError(
            f"onnxruntime's CPU provider, which optimizes models, cannot run the model: {said}.",
            advice="For a target that runs this operator, set skip_optimize (--no-optimize).",
        )
    try:
        open_session(source, "the model")
    except StageError:
        return StageError(
            f"onnxruntime cannot load the model: {said}.",
            advice="Correct the model or export it again: onnxruntime refuses it for every target.",
        )
    return StageError(
        f"onnxruntime cannot optimize the model: {said}.",
        advice="It loads unoptimized: set skip_optimize (--no-optimize) to use it as it is.",
    )


def _refuse_half_precision(model: ModelProto) -> None:
    """onnxruntime put casts around float16 operators: keeping them would undo the half precision."""
    nodes = (node for graph in graphs_of(model.graph) for node in graph.node)
    if any(node.name.startswith(_INSERTED_CAST) for node in nodes):
        raise HalfPrecisionError(
            f"The model cannot be optimized: {IN_HALF_PRECISION}.",
            advice="Optimize the float32 model and set precision fp16, or set skip_optimize.",
        )


def _order_initializers(graph: GraphProto) -> None:
    """onnxruntime writes them in the order of a hash table, which may differ between systems."""
    ordered = sorted(graph.initializer, key=lambda initializer: initializer.name)
    del graph.initializer[:]
    graph.initializer.extend(ordered)


def _order_value_info(graph: GraphProto) -> None:
    """Entries in the order of the nodes that make the values, and of these values only."""
    known = {entry.name: entry for entry in graph.value_info}
    outputs = {output.name for output in graph.output}
    ordered = [known[name] for node in graph.node for name in node.output if name in known and name not in outputs]
    del graph.value_info[:]
    graph.value_info.extend(ordered)


def _fuse_hard_swish(graph: GraphProto) -> None:
    """Put HardSwish in place of every HardSigmoid(x) * x of *graph*, in place; graphs inside it are left alone.

    onnxruntime spells HardSwish out so, since its CPU provider has none. QNN fuses the two nodes again when the
    HardSigmoid has a name, and computes something else: of a model of these two nodes, outputs are up to 4.5 times too
    large (SDK 2.51, float32 and float16). With HardSwish itself it is right.
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
    # The last first, so that the others keep their places.
    for place in reversed([place for place, node in enumerate(graph.node) if fused.intersection(node.output)]):
        del graph.node[place]


def _is_gate(node: NodeProto) -> bool:
    if node.op_type != "HardSigmoid" or node.domain:
        return False
    numbers = {attribute.name: attribute.f for attribute in node.attribute}
    return math.isclose(numbers.get("alpha", 0.2), _HARD_SIGMOID_ALPHA, rel_tol=_RELATIVE_ERROR) and math.isclose(
        numbers.get("beta", 0.5), _HARD_SIGMOID_BETA, rel_tol=_RELATIVE_ERROR
    )


def _names_in(path: Path) -> frozenset[str]:
    """The names of all values of the model *path*, in its subgraphs and functions too."""
    model = read_model(path)
    names = set(_graph_names(model.graph))
    for function in model.functions:
        names.update(_node_names(function.nodes))
    return frozenset(names)


def _graph_names(graph: onnx_graph.Graph) -> Iterator[str]:
    yield from (value.name for value in (*graph.inputs, *graph.outputs))
    yield from (tensor.name for tensor in graph.initializers)
    yield from _node_names(graph.nodes)


def _node_names(nodes: tuple[onnx_graph.Node, ...]) -> Iterator[str]:
    for node in nodes:
        yield from (*node.inputs, *node.outputs)
        for attribute in node.attributes:
            for graph in attribute.graphs:
                yield from _graph_names(graph)


def _rename_generated(model: ModelProto, known: frozenset[str]) -> None:
    """Rename, in place, every value whose name is not *known*; the same model always gets the same names.

    onnxruntime's generator of names starts anew with every session and does not look at the initializers that are
    there: a saved model with a Gemm fusion in it may fail to load at the level of fusions that sessions have by default
    (``Attempt to replace the existing tensor``), and with it every later stage.
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
