"""The line of built-in stages in one build: a node for each, with its config, inputs and toolchain.

source -> export or normalize -> (optimize.0 -> analyze.0 -> optimize.1 ...) -> calibrate -> quantize -> compile
-> validate -> finalize
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine.keys import versions
from winml_dag.engine.stage import Node, Source, Stage, config_json
from winml_dag.ep.registry import Target, find_ep
from winml_dag.pipeline.calibration import packages_of
from winml_dag.pipeline.epplace import HERE, EpPlace, ep_place
from winml_dag.pipeline.search import CHECK
from winml_dag.pipeline.variant import Build, Skip, chosen
from winml_dag.stages import artifact_types
from winml_dag.stages.analyze import ANALYZE
from winml_dag.stages.calibrate import CALIBRATE
from winml_dag.stages.compile import COMPILE, CompileConfig
from winml_dag.stages.export import EXPORT
from winml_dag.stages.finalize import FINALIZE
from winml_dag.stages.normalize import NORMALIZE
from winml_dag.stages.optimize import OPTIMIZE
from winml_dag.stages.quantize import QUANTIZE, quantize_stage
from winml_dag.stages.sensitivity import SENSITIVITY
from winml_dag.stages.validate import VALIDATE
from winml_dag.store.digest import Fingerprints

if TYPE_CHECKING:
    from winml_dag.ep.qairt import QairtSdk

# The built-in stages by name, in the order that users see.
LINE: Mapping[str, Stage] = {
    stage.name: stage
    for stage in (EXPORT, NORMALIZE, OPTIMIZE, ANALYZE, CALIBRATE, QUANTIZE, COMPILE, VALIDATE, FINALIZE)
}


@dataclass(frozen=True)
class Start:
    """A model that a node of another line outputs: its name in the graph, and its artifact type."""

    model: str
    kind: str


@dataclass(frozen=True)
class _RunOn:
    """The inputs of validation: calibration data that was kept back, or data of its own; random inputs without both."""

    data: Source | None
    input_data: Source | None
    processor: Source | None

    @property
    def is_given(self) -> bool:
        return self.data is not None or self.input_data is not None

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(packages_of(self.data or self.input_data, self.processor))


def quantize_ids(build: Build) -> list[str]:
    """Return the ids of successive quantizations; the last one's result is the quantized model."""
    return ["quantize", *(f"quantize.{place}" for place in range(1, len(chosen(build.quantize) or ())))]


def id_of(build: Build, name: str) -> str:
    """Return the id of the node with the final result of the stage *name*, of which there may be several."""
    if name in ("optimize", "analyze"):
        return f"{name}.{build.search.rounds}"
    return quantize_ids(build)[-1] if name == "quantize" else name


