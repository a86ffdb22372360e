"""From builds to one graph of stages: every node with its config, its inputs and the tools that shape its bytes.

source -> export -> optimize.0 -> (analyze.0) -> calibrate -> quantize -> compile -> validate -> finalize

Stages that a recipe declares itself are nodes of the same graph; see :mod:`winml_dag.pipeline.userplan`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.config import config_json
from winml_dag.engine.graph import Cycle, Graph
from winml_dag.engine.stage import Node, Source, Stage
from winml_dag.ep.registry import Target, environments_behind, find_ep
from winml_dag.pipeline.buildgraph import BuildGraph, Step
from winml_dag.pipeline.calibration import packages_of
from winml_dag.pipeline.compilenode import final_of_models, looked_at, of_models, of_sdk
from winml_dag.pipeline.epplace import HERE, EpPlace, configuration, ep_place
from winml_dag.pipeline.layout import RANGES, RESERVED, is_ours
from winml_dag.pipeline.userplan import UserPlan, plan_stages
from winml_dag.pipeline.userstages import Declared, Ours
from winml_dag.pipeline.variant import LINE, Build, Inputs, OnlyDeclared, Skip, chosen
from winml_dag.recipe.findings import Findings
from winml_dag.stages import kinds
from winml_dag.stages.calibrate import CALIBRATE
from winml_dag.stages.compile import COMPILE, CompileConfig
from winml_dag.stages.export import EXPORT
from winml_dag.stages.finalize import FINALIZE
from winml_dag.stages.optimize import OPTIMIZE
from winml_dag.stages.quantize import QUANTIZE, quantize_stage
from winml_dag.stages.sensitivity import SENSITIVITY
from winml_dag.stages.validate import VALIDATE
from winml_dag.store.artifact import Artifact
from winml_dag.store.fingerprints import Fingerprints

# The ids of our stages' nodes, and their declarations.
_OURS = {
    "export": ("export", EXPORT),
    "optimize": ("optimize.0", OPTIMIZE),
    "calibrate": ("calibrate", CALIBRATE),
    "quantize": ("quantize", QUANTIZE),
    "compile": ("compile", COMPILE),
    "validate": ("validate", VALIDATE),
    "finalize": ("finalize", FINALIZE),
}
_FIRST = frozenset(node_id for node_id, _ in _OURS.values())


def plan_build(build: Build | OnlyDeclared, fingerprints: Fingerprints) -> BuildGraph:
    """The graph of *build*, with every source digested.

    Raises:
        UsageError: when a stage cannot take what comes before it (a compiled or quantized model), and for whatever is
            wrong with stages that the recipe declares.
        InputError: when a source cannot be read.
    """
    if isinstance(build, OnlyDeclared):
        return _plan_declared(build, fingerprints)
    own = UserPlan() if build.declared is None else _plan_own(build, build.declared, fingerprints)
    line = _Line(build, fingerprints, own.rewired)
    nodes = tuple(line.nodes())
    roles = build.inputs
    given = (roles.model, *build.also, *_data(roles), roles.ranges, roles.option_files)
    sources = [*(source for source in given if source is not None), *own.sources]
    graph = _graph((*nodes, *own.nodes), sources, build.declared)
    configured = tuple(path for path in configuration() if path.exists())
    environments = (path for environment in environments_behind(build.target) for path in environment.looked_at)
    return BuildGraph(
        summary=build.summary,
        graph=graph,
        steps=tuple(_steps(build, graph)),
        sources=_digested(sources, fingerprints),
        final=nodes[-1].id,
        looked_at=(*build.inputs.looked_at, *line.looked_at, *own.looked_at, *environments, *configured),
        absent=(*own.absent, *(path for path in configuration() if path not in configured)),
    )


def _data(inputs: Inputs) -> Iterator[Source | None]:
    """What stages are fed with. A model's processor is one source, whatever data it is for."""
    yield inputs.calibration_data
    yield inputs.validation_data
    yield inputs.processor or inputs.validation_processor


@dataclass(frozen=True)
class _RunOn:
    """What a result is run on: what calibration leaves of its data, or data of its own; random inputs without both."""

    data: Source | None
    input_data: Source | None
    processor: Source | None

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(packages_of(self.data or self.input_data, self.processor))


