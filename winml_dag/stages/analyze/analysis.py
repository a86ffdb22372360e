"""The work of the analyze stage: judge the nodes of a model for a target, and write findings and proposals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.keys import installed_distributions, normalised
from winml_dag.engine.stage import Workspace
from winml_dag.ep.availability import package_of
from winml_dag.ep.registry import Target, find_ep
from winml_dag.ep.session import open_session, runs_on_cpu
from winml_dag.ep.support import Case, Level, Operand, Verdict
from winml_dag.ep.support.table import Rules, Support, SupportTable, read_support
from winml_dag.errors import StageError, UsageError
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.facts import QDQ
from winml_dag.onnxmodel.graph import Graph, Model, Node, attribute_of
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages import optimize
from winml_dag.stages.analyze import (
    LEVELS,
    RESULT_FILE,
    RUNS,
    AnalyzeConfig,
    AnalyzeTarget,
    Judged,
    QuantizedTo,
    by_operator,
    worst,
)
from winml_dag.stages.analyze.cases import as_quantized, case_of
from winml_dag.stages.analyze.lint import findings, lint_counts, lint_json, missing_value_info, name_of, opset
from winml_dag.stages.analyze.patterns import PATTERNS, find_all
from winml_dag.stages.analyze.proposals import Situation, information, proposed
from winml_dag.stages.optimize import Discovered

_MOST_NAMES = 5
_MOST_RANK = 5  # of what most NPUs and GPUs compute
_LARGEST_PROTOBUF = 2**31 - 1
_LARGEST_SHAPE = 1024  # bytes
_FLOAT16 = "float16"


def run(config: AnalyzeConfig, workspace: Workspace) -> JsonObject:
    """Write the analysis and the optimizations discovered so far.

    Returns the metrics:

    - ``nodes`` and ``operators``: counts by verdict.
    - ``partial``, ``unsupported`` and ``unknown``: operators, each with the number of its nodes, the reason, and its
      first nodes.
    - ``patterns``: how often each pattern occurs.
    - ``proposed``: the capabilities that this round adds, each with its reason.
    - ``discovered``: all capabilities discovered so far.
    - ``lint``: counts and names of findings.
    - ``table``: what the first table was measured with; empty without a table.
    - ``cases``: uses of operators that the target does not fully support; only if ``lists_cases`` is set.
    """
    path = workspace.input_file("model", ".onnx")
    as_read = read_model(path, values=True)
    model = with_inferred(path, as_read)
    tables, support = read_support(workspace.inputs["support"]) if workspace.has("support") else ([], Support([]))
    judged = judge(path, model, config, support)
    matches = find_all(Dataflow(model))
    before = Discovered.read(workspace.input_file("flags", ".json")) if workspace.has("flags") else Discovered()
    found = information(Situation(path, model, config, judged, before, support), matches)
    lint = findings(path, Dataflow(as_read), config)
    counts = Counter(match.pattern for match in matches)
    patterns = {pattern.id: counts[pattern.name] for pattern in PATTERNS if counts[pattern.name]}
    result = _target_result(config.target, _version(config.target, tables), judged)
    _write(
        workspace.outputs["result"] / RESULT_FILE,
        {
            "analysis_timestamp": None,
            "metadata": _metadata(path.name, model, patterns),
            "results": [{**result, "information": [each.json() for each in found]}],
            "lint": lint_json(lint),
        },
    )
    new = proposed(found)
    after = Discovered.of(
        {*before.capabilities, *new}, standard_domain_only=config.target.standard_domain_only
    ) if new else before  # fmt: skip
    after.write(workspace.outputs["flags"] / optimize.FILE)
    nodes = Counter(each.verdict for each in judged)
    classes = _classification(judged)
    return {
        "nodes": {level.value: nodes[level] for level in LEVELS},
        "operators": {name: len(operators) for name, operators in classes.items()},
        **{level.value: _operators(judged, level) for level in LEVELS[1:]},
        "patterns": patterns,
        "proposed": dict(new),
        "discovered": sorted(after.capabilities),
        "lint": lint_counts(lint),
        "table": str(tables[0].about) if tables else "",
        **({"cases": _cases(judged)} if config.analyze.lists_cases else {}),
    }


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
        if quant is not None and not _is_quantized(node.op_type, node.name, quant)
    }
    if quant is not None:
        cases = [case if number in stay_float else _quantized(case, quant) for number, case in enumerate(cases)]
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


def _is_quantized(op_type: str, name: str, quant: QuantizedTo) -> bool:
    if any(fnmatchcase(op_type, pattern) for pattern in quant.excluded_op_types):
        return False
    if name and any(fnmatchcase(name, pattern) for pattern in quant.excluded):
        return False
    return quant.op_types is None or any(fnmatchcase(op_type, pattern) for pattern in quant.op_types)


def _quantized(case: Case, quant: QuantizedTo) -> Case:
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


def _metadata(name: str, model: Model, patterns: Mapping[str, int]) -> JsonObject:
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


def _version(target: AnalyzeTarget, tables: Sequence[SupportTable]) -> str | None:
    """The version of the execution provider that a table was measured with, or that was asked; None if unknown."""
    if tables or not target.asks:
        return tables[0].about.ep_version if tables else None
    return provider_version(target.resolve())


def provider_version(target: Target) -> str:
    """Return the version of the package that provides *target*, which is onnxruntime for its own providers."""
    package = package_of(target.ep, None)
    name = "onnxruntime" if package is None else package.distribution
    return installed_distributions(None).get(normalised(name), "")


def _target_result(target: AnalyzeTarget, version: str | None, judged: Sequence[Judged]) -> JsonObject:
    classes = _classification(judged)
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
    }


def _classification(judged: Sequence[Judged]) -> dict[str, list[str]]:
    """The operators by verdict, each list in order of first use in the model."""
    levels = {name: worst(each.verdict for each in nodes) for name, nodes in by_operator(judged).items()}
    return {level.value: [name for name, found in levels.items() if found is level] for level in LEVELS}


def _operators(judged: Sequence[Judged], level: Level) -> list[JsonObject]:
    return [
        {
            "operator": operator,
            "count": len(nodes),
            "reason": Counter(each.reason for each in nodes).most_common(1)[0][0],
            "nodes": [name_of(each.node) for each in nodes[:_MOST_NAMES]],
        }
        for operator, nodes in by_operator(each for each in judged if each.verdict is level).items()
    ]


def _cases(judged: Sequence[Judged]) -> list[JsonObject]:
    """Uses of operators that the target does not fully support, each once with the nodes that have it."""
    by_case: dict[tuple[Case, Level], list[Judged]] = {}
    for each in judged:
        if each.verdict is not Level.SUPPORTED:
            by_case.setdefault((each.case, each.verdict), []).append(each)
    return [
        {"operator": case.op_type, "verdict": verdict.value, "nodes": [name_of(each.node) for each in nodes]}
        for (case, verdict), nodes in by_case.items()
    ]


def _write(path: Path, value: JsonObject) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
