"""Checks on a model before later stages use it. Each finding includes advice.

An error stops a later stage or makes its result meaningless; a warning costs speed or quality; info is for information.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.onnxmodel import description
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graph import MASK_MAGNITUDE, QDQ, Graph, Model, Node
from winml_dag.stages.analyze import AnalyzeConfig

_MOST_NODES = 10  # listed in a finding, next to the total count
# A huge bound of a Clip means "no bound".
_NO_MASK = frozenset({"Clip", "MatMul", "Gemm", "Conv"})
RANDOM_OPERATORS = ("Random", "Multinomial", "Bernoulli", "Dropout")
_CHANNELS_OPSET = 13  # Q and DQ with one scale per channel
_OLD_OPSET = 11


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Finding:
    """One finding. ``check`` names the check; ``nodes`` has the first few of ``count`` affected nodes."""

    severity: Severity
    check: str
    message: str
    advice: str
    nodes: tuple[str, ...] = ()
    count: int = 0

    def json(self) -> JsonObject:
        return {
            "check": self.check,
            "message": self.message,
            "advice": self.advice,
            "count": self.count,
            "nodes": list(self.nodes),
        }


def findings(path: Path, flow: Dataflow, config: AnalyzeConfig) -> list[Finding]:
    """All findings on the model *path*, whose graph is *flow*, for the target of *config*."""
    return [finding for check in _CHECKS for finding in check(path, flow, config)]


def lint_json(found: Sequence[Finding]) -> JsonObject:
    """The findings by severity. ``passed``: there are no errors."""
    by_severity = {
        f"{severity}s" if severity is not Severity.INFO else "info": [
            finding.json() for finding in found if finding.severity is severity
        ]
        for severity in Severity
    }
    return {**by_severity, "passed": not by_severity["errors"]}


def lint_counts(found: Sequence[Finding]) -> JsonObject:
    """The same as counts and names, for manifests."""
    counts = Counter(finding.severity for finding in found)
    return {
        "errors": counts[Severity.ERROR],
        "warnings": counts[Severity.WARNING],
        "info": counts[Severity.INFO],
        "passed": not counts[Severity.ERROR],
        "error_patterns": _names(found, Severity.ERROR),
        "warning_patterns": _names(found, Severity.WARNING),
    }


def _names(found: Sequence[Finding], severity: Severity) -> list[str]:
    return sorted({finding.check for finding in found if finding.severity is severity})


def _about(severity: Severity, check: str, message: str, advice: str, nodes: Sequence[str]) -> Iterator[Finding]:
    if nodes:
        yield Finding(severity, check, message, advice, tuple(nodes[:_MOST_NODES]), len(nodes))


def name_of(node: Node) -> str:
    """The name that results use for *node*: its own name, else that of its first output."""
    return node.name or next((name for name in node.outputs if name), node.op_type)


def opset(model: Model) -> int:
    """The version of the ONNX standard that *model* uses; 0 if not stated."""
    return max((model.opsets.get(domain, 0) for domain in ("", "ai.onnx")), default=0)


def missing_value_info(graph: Graph) -> list[str]:
    """Names of node outputs in *graph* whose type or rank is missing from the file."""
    known = {value.name for value in (*graph.values, *graph.outputs) if value.data_type and value.dims is not None}
    return [
        name for node in graph.nodes if node.op_type != "Constant" for name in node.outputs if name not in known | {""}
    ]


def _counted(found: Sequence[str], one: str, many: str) -> str:
    return f"{len(found)} {one if len(found) == 1 else many}"


def _soundness(path: Path, flow: Dataflow, _config: AnalyzeConfig) -> Iterator[Finding]:
    for sentence in description.findings(path, flow.model):
        yield Finding(Severity.ERROR, "soundness", sentence, "", (), 1)


def _dynamic_inputs(_path: Path, flow: Dataflow, config: AnalyzeConfig) -> Iterator[Finding]:
    if config.target.device == "npu":
        for sentence in description.dynamic_inputs(flow.model):
            yield Finding(
                Severity.ERROR, "dynamic_inputs", sentence, "A build for one fixes an open batch by itself.", (), 1
            )


def _constant_folding(_path: Path, flow: Dataflow, _config: AnalyzeConfig) -> Iterator[Finding]:
    constant = set(flow.constants)
    left: list[str] = []
    for node in flow.nodes:
        if node.op_type == "Constant" or node.op_type in QDQ or node.op_type.startswith(RANDOM_OPERATORS):
            continue
        if node.inputs and all(not name or name in constant for name in node.inputs):
            constant.update(node.outputs)
            if not any(attribute.graphs for attribute in node.attributes):
                left.append(name_of(node))
    yield from _about(
        Severity.WARNING,
        "constant_folding",
        f"{_counted(left, 'node computes', 'nodes compute')} what is constant, each time that the model runs.",
        "`winml-dag optimize` computes it once.",
        left,
    )


def _missing_value_info(_path: Path, flow: Dataflow, config: AnalyzeConfig) -> Iterator[Finding]:
    if flow.model.metadata and any(node.op_type == "EPContext" for node in flow.nodes):
        return
    left = missing_value_info(flow.model.graph)
    yield from _about(
        Severity.WARNING if config.target.device == "npu" else Severity.INFO,
        "shape_inference",
        f"Of {_counted(left, 'value', 'values')} the file does not give type and shape.",
        "`winml-dag optimize` writes them down where they follow from the inputs.",
        left,
    )


def _unused_initializers(_path: Path, flow: Dataflow, _config: AnalyzeConfig) -> Iterator[Finding]:
    inputs = {value.name for value in flow.model.graph.inputs}
    names = [tensor.name for tensor in flow.model.graph.initializers]
    left = [name for name in names if name and name not in flow.readers and name not in flow.outputs | inputs]
    yield from _about(
        Severity.INFO,
        "unused_initializers",
        f"{_counted(left, 'weight is', 'weights are')} read by nobody, and only in the way.",
        "`winml-dag optimize` removes them.",
        left,
    )


def _infinities(_path: Path, flow: Dataflow, config: AnalyzeConfig) -> Iterator[Finding]:
    if config.quant is None or config.optim.get("clamp_constant_values"):
        return
    left = [
        name_of(node)
        for node in flow.nodes
        if node.op_type not in _NO_MASK and any(_is_infinite(flow, name) for name in node.inputs)
    ]
    yield from _about(
        Severity.INFO if config.quant.activation_type != "float16" else Severity.WARNING,
        "infinite_constants",
        f"{_counted(left, 'node reads', 'nodes read')} a constant that means infinity, which integers and float16"
        " cannot hold beside other numbers.",
        "`winml-dag quantize` bounds it by itself; elsewhere, switch on clamp_constant_values.",
        left,
    )


def _is_infinite(flow: Dataflow, name: str) -> bool:
    if flow.dtype(name) not in ("float32", "float64"):
        return False
    return any(abs(number) >= MASK_MAGNITUDE for number in flow.numbers(name) or ())


def _duplicate_names(_path: Path, flow: Dataflow, _config: AnalyzeConfig) -> Iterator[Finding]:
    counts = Counter(node.name for node in flow.nodes if node.name)
    left = [name for name, count in counts.items() if count > 1]
    yield from _about(
        Severity.ERROR,
        "duplicate_names",
        f"{_counted(left, 'name is that', 'names are those')} of several nodes, and onnxruntime loads no such model.",
        "Give nodes names of their own, or none.",
        left,
    )


def _opset(_path: Path, flow: Dataflow, config: AnalyzeConfig) -> Iterator[Finding]:
    number = opset(flow.model)
    if number and number < _OLD_OPSET:
        yield Finding(
            Severity.WARNING,
            "opset",
            f"The model is written in opset {number}, which few execution providers are tried with.",
            "Export it with opset 17 or later.",
        )
    elif number < _CHANNELS_OPSET and config.quant is not None and config.quant.per_channel:
        yield Finding(
            Severity.WARNING,
            "opset",
            f"The model is written in opset {number}: with a scale for each channel, its QuantizeLinear and"
            " DequantizeLinear are onnxruntime's own (com.microsoft).",
            f"Export it with opset {_CHANNELS_OPSET} or later if something else is to read it.",
        )


_CHECKS = (
    _soundness,
    _dynamic_inputs,
    _opset,
    _constant_folding,
    _missing_value_info,
    _infinities,
    _duplicate_names,
    _unused_initializers,
)