class Line:
    """Makes the nodes of one build, from the source to the final model."""

    def __init__(
        self,
        build: Build,
        fingerprints: Fingerprints,
        rewired: Mapping[str, Mapping[str, str]],
        *,
        prefix: str = "",
        start: Start | None = None,
    ) -> None:
        """Create a line.

        *rewired*: inputs of built-in stages that the recipe replaces, by stage and slot. *prefix* is prepended to the
        ids. *start*: the model that the line starts from, if that is not a source of the build.
        """
        self._build = build
        self._fingerprints = fingerprints
        self._rewired = rewired
        self.looked_at: list[Path] = []
        self._places: dict[Target, EpPlace] = {}
        self._prefix = prefix
        source = build.inputs.model
        self._model = start.model if start else "" if source is None else source.name
        self._kind = start.kind if start else artifact_types.FLOAT_MODEL if source is None else source.kind

    def nodes(self) -> Iterator[Node]:
        build = self._build
        if config := chosen(build.export):
            yield self._after(self.export(EXPORT, config_json(config)))
        # An ONNX file is compared in its original form, so that normalizing is validated too.
        reference, reference_kind = self._model, self._kind
        if build.normalize is not None:
            normalize = config_json(build.normalize)
            yield self._after(self._node("normalize", NORMALIZE, normalize, kind=self._kind, model=self._model))
        yield from self._rounds()
        ranges = None if build.inputs.ranges is None else build.inputs.ranges.name
        run_on = self._run_on()
        if calibrate := chosen(build.calibrate):
            data, processor = build.inputs.calibration_data, build.inputs.processor
            node = self._node(
                "calibrate",
                CALIBRATE,
                config_json(calibrate),
                data_packages=tuple(packages_of(data, processor)),
                # Ranges belong to one model: the one that quantize reads.
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
        for node_id, quantize in zip(quantize_ids(build), chosen(build.quantize) or (), strict=False):
            stage = quantize_stage(quantize.quant.mode)
            yield self._after(self._node(node_id, stage, config_json(quantize), model=self._model, ranges=ranges))
        uncompiled = None
        if compile_ := chosen(build.compile):
            uncompiled = self._model
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
                reference=None if reference_kind == artifact_types.COMPILED_MODEL else reference,
                uncompiled=uncompiled,
                data=run_on.data,
                input_data=run_on.input_data,
                processor=run_on.processor,
                # The origin of the ranges; irrelevant for random inputs.
                ranges=self._rewired.get("quantize", {}).get("ranges", ranges) if run_on.is_given else None,
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
            if build.also:
                node = _final_of_models(node)
            yield node

    def _rounds(self) -> Iterator[Node]:
        """Yield optimize and analyze, as often as the search may need; see :mod:`winml_dag.pipeline.autoconf`."""
        build, model = self._build, self._model
        optimize, analyze, search = chosen(build.optimize), chosen(build.analyze), build.search
        flags: Source | str | None = search.begin
        for number in range(search.rounds + 1):
            if optimize is not None:
                config = config_json(optimize)
                yield self._after(self._node(f"optimize.{number}", OPTIMIZE, config, model=model, flags=flags))
            if analyze is not None:
                config = config_json(analyze)
                node = self._node(
                    f"analyze.{number}",
                    ANALYZE,
                    config,
                    place=self._place(build.target) if analyze.target.asks else HERE,
                    model=self._model,
                    support=search.tables,
                    flags=flags,
                )
                checked = number == search.rounds and search.refuses_unsupported
                yield replace(node, check=CHECK) if checked else node
                flags = node.output("flags")

    def export(self, stage: Stage, config: JsonObject) -> Node:
        """Return the export as *stage* declares it; it may output more models than this line uses."""
        return self._node("export", stage, config, model=self._build.inputs.model, script=self._build.inputs.script)

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
        if build.sdk is None and not build.also:
            return node
        if build.sdk is not None:
            self.looked_at += _paths_of(build.sdk)
            return _of_sdk(node, build.sdk, self._fingerprints)
        return _of_models(node, build.also)

    def _after(self, node: Node) -> Node:
        """Let the following nodes read the model that *node* outputs."""
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
            id=f"{self._prefix}{node_id}",
            stage=stage,
            config=config,
            # A second quantize reads the output of the first.
            inputs=given if node_id.startswith("quantize.") else {**given, **self._rewired.get(stage.name, {})},
            kinds={} if kind is None else {"model": kind},
            toolchain=place.toolchain((*stage.packages, *data_packages)),
            tools=place.libraries,
            interpreter=place.interpreter,
            pools=place.pools,
            environment=place.name,
        )

    def _run_on(self) -> _RunOn:
        inputs = self._build.inputs
        if inputs.validation_data is None:
            return _RunOn(inputs.calibration_data, None, inputs.processor)
        return _RunOn(None, inputs.validation_data, inputs.validation_processor)

    def _place(self, target: Target) -> EpPlace:
        """Return the environment for *target*; cached, since compile and validate both need it."""
        if target not in self._places:
            self._places[target] = ep_place(target, self._fingerprints)
            self.looked_at += self._places[target].looked_at
        return self._places[target]


# compile and finalize for several models that share a binary, and compile with the QAIRT SDK.


def _of_models(node: Node, also: Sequence[Source]) -> Node:
    """Extend *node*, which compiles one model, to also compile the models *also*."""
    # Imported here, as below: most builds compile one model with onnxruntime.
    from winml_dag.stages.shared import shared_compile_stage

    inputs = dict(node.inputs)
    names = (inputs.pop("model"), *(source.name for source in also))
    inputs |= {f"model_{number}": name for number, name in enumerate(names)}
    return replace(node, stage=shared_compile_stage(len(names)), inputs=inputs)


def _final_of_models(node: Node) -> Node:
    """Extend *node*, which gives one model its final name, to all models that compile outputs."""
    from winml_dag.stages.shared import FINALIZE_SHARED

    return replace(node, stage=FINALIZE_SHARED, kinds={})


def _of_sdk(node: Node, sdk: QairtSdk, fingerprints: Fingerprints) -> Node:
    """Return *node* with the tools of *sdk* instead of onnxruntime. The key has the tools' contents, not the paths."""
    from winml_dag.stages.qairt import COMPILE_QAIRT

    python = versions(("numpy", "onnx"), sdk.site_packages or None)
    tools = {f"QAIRT SDK {path.name}": path for path in sdk.files}
    entries = fingerprints.entries([(path, name) for name, path in tools.items()])
    return replace(
        node,
        stage=COMPILE_QAIRT,
        toolchain={
            **versions(COMPILE_QAIRT.packages),
            "QAIRT SDK": sdk.version,
            **{f"QAIRT SDK's {name}": version for name, version in python.items()},
            **{entry.name: entry.digest for entry in entries},
        },
        tools=tools,
        interpreter=None,
        pools=(),  # they compile without the device
        environment="",
        machine_facts={
            "root": str(sdk.root.absolute()),
            "host": sdk.host,
            "version": sdk.version,
            "python": str(sdk.python or sys.executable),
        },
    )


def _paths_of(sdk: QairtSdk) -> tuple[Path, ...]:
    """Return the paths of *sdk* that influence a plan."""
    folders = dict.fromkeys(path.parent for path in sdk.files)
    return (*sdk.files, *folders, *sdk.site_packages, *sdk.said_in, sdk.root)