def _plan_own(build: Build, declared: Declared, fingerprints: Fingerprints) -> UserPlan:
    ours = {
        name: Ours(stage, _quantize_ids(build)[-1] if name == "quantize" else node_id, _left_out(build, name))
        for name, (node_id, stage) in _OURS.items()
    }
    there = os.path.relpath(build.summary.output_dir.resolve(), declared.folder)
    taken = {Path(there, name).as_posix(): "a file of the output folder" for name in (*RESERVED, RANGES)}
    if build.save_ranges is not None:
        taken[build.save_ranges.path] = "where quant.calibration_save_path goes"
    return plan_stages(declared, ours, taken, fingerprints)


def _quantize_ids(build: Build) -> list[str]:
    """The ids of one quantization after the other; the last one's result is the quantized model."""
    first = _OURS["quantize"][0]
    return [first, *(f"{first}.{place}" for place in range(1, len(chosen(build.quantize) or ())))]


def _left_out(build: Build, name: str) -> str | None:
    config = getattr(build, name)
    return config.reason if isinstance(config, Skip) else None


def _plan_declared(build: OnlyDeclared, fingerprints: Fingerprints) -> BuildGraph:
    ours = {
        name: Ours(stage, node_id, "the recipe names no model, so none of our stages runs")
        for name, (node_id, stage) in _OURS.items()
    }
    own = plan_stages(build.declared, ours, {}, fingerprints)
    graph = _graph(own.nodes, own.sources, build.declared)
    return BuildGraph(
        summary=build.summary,
        graph=graph,
        steps=tuple(Step(node.id, node.stage.name) for node in graph.nodes),
        sources=_digested(own.sources, fingerprints),
        final=None,
        looked_at=own.looked_at,
        absent=own.absent,
    )


def _graph(nodes: Sequence[Node], sources: Sequence[Source], declared: Declared | None) -> Graph:
    try:
        return Graph.of(nodes, sources)
    except Cycle as cycle:
        # Ours alone never wait for each other, so there is a line of the recipe to name.
        if declared is not None:
            findings = Findings(declared.recipe, declared.positions)
            first = next((node_id for node_id in cycle.path if node_id in declared.stages), cycle.path[0])
            findings.add(
                ("stages", first), f"these stages wait for each other: {' -> '.join(cycle.path)}", about_key=True
            )
            findings.refuse()
        raise


def _digested(sources: Sequence[Source], fingerprints: Fingerprints) -> dict[str, Artifact]:
    """Every source by content, all digested together: one look into the index for thousands of files."""
    entries = iter(fingerprints.entries([(file.path, file.name) for source in sources for file in source.files]))
    return {source.name: Artifact.of(islice(entries, len(source.files))) for source in sources}


def _steps(build: Build, graph: Graph) -> Iterator[Step]:
    """Every stage in an order in which they can run; those of ours that are left out stand where they would be."""
    present = {node.stage.name for node in graph.nodes if is_ours(node)}
    # Of a build for one file nobody expects more than what it does.
    left_out = [name for name in LINE if name not in present and build.summary.output_file is None]
    for node in graph.nodes:
        if is_ours(node) and node.stage.name in LINE:
            at = LINE.index(node.stage.name)
            yield from (_skipped(build, name) for name in left_out if LINE.index(name) < at)
            left_out = [name for name in left_out if LINE.index(name) > at]
        yield Step(node.id, node.stage.name)
    yield from (_skipped(build, name) for name in left_out)


def _skipped(build: Build, stage: str) -> Step:
    skip = getattr(build, stage)
    return Step(stage, stage, skip.reason if isinstance(skip, Skip) else "not part of this build")


