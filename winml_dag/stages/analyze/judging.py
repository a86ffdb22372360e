"""What the target makes of each node: the verdicts of the tables, and what has been learnt beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from winml_dag.canonical import json_hash
from winml_dag.ep.registry import find_ep
from winml_dag.ep.support.case import Case, Level, Operand, Verdict, case_json
from winml_dag.ep.support.table import Rules
from winml_dag.errors import UsageError
from winml_dag.onnxmodel.facts import QDQ
from winml_dag.onnxmodel.graph import Graph, Model, Node, attribute_of
from winml_dag.stages.analyze import AnalyzeConfig, QuantizedTo
from winml_dag.stages.analyze.result import Judged
from winml_dag.stages.probe.cases import Scope, as_quantized, case_of

_FLOAT16 = "float16"


def case_key(case: Case) -> str:
    """What a case is known by where a text has to do."""
    return json_hash(case_json(case))


def assumed(config: AnalyzeConfig, model: Model) -> AnalyzeConfig:
    """*config* with every operator quantized where *model* has none of those that it names: so does quantize."""
    quant = config.quant
    if quant is None or quant.op_types is None:
        return config
    scope = Scope.of(model)
    for node in model.graph.nodes:
        if any(fnmatchcase(node.op_type, pattern) for pattern in quant.op_types):
            case = case_of(node, scope)
            if any(each is not None and each.dtype == "float32" for each in (*case.inputs, *case.outputs)):
                return config
    return replace(config, quant=replace(quant, op_types=None))


@dataclass(frozen=True)
class Judge:
    """Knows the target of a model: what its tables say, what was learnt, and what quantize will make of a node."""

    config: AnalyzeConfig
    rules: Rules
    learned: Mapping[str, Verdict]

    def verdict(self, case: Case) -> Verdict:
        """Of *case* as it stands."""
        found = self.rules.verdict(case)
        if found.level is Level.UNKNOWN:
            return self.learned.get(case_key(case), found)
        return found

    def as_it_will_be(self, case: Case, name: str = "") -> Case:
        """*case*, of a node that is called *name*, after quantize."""
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
        """Every node of *model*, those inside of nodes after the one that they are in."""
        return list(self._graph(model, model.graph))

    def _graph(self, model: Model, graph: Graph) -> Iterator[Judged]:
        scope = Scope.of(model, graph)
        judged = {id(node): self._node(node, scope) for node in graph.nodes if node.op_type not in QDQ}
        converted = {
            name
            for each in judged.values()
            if each.verdict is Level.SUPPORTED and each.case is not None and each.case.quantized is not None
            for name in (*each.node.inputs, *each.node.outputs)
        }
        for node in graph.nodes:
            yield judged.get(id(node)) or self._conversion(node, scope, converted)
            for attribute in node.attributes:
                for inner in attribute.graphs:
                    yield from self._graph(model, inner)

    def _node(self, node: Node, scope: Scope) -> Judged:
        if node.op_type == "Constant":
            return Judged(node, Level.SUPPORTED, "a constant, which is no work")
        if node.op_type == "EPContext":
            return self._context(node)
        case = self.as_it_will_be(case_of(node, scope), node.name)
        found = self.verdict(case)
        return Judged(node, found.level, found.reason, case)

    def _context(self, node: Node) -> Judged:
        """A provider's own binary."""
        source = attribute_of(node, "source")
        maker = "" if source is None or source.content is None else source.content.decode("utf-8", "replace")
        ep = self.config.target.execution_provider
        if maker and _name_of(maker) != ep:
            return Judged(node, Level.UNSUPPORTED, f"compiled for {maker}, and runs nowhere else")
        if not maker:
            return Judged(node, Level.UNKNOWN, "compiled, and the model does not say for which execution provider")
        return Judged(node, Level.SUPPORTED, f"compiled for {ep}")

    def _conversion(self, node: Node, scope: Scope, converted: AbstractSet[str]) -> Judged:
        """Q and DQ belong to the operators between them, which were measured with them; alone, they are operators."""
        if converted & {*node.inputs[:1], *node.outputs[:1]}:
            return Judged(node, Level.SUPPORTED, "measured with the operator that it converts for")
        return self._node(node, scope)


def _name_of(text: str) -> str:
    """The full name of the provider that *text* means; *text* itself when there is none."""
    try:
        return find_ep(text).name
    except UsageError:
        return text


def _in_half(case: Case) -> Case:
    def halved(operand: Operand | None) -> Operand | None:
        return operand if operand is None or operand.dtype != "float32" else replace(operand, dtype=_FLOAT16)

    return replace(case, inputs=tuple(map(halved, case.inputs)), outputs=tuple(map(halved, case.outputs)))
