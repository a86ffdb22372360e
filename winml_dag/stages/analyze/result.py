"""analyze_result.json: what analyze found, in the fields that winml-cli gives it.

It is the same for the same model and target: identifiers are made from what they identify, there is no time in it, and
the model goes by its file's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from winml_dag.canonical import JsonObject, json_hash
from winml_dag.ep.registry import find_ep
from winml_dag.ep.support.case import Case, Level
from winml_dag.onnxmodel.graph import Model, Node
from winml_dag.stages.analyze import AnalyzeTarget

# In the order in which results list them.
LEVELS = (Level.SUPPORTED, Level.PARTIAL, Level.UNSUPPORTED, Level.UNKNOWN)


@dataclass(frozen=True)
class Judged:
    """A node with its verdict and why that is so. ``case``: what was asked for; None for what is in no table."""

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
    """An operator is as good as its worst node; what is not known is better than what is known to fail."""
    order = (Level.UNSUPPORTED, Level.PARTIAL, Level.UNKNOWN, Level.SUPPORTED)
    return min(verdicts, key=order.index)


def classification(judged: Sequence[Judged]) -> dict[str, list[str]]:
    """The operators by verdict, each list in the order in which the model uses them first."""
    found: dict[str, list[Level]] = {}
    for each in judged:
        found.setdefault(each.operator, []).append(each.verdict)
    return {level.value: [name for name, all_ in found.items() if worst(all_) is level] for level in LEVELS}


def identifier(*content: str) -> str:
    """An identifier in the form of a UUID, made from *content*."""
    text = json_hash(list(content))[:32]
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def metadata(name: str, model: Model, patterns: Mapping[str, int]) -> JsonObject:
    """What the model is: *name* is that of its file, *patterns* how often each was found."""
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
    """The version of the ONNX standard that *model* is written in; 0 when it does not say."""
    return max((model.opsets.get(domain, 0) for domain in ("", "ai.onnx")), default=0)


def target_result(
    target: AnalyzeTarget, version: str | None, judged: Sequence[Judged], information: Sequence[JsonObject]
) -> JsonObject:
    """The result for one target; *version* is that of its execution provider, where a table tells it."""
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