class _Line:
    """Makes the nodes of one build, from the source to the final model."""

    def __init__(self, build: Build, fingerprints: Fingerprints, rewired: Mapping[str, Mapping[str, str]]) -> None:
        """*rewired*: where the recipe has our stages read from instead of where they would, by stage and slot."""
        self._build = build
        self._fingerprints = fingerprints
        self._rewired = rewired
        self.looked_at: list[Path] = []
        self._places: dict[Target, EpPlace] = {}
        source = build.inputs.model
        self._model = "" if source is None else source.name
        self._kind = kinds.FLOAT_MODEL if source is None else source.kind

    def nodes(self) -> Iterator[Node]:
        build = self._build
        if config := chosen(build.export):
            yield self._after(self._node("export", EXPORT, config_json(config), model=build.inputs.model))
        reference, reference_kind = self._model, self._kind
        if optimize := chosen(build.optimize):
            yield self._after(self._node("optimize.0", OPTIMIZE, config_json(optimize), model=self._model))
        ranges = None if build.inputs.ranges is None else build.inputs.ranges.name
        run_on = self._run_on()
        if calibrate := chosen(build.calibrate):
            data, processor = build.inputs.calibration_data, build.inputs.processor
            node = self._node(
                "calibrate",
                CALIBRATE,
                config_json(calibrate),
                data_packages=tuple(packages_of(data, processor)),
                # Ranges are of one model: what quantize reads.
                model=self._rewired.get("quantize", {}).get("model", self._model),
                data=data,
                processor=processor,
            )
            ranges = node.output("ranges")
            if saved := build.save_ranges:
                node = replace(node, folder=saved.folder, paths={"ranges": saved.path})
            yield node
        if build.sensitivity is not None:
            yield self._node(
                "sensitivity",
                SENSITIVITY,
                config_json(build.sensitivity),
                data_packages=run_on.packages,
                model=self._model,
                ranges=ranges,
                data=run_on.data,
                input_data=run_on.input_data,
                processor=run_on.processor,
            )
        for node_id, quantize in zip(_quantize_ids(build), chosen(build.quantize) or (), strict=False):
            stage = quantize_stage(quantize.quant.mode)
            yield self._after(self._node(node_id, stage, config_json(quantize), model=self._model, ranges=ranges))
        if compile_ := chosen(build.compile):
            yield self._after(self._compile(compile_))
        validation = None
        if validate := chosen(build.validate):
            target = Target(find_ep(validate.target.execution_provider), validate.target.device)
            node = self._node(
                "validate",
                VALIDATE,
                config_json(validate),
                place=self._place(target),
                data_packages=run_on.packages,
                model=self._model,
                reference=None if reference_kind == kinds.COMPILED_MODEL else reference,
                data=run_on.data,
                input_data=run_on.input_data,
                processor=run_on.processor,
            )
            validation = node.output("report")
            yield node
        finalize = build.finalize
        if not isinstance(finalize, Skip):
            node = self._node(
                "finalize",
                FINALIZE,
                config_json(finalize),
                kind=self._kind,
                model=self._model,
                validation=validation,
            )
            yield final_of_models(node) if build.also else node

    def _compile(self, config: CompileConfig) -> Node:
        build = self._build
        node = self._node(
            "compile",
            COMPILE,
            config_json(config),
            place=self._place(build.target),
            model=self._model,
            option_files=build.inputs.option_files,
        )
        if build.sdk is not None:
            self.looked_at += looked_at(build.sdk)
            return of_sdk(node, build.sdk, self._fingerprints)
        return of_models(node, build.also) if build.also else node

    def _after(self, node: Node) -> Node:
        """Let what follows read the model that *node* puts out."""
        self._model, self._kind = node.output("model"), node.kind("model")
        return node

    def _node(
        self,
        node_id: str,
        stage: Stage,
        config: JsonObject,
        *,
        kind: str | None = None,
        place: EpPlace = HERE,
        data_packages: Sequence[str] = (),
        **inputs: Source | str | None,
    ) -> Node:
        given = {
            slot: name.name if isinstance(name, Source) else name for slot, name in inputs.items() if name is not None
        }
        return Node(
            id=node_id,
            stage=stage,
            config=config,
            # A second one of a stage reads what the first gives.
            inputs={**given, **(self._rewired.get(stage.name, {}) if node_id in _FIRST else {})},
            kinds={} if kind is None else {"model": kind},
            toolchain=place.toolchain((*stage.packages, *data_packages)),
            interpreter=place.interpreter,
        )

    def _run_on(self) -> _RunOn:
        inputs = self._build.inputs
        if inputs.validation_data is None:
            return _RunOn(inputs.calibration_data, None, inputs.processor)
        return _RunOn(None, inputs.validation_data, inputs.validation_processor)

    def _place(self, target: Target) -> EpPlace:
        """Where work on *target* is done; found once, though compile and validate ask."""
        if target not in self._places:
            self._places[target] = ep_place(target, self._fingerprints)
            self.looked_at += self._places[target].looked_at
        return self._places[target]
