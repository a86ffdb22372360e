"""The compilers of onnxruntime and what they need: the model at a fixed path, option files, fixed shapes.

QNN's bytes depend on the model path as given and on what its process compiled before. So a model always has the same
path, relative to the current folder, and a process compiles once: the engine gives every stage its own folder and
process.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, shape_inference

from winml_dag.engine.stage import Workspace
from winml_dag.ep.availability import resolve_target
from winml_dag.ep.registry import QNN, ExecutionProvider, Target
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.graph import QDQ
from winml_dag.onnxmodel.protos import (
    Naming,
    attributes_of,
    constant_tensors,
    distinct_names,
    graphs_inside,
    read_inside,
    remove_items,
    replace_items,
)

if TYPE_CHECKING:
    import onnxruntime

# Planning has checked the source model's shapes; a model that fails here comes from somewhere else.
GIVE_SIZES = (
    "Give its sizes with --batch-size, --shape-config or --input-specs. A model from a stage of your own goes through"
    " `normalize` for that: stages.normalize.inputs.model."
)

MODEL_NAME = "model.onnx"

# onnxruntime's compile API, and the older way: a session with the option to save what its provider compiled.
COMPILERS = ("ort", "ort_session")
# onnxruntime keeps larger tensors in its own memory. Smaller ones stay where shape inference sees them.
_MOST_INLINE_BYTES = 127
# Start of onnxruntime's message for a model of which the provider took no operator.
_TOOK_NOTHING = "Unable to compile any nodes"

# Start of its message for a model in which it replaced an operator that is defined as a function of others, such as
# Softsign in opset 18.
_REPLACED = "Encountered an invalid node while compiling"

# QNN's code for all that it finds no way to compile, such as a product of the converted uint8 or bool input with
# weights per channel in w8a16.
_NO_MEMORY = "QNN_COMMON_ERROR_MEM_ALLOC"

# onnxruntime's message for a node that the provider took with channels first and refuses with channels last, as QNN
# does with a dilated Conv over three axes.
_GIVEN_BACK = re.compile(r"Node '(?P<node>.*?)(?:_token_\d+)?' OpType:(?P<op>\w+) .* was inserted using the \w+ ")

_used = False


def use_process() -> None:
    """Raise RuntimeError if this process has compiled before."""
    global _used
    if _used:
        raise RuntimeError("This process has compiled before, which changes QNN's output; use a fresh one.")
    _used = True


def target_of(execution_provider: str, device: str) -> Target:
    """Return the target to compile for. Raises StageError if models are not compiled for it."""
    target = resolve_target(execution_provider, device)
    if not target.ep.makes_ep_context:
        raise StageError(f"{target.ep.name} does not compile models ahead of time.", advice="Remove compile.")
    return target


def place_model(source: Path, ep: ExecutionProvider, folder: Path = Path()) -> Path:
    """Put the model *source* and its external data into *folder*, the model under a fixed name.

    Raises StageError if *ep* cannot compile it, or one of its files has that name.
    """
    from winml_dag.onnxmodel.inspect import inspect_model

    summary = inspect_model(source)
    # A compiler would skip nearly all of a graph with dynamic shapes, and report success.
    for spec in summary.inputs:
        if dynamic := [str(dim) for dim in spec.shape if not isinstance(dim, int)]:
            raise StageError(
                f"{ep.name} compiles fixed shapes only, but input {spec.name!r} has the dynamic dimension"
                f" {', '.join(dynamic)}.",
                advice=GIVE_SIZES,
            )
    for name in summary.files:
        target = folder / (MODEL_NAME if name == source.name else name)
        if target.exists():
            raise StageError(
                f"The model's data file {name!r} has a name that is taken.", advice="Save the model with another one."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            # A link, because weights may be gigabytes; nothing writes to them here.
            os.link(source.parent / name, target)
        except OSError:
            shutil.copyfile(source.parent / name, target)
    return folder / MODEL_NAME


def option_files(workspace: Workspace) -> dict[str, str]:
    """Return the path of the local copy for each option whose value is a file; the input has ``<option>/<file>``."""
    if not workspace.has("option_files"):
        return {}
    folder = workspace.inputs["option_files"]
    return {path.parent.name: path.as_posix() for path in sorted(folder.glob("*/*")) if path.is_file()}


def compile_with(
    compiler: str,
    settings: onnxruntime.SessionOptions,
    model: Path,
    output: Path,
    ep: ExecutionProvider,
    *,
    embed: bool,
) -> None:
    """Compile *model* to *output* with *ep*, which is configured in *settings*; *embed* puts the binary inside.

    The model's metadata is preserved. Raises StageError with the provider's words if it fails.
    """
    import onnxruntime

    from winml_dag.ep.session import ASK_ANALYZE, SEE_LOG
    from winml_dag.onnxmodel.description import findings
    from winml_dag.onnxmodel.graphfile import read_model
    from winml_dag.onnxmodel.metadata import restore_metadata
    from winml_dag.stages.compiled import COMPATIBILITY

    graph = read_model(model).graph
    outputs = [value.name for value in graph.outputs]
    if ep == QNN and any(node.op_type == "AveragePool" for node in graph.nodes):
        _changed(model, count_padding)
    # QNN gives its partition one output for each time that an output is listed, all with the same name.
    changed = len(set(outputs)) < len(outputs) and _changed(model, partial(_set_outputs, dict.fromkeys(outputs)))
    try:
        try:
            _compile(compiler, settings, model, output, embed=embed)
        except Exception:
            # Only after a failure: if the provider takes an If into a partition, weights that are outputs prevent that.
            if not _changed(model, put_out_inner_weights):
                raise
            changed = True
            _compile(compiler, settings, model, output, embed=embed)
    except Exception as error:
        reason, advice = explanation(error), f"{ASK_ANALYZE} {SEE_LOG}"
        if (found := _GIVEN_BACK.search(reason)) is not None:
            reason = f"it asked for {found['op']} node {found['node']!r} in another layout, and then did not take it"
            advice = "Try another precision, or export the model without this operator."
            if ep == QNN:
                advice += (
                    f""" Or leave it to the CPU: the option op_affinity of QNN, with a file that has {{"op_type":"""
                    f""" {{"{found["op"]}": "cpu"}}}}."""
                )
        elif reason.startswith(_TOOK_NOTHING):
            reason = f"it took none of its operators ({_operators(model)})"
        elif reason.startswith(_REPLACED):
            reason = (
                f"onnxruntime {onnxruntime.__version__} cannot write a compiled model in which an operator has to be"
                f" replaced by others, since neither {ep.name} nor the CPU has it for its types ({_operators(model)})"
            )
            advice = f"What is in float16 can stay in float32 (quant.fp16_op_block_list). {ASK_ANALYZE}"
        elif _NO_MEMORY in reason:
            advice = f"Memory is rarely what is missing: try another precision, or quant.per_channel: false. {SEE_LOG}"
        # Read again: the file may have changed above.
        advice = next(findings(model, read_model(model)), advice)
        raise StageError(f"{ep.name} cannot compile this model: {reason}.", advice=advice) from error
    if output.is_file():
        if changed:
            _changed(output, partial(_set_outputs, outputs))
        restore_metadata(model, output, kept=COMPATIBILITY)


def _compile(compiler: str, settings: onnxruntime.SessionOptions, model: Path, output: Path, *, embed: bool) -> None:
    import onnxruntime

    if compiler == "ort":
        # By default the model compiler optimizes nothing. A single shape computed from constants then splits the graph:
        # a BERT resulted in 5 partitions with 60 operators on the CPU; at this level, in 1 partition with none. Higher
        # levels create operators for the CPU that no other provider takes.
        onnxruntime.ModelCompiler(
            settings,
            model.as_posix(),
            embed_compiled_data_into_model=embed,
            flags=onnxruntime.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
            graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        ).compile_to_file(str(output))
    else:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        settings.add_session_config_entry("ep.context_enable", "1")
        settings.add_session_config_entry("ep.context_file_path", str(output))
        settings.add_session_config_entry("ep.context_embed_mode", str(int(embed)))
        onnxruntime.InferenceSession(model.as_posix(), settings, enable_fallback=0)


def _changed(path: Path, change: Callable[[ModelProto], bool]) -> bool:
    """Apply *change* to the model file *path*; return whether it changed anything. External data stays as it is."""
    model = onnx.load(path, load_external_data=False)
    if not change(model):
        return False
    path.unlink(missing_ok=True)  # it may be a link to the source model
    path.write_bytes(model.SerializeToString(deterministic=True))
    return True


def _set_outputs(names: Iterable[str], model: ModelProto) -> bool:
    """Reduce the outputs of *model* to *names*, in this order."""
    outputs = {value.name: value for value in model.graph.output}
    replace_items(model.graph.output, [outputs[name] for name in names])
    return True


def _operators(model: Path, most: int = 5) -> str:
    from winml_dag.onnxmodel.graphfile import read_model

    names = sorted({node.op_type for node in read_model(model).graph.nodes} - {*QDQ})
    return ", ".join([*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])])


def count_padding(model: ModelProto) -> bool:
    """Make each float AveragePool that excludes padding include it, and correct the result by a Mul, in place.

    Returns whether there was any of known shape. QNN computes such nodes wrongly in half precision: for a one-node
    model (1x24x56x56, a 3x3 window, padding 1) the SQNR is 5 dB if padding is excluded and 69 dB if it is included (QNN
    SDK 2.51). It computes integer averages correctly.
    """
    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output}
    found = [
        node
        for node in graph.node
        if node.op_type == "AveragePool"
        and any((given := attributes_of(node)).get("pads", ()))
        and not given.get("count_include_pad")
        and not given.get("ceil_mode")
        and makers.get(node.input[0], node).op_type != "DequantizeLinear"
    ]
    if not found:
        return False
    known = {value.name: value.type.tensor_type for value in shape_inference.infer_shapes(model).graph.value_info}
    known |= {value.name: value.type.tensor_type for value in (*graph.input, *graph.output)}
    naming, changed = Naming.of(graph), False
    for node in found:
        tensor = known.get(node.input[0])
        sizes = [] if tensor is None else [dim.dim_value for dim in tensor.shape.dim[2:]]
        if tensor is not None and sizes and all(sizes):
            _count(graph, node, sizes, tensor.elem_type, naming)
            changed = True
    return changed


def _count(graph: GraphProto, node: NodeProto, sizes: list[int], elem_type: int, naming: Naming) -> None:
    given, rank = attributes_of(node), len(sizes)
    kernel, pads = given["kernel_shape"], given["pads"]
    strides, dilations = (given.get(name, (1,) * rank) for name in ("strides", "dilations"))
    inside = []
    for axis, size in enumerate(sizes):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        starts = range(-pads[axis], size + pads[axis + rank] - reach + 1, strides[axis])
        steps = range(0, reach, dilations[axis])
        inside.append([sum(0 <= start + step < size for step in steps) for start in starts])
    # A window that covers only padding has no average.
    factors = [math.prod(kernel) / max(1, math.prod(counts)) for counts in product(*inside)]
    output = node.output[0]
    at = next(index for index, each in enumerate(graph.node) if output in each.output)
    node.output[0], factor = naming.new(f"{output}_with_padding"), naming.new(f"{output}_padding_factor")
    graph.initializer.append(helper.make_tensor(factor, elem_type, [1, 1, *map(len, inside)], factors))
    corrected = helper.make_node("Mul", [node.output[0], factor], [output], naming.new(f"{node.name}/mul"))
    graph.node.insert(at + 1, corrected)
    remove_items(node.attribute, lambda each: each.name == "count_include_pad")
    node.attribute.append(helper.make_attribute("count_include_pad", 1))


def put_out_inner_weights(model: ModelProto) -> bool:
    """Move the weights inside If, Loop and Scan to the outermost graph of *model* and make them outputs, in place.

    onnxruntime drops the outermost graph's weights that only subgraphs read; it keeps outputs of the model. Returns
    whether any were found. External data stays where it is.
    """
    if not any(graphs_inside(model.graph.node)):
        return False
    distinct_names(model)
    graph = model.graph
    for inner in list(graphs_inside(graph.node)):
        _move_weights(inner, graph)
    shown = {value.name for value in (*graph.input, *graph.output)}
    read = read_inside(graph.node) - shown
    put_out = [(name, tensor) for name, tensor in constant_tensors(graph).items() if name in read]
    graph.output.extend(helper.make_tensor_value_info(name, each.data_type, list(each.dims)) for name, each in put_out)
    return bool(put_out)


def _move_weights(inner: GraphProto, outermost: GraphProto) -> None:
    # An output of a branch must be defined in it.
    put_out = {value.name for value in inner.output}
    for index, tensor in reversed(list(enumerate(inner.initializer))):
        if _is_large(tensor) and tensor.name not in put_out:
            outermost.initializer.append(tensor)
            del inner.initializer[index]
    constants = constant_tensors(inner)
    for index, node in reversed(list(enumerate(inner.node))):
        name = node.output[0] if node.op_type == "Constant" else ""
        if name in constants and _is_large(constants[name]) and name not in put_out:
            outermost.node.insert(0, node)
            del inner.node[index]


def _is_large(tensor: TensorProto) -> bool:
    # For types with fewer than 8 bits, too many are moved.
    size = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return bool(math.prod(tensor.dims) * size > _MOST_INLINE_BYTES)
