"""From builds to one graph of stages: every node with its config, its inputs and the tools that shape its bytes.

source -> export -> optimize.0 -> (analyze.0) -> calibrate -> quantize -> compile -> validate -> finalize
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.config import config_json
from winml_dag.engine.graph import Graph
from winml_dag.engine.known import source_artifact
from winml_dag.engine.stage import Node, Source, Stage
from winml_dag.engine.toolchain import distribution_version, versions
from winml_dag.ep.fingerprint import library_files, library_folders
from winml_dag.ep.registry import RUNTIME_BUILDS, Target, find_ep
from winml_dag.pipeline.buildgraph import BuildGraph, Step
from winml_dag.pipeline.variant import Build, Skip, chosen
from winml_dag.stages import kinds
from winml_dag.stages.calibrate import CALIBRATE
from winml_dag.stages.compile import COMPILE
from winml_dag.stages.export import EXPORT
from winml_dag.stages.finalize import FINALIZE, FinalizeConfig
from winml_dag.stages.optimize import OPTIMIZE
from winml_dag.stages.quantize import QUANTIZE
from winml_dag.stages.validate import VALIDATE
from winml_dag.store.fingerprints import Fingerprints

# The line of stages as people see it; ``analyze`` has its place, and a reason to be left out.
LINE = ("export", "optimize", "analyze", "calibrate", "quantize", "compile", "validate", "finalize")


def plan_build(build: Build, fingerprints: Fingerprints) -> BuildGraph:
    """The graph of *build*, with every source digested.

    Raises:
        UsageError: when a stage cannot take what comes before it (a compiled or quantized model).
        InputError: when a source cannot be read.
    """
    line = _Line(build, fingerprints)
    nodes = tuple(line.nodes())
    roles = build.inputs
    given = (roles.model, roles.processor, roles.calibration_data, roles.option_files)
    sources = [source for source in given if source is not None]
    graph = Graph.of(nodes, sources)
    return BuildGraph(
        summary=build.summary,
        graph=graph,
        steps=tuple(_steps(build, nodes)),
        sources={source.name: source_artifact(source, fingerprints) for source in sources},
        final="finalize",
        looked_at=(*build.inputs.looked_at, *line.looked_at),
    )


def _steps(build: Build, nodes: tuple[Node, ...]) -> Iterator[Step]:
    for stage in LINE:
        found = [node for node in nodes if node.stage.name == stage]
        yield from (Step(node.id, stage) for node in found)
        if not found:
            skip = getattr(build, stage)
            yield Step(stage, stage, skip.reason if isinstance(skip, Skip) else "not part of this build")


def _packages(stage: Stage) -> dict[str, str]:
    """The versions of what *stage* works with; of onnxruntime, also those of its builds that go by other names."""
    found = versions(stage.packages)
    if "onnxruntime" in found:
        found |= versions(build for build in RUNTIME_BUILDS if distribution_version(build))
    return found


class _Line:
    """Makes the nodes of one build, from the source to the final model."""

    def __init__(self, build: Build, fingerprints: Fingerprints) -> None:
        self._build = build
        self._fingerprints = fingerprints
        self.looked_at: list[Path] = []
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
        ranges = None
        if calibrate := chosen(build.calibrate):
            data, processor = build.inputs.calibration_data, build.inputs.processor
            node = self._node(
                "calibrate",
                CALIBRATE,
                config_json(calibrate),
                tools=self._text_tools(),
                model=self._model,
                data=data,
                processor=processor,
            )
            ranges = node.output("ranges")
            yield node
        if quantize := chosen(build.quantize):
            kind = kinds.HALF_MODEL if quantize.quant.mode == "fp16" else kinds.QUANTIZED_MODEL
            yield self._after(
                self._node("quantize", QUANTIZE, config_json(quantize), kind=kind, model=self._model, ranges=ranges)
            )
        if compile_ := chosen(build.compile):
            yield self._after(
                self._node(
                    "compile",
                    COMPILE,
                    config_json(compile_),
                    tools=self._ep_tools(build.target),
                    model=self._model,
                    option_files=build.inputs.option_files,
                )
            )
        validation = None
        if (validate := chosen(build.validate)) and reference_kind != kinds.COMPILED_MODEL:
            target = Target(find_ep(validate.target.execution_provider), validate.target.device)
            node = self._node(
                "validate",
                VALIDATE,
                config_json(validate),
                tools={**self._ep_tools(target), **self._text_tools()},
                model=self._model,
                reference=reference,
                data=build.inputs.calibration_data,
                processor=build.inputs.processor,
            )
            validation = node.output("report")
            yield node
        config_none = config_json(FinalizeConfig())
        yield self._node("finalize", FINALIZE, config_none, kind=self._kind, model=self._model, validation=validation)

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
        tools: Mapping[str, str] | None = None,
        **inputs: Source | str | None,
    ) -> Node:
        return Node(
            id=node_id,
            stage=stage,
            config=config,
            inputs={
                slot: given.name if isinstance(given, Source) else given
                for slot, given in inputs.items()
                if given is not None
            },
            kinds={} if kind is None else {"model": kind},
            toolchain={**_packages(stage), **(tools or {})},
        )

    def _text_tools(self) -> dict[str, str]:
        """What turns text into numbers; nobody's concern where there is no text."""
        return {} if self._build.inputs.processor is None else versions(["transformers", "tokenizers", "sentencepiece"])

    def _ep_tools(self, target: Target) -> dict[str, str]:
        """What makes one installation of an execution provider differ from another: its package and its libraries."""
        package = versions([target.ep.distribution]) if target.ep.distribution else {}
        libraries, folders = library_files(target.ep), library_folders(target.ep)
        self.looked_at += [*libraries, *folders]
        # With the folder: there may be one of the same name for each processor.
        names = [path.relative_to(folders[0]).as_posix() for path in libraries]
        found = self._fingerprints.entries(list(zip(libraries, names, strict=True)))
        return {**package, **{f"{target.ep.alias} library {entry.name}": entry.digest for entry in found}}
