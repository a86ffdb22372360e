"""Plan and read analyze: a graph with one stage for each target that the model may run on.

It is the same stage that builds use, so a model that was analyzed before is a cache hit. Single nodes can be saved as
models of their own, with their weights: test cases for a provider's developers.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Node, Stage, config_json
from winml_dag.ep.availability import can_be_asked, require_installed, resolve_target
from winml_dag.ep.provider import complete_options
from winml_dag.ep.registry import CPU, Target, execution_providers, find_ep
from winml_dag.ep.support import table_files
from winml_dag.errors import StoreError, UsageError
from winml_dag.installed import versions
from winml_dag.pipeline.assess.builtmodel import BuiltModel
from winml_dag.pipeline.assess.measurement import Measurement, MeasurementGraph, plan_measurement
from winml_dag.pipeline.decisions import support_of
from winml_dag.pipeline.layout import NORMALIZED
from winml_dag.pipeline.line import HERE, ep_place
from winml_dag.pipeline.normalization import Normalization, RequestedShapes, normalization_for
from winml_dag.pipeline.quantization import precision_for, quantize_configs, with_precision, with_types
from winml_dag.pipeline.stageconfigs import analyze_target, quantized_to
from winml_dag.recipe.schema import Quant
from winml_dag.stages.analyze import ANALYZE, AnalyzeConfig, AnalyzeFields, AnalyzeTarget, QuantizedTo
from winml_dag.stages.normalize import NORMALIZE
from winml_dag.store.digest import Fingerprints
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

ALL = "all"
AUTO = "auto"
# How many nodes are saved as models of their own.
MOST_SAVED = 100
_SAFE = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class AnalysisRequest:
    """How to analyze a model.

    Attributes:
        ep, device: the targets: names, ``all``, or None and ``auto`` for the target that the model was built for.
        precision: the precision it will be quantized to before it runs; None if it runs as it is.
        lint_only: only check the model, for no target.
        must_ask: whether to refuse a target that is not installed, and so cannot be asked.
        shapes: sizes of the model's inputs.
    """

    ep: str | None = None
    device: str | None = None
    precision: str | None = None
    lint_only: bool = False
    must_ask: bool = False
    shapes: RequestedShapes = field(default_factory=RequestedShapes)


@dataclass(frozen=True)
class AnalysisPlan:
    """An analysis ready to run: one stage for each of ``targets``, in their order.

    A target that needs a normalized model gets a normalize stage first. ``notices`` report what that decided.
    """

    measurement: MeasurementGraph
    built: BuiltModel
    targets: tuple[Target, ...]
    request: AnalysisRequest
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class TargetAnalysis:
    """The result for one target: the metrics of the stage and its output file."""

    target: Target
    metrics: JsonObject
    file: JsonObject

    def is_fine(self, *, lint_only: bool) -> bool:
        """Whether the target runs all operators; with *lint_only*, whether the model has no lint findings."""
        if lint_only:
            lint = self.file["lint"]
            return isinstance(lint, Mapping) and bool(lint["passed"])
        nodes = self.metrics["nodes"]
        return isinstance(nodes, Mapping) and not any(count for level, count in nodes.items() if level != "supported")


def plan_analysis(built: BuiltModel, request: AnalysisRequest, fingerprints: Fingerprints) -> AnalysisPlan:
    """Plan the analysis of *built* that *request* describes.

    Raises:
        UsageError: for an unknown target, a precision that the target does not run, and sizes that the model cannot
            have or that the target needs.
    """
    targets = tuple(_targets(built, request))
    model = built.model.source()
    nodes, sources, notices = list[Node](), [model], list[str]()
    for target in targets:
        if request.must_ask:
            require_installed(target)
        config = _config(request, target)
        inputs = {"model": model.name}
        found = _normalization(built, request, target, config)
        if found.config is not None:
            node = Node(
                id=_id(NORMALIZE, target),
                stage=NORMALIZE,
                config=config_json(found.config),
                inputs={"model": model.name},
                kinds={"model": model.kind},
                toolchain=versions(NORMALIZE.packages),
            )
            nodes.append(node)
            inputs["model"] = node.output("model")
            notices += found.notices
        asks = config.target.asks
        tables = None if request.lint_only else support_of(table_files(target, asks=asks))
        if tables is not None:
            # With several targets, each has its own tables.
            tables = replace(tables, name=f"{tables.name} of {target.ep.alias} {target.device}")
            sources.append(tables)
            inputs["support"] = tables.name
        elif not request.lint_only and not asks:
            notices.append(
                f"{target.ep.name} is not installed here. There is no table of what it takes on the device"
                f" {target.device} either, so its verdict on every operator is unknown. {_measured()}"
            )
        place = ep_place(target, fingerprints) if asks else HERE
        nodes.append(
            Node(
                id=_id(ANALYZE, target),
                stage=ANALYZE,
                config=config_json(config),
                inputs=inputs,
                toolchain=place.toolchain(ANALYZE.packages),
                tools=place.libraries,
                interpreter=place.interpreter,
                pools=place.pools,
                environment=place.name,
            )
        )
    scope = f"analyze {built.model.path.resolve()}"
    planned = plan_measurement(nodes, sources, fingerprints, scope)
    return AnalysisPlan(planned, built, targets, request, tuple(dict.fromkeys(notices)))


def _id(stage: Stage, target: Target) -> str:
    return f"{stage.name}.{target.ep.alias}_{target.device}"


def _normalization(built: BuiltModel, request: AnalysisRequest, target: Target, config: AnalyzeConfig) -> Normalization:
    """Return the normalization that a build for *target* would apply; with *lint_only* and no shapes, none."""
    if request.lint_only and request.shapes.is_empty:
        return Normalization()
    return normalization_for(
        built.model,
        request.shapes,
        Target(CPU, "cpu") if request.lint_only else target,
        compiles=False,
        quantizes=config.quant is not None and config.quant.activation_type != "float16",
    )


def known_targets() -> Iterator[Target]:
    """Yield the targets that are installed or have a support table."""
    for ep in execution_providers():
        for target in (Target(ep, device) for device in ep.devices):
            if can_be_asked(target) or table_files(target):
                yield target


def _measured() -> str:
    names = ", ".join(f"{target.ep.alias} {target.device}" for target in known_targets())
    return f"There are tables for: {names or 'nothing'}."


def _targets(built: BuiltModel, request: AnalysisRequest) -> Iterator[Target]:
    ep = None if request.ep in (None, AUTO) else request.ep
    device = None if request.device in (None, AUTO) else request.device
    if ALL not in (ep, device):
        yield built.target if ep is None and device is None else resolve_target(ep, device)
        return
    named = None if ep in (None, ALL) else find_ep(ep)
    found = [
        target
        for target in known_targets()
        if named in (None, target.ep) and (device in (None, ALL) or device == target.device)
    ]
    if not found:
        raise UsageError("There is no table for any of these targets.", advice=_measured())
    yield from found


def _config(request: AnalysisRequest, target: Target) -> AnalyzeConfig:
    quant = None if request.precision is None else _quantized_to(request.precision, target)
    # As in builds: ahead-of-time compilers get standard operators only.
    standard = quant is not None or not target.ep.takes_onnx
    options = {} if request.lint_only else complete_options(target, {})
    return AnalyzeConfig(
        analyze=AnalyzeFields(propose=not request.lint_only, lists_cases=True),
        target=AnalyzeTarget(target.ep.name, target.device, standard_domain_only=standard)
        if request.lint_only
        else analyze_target(target, options, standard_only=standard),
        quant=quant,
    )


def _quantized_to(name: str, target: Target) -> QuantizedTo | None:
    precision = precision_for(name, target)
    if precision.mode not in ("static", "fp16"):
        return None
    quant = with_types(with_precision(Quant(), precision, target), target)
    return quantized_to(quantize_configs(quant, target)[-1])


def read_analyses(plan: AnalysisPlan, done: Measurement, store: Store) -> list[TargetAnalysis]:
    """Return the results in *done*, one for each target of *plan*.

    Raises:
        BlobDamaged: when a result cannot be read; its stage has to run again.
    """
    records = {result.node.id: result.record for result in done.results}
    found = []
    for target in plan.targets:
        record = records[_id(ANALYZE, target)]
        assert record is not None
        with tempfile.TemporaryDirectory() as folder:
            store.fetch(record.outputs["result"], Path(folder))
            (path,) = Path(folder).iterdir()
            found.append(TargetAnalysis(target, record.metrics, json.loads(path.read_text(encoding="utf-8"))))
    return found


def judged_model(plan: AnalysisPlan, done: Measurement, store: Store, folder: Path) -> Path:
    """Return the analyzed model for the single target of *plan*; a normalized model is fetched into *folder*.

    Raises:
        BlobDamaged: when it cannot be read.
    """
    node_id = _id(NORMALIZE, plan.targets[0])
    made = next((result.record for result in done.results if result.node.id == node_id), None)
    if made is None:
        return plan.built.model.path
    store.fetch(made.outputs["model"], folder)
    return folder / NORMALIZED


def merged(plan: AnalysisPlan, analyses: Sequence[TargetAnalysis], made_at: str) -> JsonObject:
    """Merge *analyses*, all of the same model, into one analyze_result.json; *made_at*: the time of the analysis."""
    first = analyses[0].file
    metadata = first["metadata"]
    assert isinstance(metadata, Mapping)
    return {
        **first,
        "analysis_timestamp": made_at,
        "metadata": {**metadata, "model_path": plan.built.model.path.name},
        "results": [result for each in analyses for result in cast(list[JsonObject], each.file["results"])],
    }


def optimizations(analysis: TargetAnalysis) -> JsonObject:
    """Return the proposed optimizations as the recipe section that enables them."""
    proposed = analysis.metrics["proposed"]
    assert isinstance(proposed, Mapping)
    return {"optim": dict.fromkeys(sorted(proposed), True)}


def nodes_to_save(cases: Sequence[Mapping[str, Any]], verdicts: Set[str]) -> Mapping[str, str]:
    """Return the name of one node for each of *cases*, as listed by analyze, with one of *verdicts*, by the name of its
    file; at most :data:`MOST_SAVED`.
    """
    chosen = islice((case for case in cases if case["verdict"] in verdicts and case["nodes"]), MOST_SAVED)
    return {
        f"{number:03}_{case['verdict']}_{_SAFE.sub('_', str(case['operator']))}.onnx": case["nodes"][0]
        for number, case in enumerate(chosen, 1)
    }


def save_nodes(model: Path, nodes: Mapping[str, str], folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Write *nodes* of *model* into *folder*, each to its file; yields the files. Nodes in subgraphs are skipped.

    Raises:
        UsageError: when a file is in the way, and *overwrite* does not allow replacing it.
        StoreError: when a file cannot be written.
    """
    import onnx

    whole = onnx.load_model(model, load_external_data=False)
    by_name = {name: node for node in whole.graph.node for name in (node.output[0], node.name) if name}
    inferred = onnx.shape_inference.infer_shapes(whole, data_prop=True).graph
    types = {value.name: value for group in (inferred.value_info, inferred.input, inferred.output) for value in group}
    for name, node in nodes.items():
        if node not in by_name:
            continue
        path = folder / name
        content = _alone(whole, by_name[node], types, model.parent).SerializeToString()
        if path.exists() and not overwrite and path.read_bytes() != content:
            raise UsageError(f"{path} is in the way.", advice="Give --overwrite, or another folder with --save-dir.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be written: {error.strerror or error}.",
                advice="Choose another folder with --save-dir.",
            ) from error
        yield path


def _alone(model: ModelProto, node: NodeProto, types: dict[str, ValueInfoProto], base: Path) -> ModelProto:
    from onnx import TensorProto, helper
    from onnx.external_data_helper import load_external_data_for_model

    from winml_dag.onnxmodel.protos import constant_tensors

    constants = constant_tensors(model.graph)
    names = dict.fromkeys(name for name in node.input if name)

    def value_info(name: str) -> ValueInfoProto:
        return types.get(name) or helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    inputs = [value_info(name) for name in names if name not in constants]
    graph = helper.make_graph([node], "one_node", inputs, [value_info(name) for name in node.output if name])
    for name in names:
        if name in constants:
            tensor = graph.initializer.add()
            tensor.CopyFrom(constants[name])
            tensor.name = name
    opsets = [opset for opset in model.opset_import if opset.domain in ("", node.domain)]
    alone = helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
    load_external_data_for_model(alone, str(base))
    return alone
