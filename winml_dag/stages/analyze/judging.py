"""Verdicts on what the target does with each node, from the support tables and from learned trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from winml_dag.canonical import JsonObject, json_hash
from winml_dag.ep.registry import find_ep
from winml_dag.ep.support.case import Case, Level, Operand, Verdict, case_json
from winml_dag.ep.support.table import Rules
from winml_dag.errors import UsageError
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.facts import QDQ
from winml_dag.onnxmodel.graph import Graph, Model, Node, Value, attribute_of
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages.analyze import AnalyzeConfig, AnalyzeTarget, QuantizedTo
from winml_dag.stages.probe.cases import as_quantized, case_of

# analyze_result.json: the findings of analyze, in the fields that winml-cli uses.
#
# The content is the same for the same model and target: identifiers are derived from what they identify, there is no
# timestamp, and the model is identified by its file name.

# Types and shapes that the file does not have, inferred by onnx.
#
# onnx is imported only for models with missing types or shapes. What optimize writes has all of them.

_LARGEST_PROTOBUF = 2**31 - 1


def untold(graph: Graph) -> list[str]:
    """Names of node outputs in *graph* whose type or rank is missing from the file."""
    known = {value.name for value in (*graph.values, *graph.outputs) if value.data_type and value.dims is not None}
    return [
        name for node in graph.nodes if node.op_type != "Constant" for name in node.outputs if name not in known | {""}
    ]


def inferred(path: Path, model: Model) -> tuple[Value, ...]:
    """Return what onnx infers for the values of *model*, read from *path*; empty if the file has them all.

    External weight files are not read. Operators that onnx does not support stay open, and so does everything
    downstream.
    """
    if not untold(model.graph) or path.stat().st_size > _LARGEST_PROTOBUF:
        return ()
    import onnx

    proto = onnx.load_model(path, load_external_data=False)
    _drop_data(proto.graph.initializer)
    try:
        found = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (ValueError, RuntimeError, onnx.shape_inference.InferenceError):
        return ()  # values stay unknown: the model may still be valid
    inferred_file = Path("inferred.onnx")
    inferred_file.write_bytes(found.SerializeToString())
    return read_model(inferred_file, values=True).graph.values


def _drop_data(initializers: Iterable[object]) -> None:
    """Drop the data of tensors too large to be a shape: inference does not need it, and it would only be copied."""
    for tensor in initializers:
        if len(tensor.raw_data) > 1024:  # type: ignore[attr-defined]
            tensor.ClearField("raw_data")  # type: ignore[attr-defined]


# The order in which results list them.
LEVELS = (Level.SUPPORTED, Level.PARTIAL, Level.UNSUPPORTED, Level.UNKNOWN)


@dataclass(frozen=True)
class Judged:
    """A node with its verdict and the reason. ``case`` is what was looked up; None for nodes that no table covers."""

    node: Node
    verdict: Level
    reason: str
    case: Case | None = None

    @property
    def operator(self) -> str:
        return operator_id(self.node)


def operator_id(node: Node) -> str:
    """``OP/ai.onnx/Conv``."""
    return f"OP/{node.domain or 'ai.onnx'}/{node.op_type}"


def worst(verdicts: Iterable[Level]) -> Level:
    """The worst of *verdicts*. Unknown ranks above partial and unsupported."""
    order = (Level.UNSUPPORTED, Level.PARTIAL, Level.UNKNOWN, Level.SUPPORTED)
    return min(verdicts, key=order.index)


def classification(judged: Sequence[Judged]) -> dict[str, list[str]]:
    """The operators by verdict, each list in order of first use in the model."""
    found: dict[str, list[Level]] = {}
    for each in judged:
        found.setdefault(each.operator, []).append(each.verdict)
    return {level.value: [name for name, all_ in found.items() if worst(all_) is level] for level in LEVELS}


def identifier(*content: str) -> str:
    """An identifier in the form of a UUID, derived from *content*."""
    text = json_hash(list(content))[:32]
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def metadata(name: str, model: Model, patterns: Mapping[str, int]) -> JsonObject:
    """Metadata of the model. *name* is its file name; *patterns* has the number of occurrences of each pattern."""
    counts = Counter(node.op_type for node in model.graph.nodes)
    return {
        "model_path": name,
        "opset_version": opset(model),
        "producer_name": model.producer_name,
        "producer_version": model.producer_version,
        "total_operators": len(model.graph.nodes),
        "operator_counts": dict(counts),
        "unique_operator_types": len(counts),
        "detected_pattern_count": dict(patterns),
    }


def opset(model: Model) -> int:
    """The version of the ONNX standard that *model* uses; 0 if not stated."""
    return max((model.opsets.get(domain, 0) for domain in ("", "ai.onnx")), default=0)


def target_result(
    target: AnalyzeTarget, version: str | None, judged: Sequence[Judged], information: Sequence[JsonObject]
) -> JsonObject:
    """The result for one target. *version* is that of its execution provider, if a table states it."""
    classes = classification(judged)
    return {
        "ihv_type": find_ep(target.execution_provider).ihv_type,
        "ep_type": target.execution_provider,
        "device_type": target.device,
        "ep_version": version,
        "driver_version": None,
        "runtime_support": not any(classes[level] for level in LEVELS[1:]),
        "has_errors": bool(classes["unsupported"]),
        "has_warnings": bool(classes["partial"]),
        "classification": classes,
        "information": list(information),
    }


_FLOAT16 = "float16"


def case_key(case: Case) -> str:
    """A text that identifies *case*."""
    return json_hash(case_json(case))


def assumed(config: AnalyzeConfig, model: Model) -> AnalyzeConfig:
    """Return *config* with all operators quantized if *model* has none of those that it names, as quantize does."""
    quant = config.quant
    if quant is None or quant.op_types is None:
        return config
    flow = Dataflow(model)
    for node in model.graph.nodes:
        if any(fnmatchcase(node.op_type, pattern) for pattern in quant.op_types):
            case = case_of(node, flow)
            if any(each is not None and each.dtype == "float32" for each in (*case.inputs, *case.outputs)):
                return config
    return replace(config, quant=replace(quant, op_types=None))


@dataclass(frozen=True)
class Judge:
    """Judges nodes for one target, using its tables, learned verdicts, and how quantize will change each node."""

    config: AnalyzeConfig
    rules: Rules
    learned: Mapping[str, Verdict]

    def verdict(self, case: Case) -> Verdict:
        """The verdict on *case* in its current form."""
        found = self.rules.verdict(case)
        if found.level is Level.UNKNOWN:
            return self.learned.get(case_key(case), found)
        return found

    def as_it_will_be(self, case: Case, name: str = "") -> Case:
        """Return *case*, of a node called *name*, as quantize will leave it."""
        quant = self.config.quant
        if quant is None or not self._is_taken(case.op_type, name, quant):
            return case
        if quant.activation_type == _FLOAT16:
            return _in_half(case)
        return as_quantized(case, quant.activation_type, quant.weight_type, per_channel=quant.per_channel)

    def _is_taken(self, op_type: str, name: str, quant: QuantizedTo) -> bool:
        if any(name == pattern or fnmatchcase(name, pattern) for pattern in quant.excluded):
            return False
        if any(fnmatchcase(op_type, pattern) for pattern in quant.excluded_op_types):
            return False
        return quant.op_types is None or any(fnmatchcase(op_type, pattern) for pattern in quant.op_types)

    def nodes(self, model: Model) -> list[Judged]:
        """Judge every node of *model*. Nodes of a subgraph follow the node that contains it."""
        return list(self._graph(model, model.graph))

    def _graph(self, model: Model, graph: Graph) -> Iterator[Judged]:
        flow = Dataflow(model, graph)
        judged = {id(node): self._node(node, flow) for node in graph.nodes if node.op_type not in QDQ}
        converted = {
            name
            for each in judged.values()
            if each.verdict is Level.SUPPORTED and each.case is not None and each.case.quantized is not None
            for name in (*each.node.inputs, *each.node.outputs)
        }
        for node in graph.nodes:
            yield judged.get(id(node)) or self._conversion(node, flow, converted)
            for attribute in node.attributes:
                for inner in attribute.graphs:
                    yield from self._graph(model, inner)

    def _node(self, node: Node, flow: Dataflow) -> Judged:
        if node.op_type == "Constant":
            return Judged(node, Level.SUPPORTED, "a constant, which is no work")
        if node.op_type == "EPContext":
            return self._context(node)
        case = self.as_it_will_be(case_of(node, flow), node.name)
        found = self.verdict(case)
        return Judged(node, found.level, found.reason, case)

    def _context(self, node: Node) -> Judged:
        """Judge an EPContext node, which holds a compiled binary of an execution provider."""
        source = attribute_of(node, "source")
        maker = "" if source is None or source.content is None else source.content.decode("utf-8", "replace")
        ep = self.config.target.execution_provider
        if maker and _name_of(maker) != ep:
            return Judged(node, Level.UNSUPPORTED, f"compiled for {maker}, and runs nowhere else")
        if not maker:
            return Judged(node, Level.UNKNOWN, "compiled, and the model does not say for which execution provider")
        return Judged(node, Level.SUPPORTED, f"compiled for {ep}")

    def _conversion(self, node: Node, flow: Dataflow, converted: AbstractSet[str]) -> Judged:
        """Q and DQ belong to the operators between them, with which they were measured; alone, they are operators."""
        if converted & {*node.inputs[:1], *node.outputs[:1]}:
            return Judged(node, Level.SUPPORTED, "measured with the operator that it converts for")
        return self._node(node, flow)


def _name_of(text: str) -> str:
    """The full name of the provider that *text* refers to; *text* itself if there is none."""
    try:
        return find_ep(text).name
    except UsageError:
        return text


def _in_half(case: Case) -> Case:
    def halved(operand: Operand | None) -> Operand | None:
        return operand if operand is None or operand.dtype != "float32" else replace(operand, dtype=_FLOAT16)

    return replace(case, inputs=tuple(map(halved, case.inputs)), outputs=tuple(map(halved, case.outputs)))
