"""Judges the nodes of a model for a target: by tables, by the rules that need neither, or by asking the provider.

A table is asked about the case of a node; lookup and measurement derive it in the same way, so they agree.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path

from winml_dag.ep.registry import find_ep
from winml_dag.ep.session import open_session, runs_on_cpu
from winml_dag.ep.support import AttributeValue, Case, Level, Operand, Quantized, Verdict
from winml_dag.ep.support.table import Rules
from winml_dag.errors import StageError, UsageError
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graph import CHANNEL_AXES, QDQ, Attribute, Graph, Model, Node, attribute_of, dtype_name
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages.analyze import AnalyzeConfig, AnalyzeTarget, QuantizedTo
from winml_dag.stages.analyze.lint import missing_value_info

_MOST_RANK = 5  # of what most NPUs and GPUs compute
_LARGEST_PROTOBUF = 2**31 - 1
_LARGEST_SHAPE = 1024  # bytes
_FLOAT16 = "float16"
RUNS = Verdict(Level.SUPPORTED, "it runs")

_FLOATS = frozenset({"float32", "float16", "float64", "bfloat16"})
# Constant inputs that stay float when their operator is quantized: sizes, bounds and factors.
_STAY_FLOAT = {
    "Clip": (1, 2),
    "Dropout": (1,),
    "OneHot": (1, 2),
    "Range": (0, 1, 2),
    "Resize": (1, 2),
    "Upsample": (1,),
}
_WEIGHTS = {
    "Conv": (1,),
    "ConvTranspose": (1,),
    "Gemm": (0, 1),
    "InstanceNormalization": (1,),
    "LayerNormalization": (1,),
    "MatMul": (0, 1),
    "PRelu": (1,),
}


@dataclass(frozen=True)
class Judged:
    """A node with its verdict, the reason, and the case that a table was asked about."""

    node: Node
    verdict: Level
    reason: str
    case: Case

    @property
    def operator(self) -> str:
        """``OP/ai.onnx/Conv``."""
        return f"OP/{self.node.domain or 'ai.onnx'}/{self.node.op_type}"


def worst(verdicts: Iterable[Level]) -> Level:
    """The worst of *verdicts*. Unknown ranks above partial and unsupported."""
    order = (Level.UNSUPPORTED, Level.PARTIAL, Level.UNKNOWN, Level.SUPPORTED)
    return min(verdicts, key=order.index)


def by_operator(judged: Iterable[Judged]) -> dict[str, list[Judged]]:
    """Group *judged* by operator, in the order of first use."""
    found: dict[str, list[Judged]] = {}
    for each in judged:
        found.setdefault(each.operator, []).append(each)
    return found


def judge(path: Path, model: Model, config: AnalyzeConfig, support: Rules) -> list[Judged]:
    """Judge every node of *model*, which is in the file *path*, as quantize will leave it.

    Nodes of a subgraph follow the node that contains it. The installed provider is asked about what *support* does not
    know.
    """
    nodes = list(_nodes(model, model.graph))
    cases = [case_of(node, flow) for node, flow in nodes]
    quant = _taken_by_quantize(config.quant, cases)
    stay_float = {
        number
        for number, (node, _) in enumerate(nodes)
        if quant is not None and not _is_taken(node.op_type, node.name, quant)
    }
    if quant is not None:
        cases = [case if number in stay_float else _left_by_quantize(case, quant) for number, case in enumerate(cases)]
    verdicts = [_certain(node, config) or support.verdict(case) for (node, _), case in zip(nodes, cases, strict=True)]
    if config.target.asks and any(verdict.level is Level.UNKNOWN for verdict in verdicts):
        answers = _answers(path, config, stay_float, len(nodes))
        verdicts = [
            answer if verdict.level is Level.UNKNOWN else verdict
            for verdict, answer in zip(verdicts, answers, strict=True)
        ]
    is_open = any(not isinstance(dim, int) for value in model.graph.inputs for dim in value.dims or ())
    judged = [
        Judged(node, verdict.level, f"{verdict.reason}{_advice(verdict, case, config.target, is_open=is_open)}", case)
        for (node, _), verdict, case in zip(nodes, verdicts, cases, strict=True)
    ]
    return _conversions(judged)


def _answers(path: Path, config: AnalyzeConfig, stay_float: Collection[int], count: int) -> list[Verdict]:
    if runs_on_cpu(config.target.resolve()):
        with suppress(StageError):
            open_session(path, "the model")
            return [RUNS] * count
    # Imported here: it takes longer to import than most models take to load on the CPU.
    from winml_dag.stages.analyze.ask import ask

    return ask(path, config, stay_float)


def _nodes(model: Model, graph: Graph) -> Iterator[tuple[Node, Dataflow]]:
    flow = Dataflow(model, graph)
    for node in graph.nodes:
        yield node, flow
        for attribute in node.attributes:
            for inner in attribute.graphs:
                yield from _nodes(model, inner)


def _certain(node: Node, config: AnalyzeConfig) -> Verdict | None:
    """Return the verdict on a node that needs neither a table nor the provider."""
    if node.op_type == "Constant":
        return Verdict(Level.SUPPORTED, "a constant, which needs no work")
    if node.op_type != "EPContext":
        return None
    source = attribute_of(node, "source")
    maker = "" if source is None or source.content is None else source.content.decode("utf-8", "replace")
    if not maker:
        return Verdict(Level.UNKNOWN, "compiled, and the model does not say for which execution provider")
    if _name_of(maker) != config.target.execution_provider:
        return Verdict(Level.UNSUPPORTED, f"compiled for {maker}, and runs nowhere else")
    return Verdict(Level.SUPPORTED, f"compiled for {config.target.execution_provider}")


def _name_of(text: str) -> str:
    """The full name of the provider that *text* refers to; *text* itself if there is none."""
    try:
        return find_ep(text).name
    except UsageError:
        return text


def _conversions(judged: Sequence[Judged]) -> list[Judged]:
    """Judge Q and DQ as the operators between them, with which they are measured; alone, they are operators."""
    converted = {
        name
        for each in judged
        if each.verdict is Level.SUPPORTED and each.case.quantized is not None
        for name in (*each.node.inputs, *each.node.outputs)
    }
    return [
        replace(each, verdict=Level.SUPPORTED, reason="part of the operator that it converts for")
        if each.node.op_type in QDQ and converted & {*each.node.inputs[:1], *each.node.outputs[:1]}
        else each
        for each in judged
    ]


def _advice(verdict: Verdict, case: Case, target: AnalyzeTarget, *, is_open: bool) -> str:
    """Return what the user can do about *verdict*, as a further sentence; empty if it is good or unknown.

    *is_open*: whether an input of the model has an open size.
    """
    if verdict.level not in (Level.PARTIAL, Level.UNSUPPORTED):
        return ""
    ep = find_ep(target.execution_provider)
    operands = [each for each in (*case.inputs, *case.outputs) if each is not None]
    types = {each.dtype for each in operands} & {"float64", "int64", "uint64"}
    if is_open and ep.fixed_shapes and any(None in (each.dims or ()) for each in operands):
        return ". Give the model's inputs fixed sizes"
    if max((len(each.dims or ()) for each in operands), default=0) > _MOST_RANK:
        return f". Write it with at most {_MOST_RANK} dimensions"
    if types:
        return f". Use a 32-bit type instead of {' and '.join(sorted(types))}"
    if verdict.level is Level.PARTIAL:
        return ". Replace the operator, or accept that part of the model runs on the CPU"
    return ". Replace the operator, or choose another target"


def _taken_by_quantize(quant: QuantizedTo | None, cases: Sequence[Case]) -> QuantizedTo | None:
    """Return *quant* for all operators if the model has none of those that it names, as quantize does."""
    if quant is None or quant.op_types is None:
        return quant
    for case in cases:
        if any(fnmatchcase(case.op_type, pattern) for pattern in quant.op_types) and any(
            each is not None and each.dtype == "float32" for each in (*case.inputs, *case.outputs)
        ):
            return quant
    return replace(quant, op_types=None)


def _is_taken(op_type: str, name: str, quant: QuantizedTo) -> bool:
    if any(fnmatchcase(op_type, pattern) for pattern in quant.excluded_op_types):
        return False
    if name and any(fnmatchcase(name, pattern) for pattern in quant.excluded):
        return False
    return quant.op_types is None or any(fnmatchcase(op_type, pattern) for pattern in quant.op_types)


def _left_by_quantize(case: Case, quant: QuantizedTo) -> Case:
    """Return *case* as quantize leaves it."""
    if quant.activation_type != _FLOAT16:
        return as_quantized(case, quant.activation_type, quant.weight_type, per_channel=quant.per_channel)

    def halved(operand: Operand | None) -> Operand | None:
        return operand if operand is None or operand.dtype != "float32" else replace(operand, dtype=_FLOAT16)

    return replace(case, inputs=tuple(map(halved, case.inputs)), outputs=tuple(map(halved, case.outputs)))


def with_inferred(path: Path, model: Model) -> Model:
    """Return *model*, read from *path*, with what onnx infers for the values that its file does not describe.

    External weight files are not read. Operators that onnx does not support stay open, and so does everything
    downstream.
    """
    if not missing_value_info(model.graph) or path.stat().st_size > _LARGEST_PROTOBUF:
        return model
    import onnx

    proto = onnx.load_model(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) > _LARGEST_SHAPE:  # inference does not need it
            tensor.ClearField("raw_data")
    try:
        found = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (ValueError, RuntimeError, onnx.shape_inference.InferenceError):
        return model  # values stay unknown: the model may still be valid
    inferred_file = Path("inferred.onnx")
    inferred_file.write_bytes(found.SerializeToString())
    return replace(model, graph=replace(model.graph, values=read_model(inferred_file, values=True).graph.values))


def case_of(node: Node, flow: Dataflow) -> Case:
    """The case of *node*. Conversions around it count as the integer types that it is quantized with."""
    quantized = _quantized(node, flow)
    operands = tuple(_input(name, flow, quantized is not None) for name in _given(node.inputs))
    return Case(
        node.op_type,
        node.domain,
        flow.model.opsets.get(node.domain, 0),
        operands,
        tuple(replace(operand_of(name, flow), constant=False) if name else None for name in _given(node.outputs)),
        tuple(sorted((attribute.name, _attribute(attribute)) for attribute in node.attributes)),
        quantized,
    )


def as_quantized(case: Case, activations: str, weights: str, *, per_channel: bool = False) -> Case:
    """Return *case* as quantized with these integer types; unchanged if it has no floats."""
    floats = [operand for operand in case.inputs if operand is not None and operand.dtype in ("float32", "")]
    if case.quantized is not None or not floats:
        return case
    # The constants that quantizing turns into integers of the weight type.
    known = (case.inputs[number] for number in _WEIGHTS.get(case.op_type, ()) if number < len(case.inputs))
    if not any(operand is not None and operand.constant for operand in known):
        return replace(case, quantized=Quantized(activations, ""))
    return replace(case, quantized=Quantized(activations, weights, per_channel and case.op_type in CHANNEL_AXES))


def _given(names: tuple[str, ...]) -> tuple[str, ...]:
    """Drop empty names at the end: an empty name and an omitted input mean the same."""
    last = len(names)
    while last and not names[last - 1]:
        last -= 1
    return names[:last]


def operand_of(name: str, flow: Dataflow) -> Operand:
    """The value *name* as an operand."""
    tensor = flow.constants.get(name)
    dims = flow.dims(name)
    if dims is None and (maker := flow.makers.get(name)) is not None and maker.op_type in QDQ:
        dims = operand_of(maker.inputs[0], flow).dims  # the same as those of its input
    return Operand(flow.dtype(name), dims, tensor is not None)


def _input(name: str, flow: Dataflow, quantized: bool) -> Operand | None:
    if not name:
        return None
    found = operand_of(name, flow)
    if quantized and (conversion := _dequantized(name, flow)) is not None:
        tensor = flow.constants.get(conversion.inputs[0])
        return Operand("float32", found.dims if tensor is None else tensor.dims, constant=tensor is not None)
    return found


def _dequantized(name: str, flow: Dataflow) -> Node | None:
    """The DequantizeLinear that produces the value *name*."""
    maker = flow.makers.get(name)
    return maker if maker is not None and maker.op_type == "DequantizeLinear" and maker.inputs else None


def _attribute(attribute: Attribute) -> AttributeValue:
    if attribute.graphs:
        return "graph"
    if attribute.tensors:
        return dtype_name(attribute.tensors[0].data_type)
    if attribute.texts:
        return tuple(text.decode("utf-8", "replace") for text in attribute.texts)
    if attribute.content is not None:
        return attribute.content.decode("utf-8", "replace")
    if attribute.integer is not None:
        return attribute.integer
    if attribute.number is not None:
        return attribute.number if math.isfinite(attribute.number) else str(attribute.number)
    return attribute.integers or attribute.numbers


def _quantized(node: Node, flow: Dataflow) -> Quantized | None:
    """The integer types around *node*; None unless all its floats are converted.

    That is, all float inputs come from integers, and float outputs are converted to integers.
    """
    if node.op_type in QDQ:
        return None
    activations = weights = ""
    per_channel = False
    for number, name in enumerate(node.inputs):
        conversion = _dequantized(name, flow)
        if conversion is None:
            if name and number not in _STAY_FLOAT.get(node.op_type, ()) and _is_float(name, flow):
                return None
            continue
        constant = flow.constants.get(conversion.inputs[0])
        if constant is None:
            activations = activations or _point(conversion, flow)
        elif number in _WEIGHTS.get(node.op_type, ()):
            weights = weights or dtype_name(constant.data_type)
            scale = flow.constants.get(conversion.inputs[1]) if len(conversion.inputs) > 1 else None
            per_channel = per_channel or (scale is not None and prod(scale.dims) > 1)
    gives_floats = bool(node.outputs) and _is_float(node.outputs[0], flow, otherwise=True)
    if not activations or (gives_floats and not _is_quantized(node.outputs[0], flow)):
        return None
    return Quantized(activations, weights, per_channel)


def _is_quantized(name: str, flow: Dataflow) -> bool:
    """Whether a QuantizeLinear reads the value *name*."""
    return any(node.op_type == "QuantizeLinear" and node.inputs[0] == name for node in flow.readers.get(name, ()))


def _is_float(name: str, flow: Dataflow, *, otherwise: bool = False) -> bool:
    dtype = flow.dtype(name)
    return dtype in _FLOATS if dtype else otherwise


def _point(conversion: Node, flow: Dataflow) -> str:
    """The integer type of a conversion: that of its zero point, uint8 without one."""
    point = flow.constants.get(conversion.inputs[2]) if len(conversion.inputs) > 2 else None
    return "uint8" if point is None else dtype_name(point.data_type)
