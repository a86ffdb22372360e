"""The line of built-in stages in one build: a node for each, with its config, inputs, environment and toolchain.

source -> export or normalize -> (optimize.0 -> analyze.0 -> optimize.1 ...) -> calibrate -> quantize -> compile
-> validate -> finalize
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Node, Source, Stage, config_json
from winml_dag.ep.availability import (
    environment_elsewhere,
    environment_name,
    environment_of,
    installed,
    libraries_of,
    package_of,
)
from winml_dag.ep.registry import CPU, Target, find_ep, is_emulated, runtime_builds
from winml_dag.installed import installed_distributions, normalised, versions, versions_in
from winml_dag.pipeline.data import packages_of
from winml_dag.pipeline.model import Known
from winml_dag.pipeline.search import CHECK
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.stages import artifact_types
from winml_dag.stages.builtin import LINE
from winml_dag.stages.compile import CompileConfig
from winml_dag.stages.export import ComponentsConfig
from winml_dag.stages.quantize import quantize_stage
from winml_dag.stages.validate import ValidateConfig
from winml_dag.store.digest import Fingerprints

if TYPE_CHECKING:
    from winml_dag.ep.qairt import QairtSdk
    from winml_dag.pipeline.plan import Build

# Their output is the model that they read, so it has its kind.
_KEEP_KIND = ("normalize", "finalize")


@dataclass(frozen=True)
class EpPlace:
    """The environment for the work of a stage; by default the current one, for work on the CPU.

    Provider packages exclude each other, so a provider may be in another environment that the user configures. What is
    installed there, not here, belongs in the keys of its stages.

    Attributes:
        interpreter: its Python; None for the current one.
        site_packages: its package folders; None for the current ones.
        distributions: what is installed there; None if that is to be looked up.
        tools: for keys: versions of the provider's packages, digests of its libraries, and for a provider that compiles
            for the host, the host's hardware.
        libraries: the files of those libraries, by their names in ``tools``.
        looked_at: files and folders that influenced all this, for the plan cache.
        pools: the device, if it is real: one run at a time uses it. Emulators are not limited.
        name: its name on every machine; empty for the current environment.
    """

    interpreter: Path | None = None
    site_packages: tuple[Path, ...] | None = None
    distributions: Mapping[str, str] | None = None
    tools: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, Path] = field(default_factory=dict)
    looked_at: tuple[Path, ...] = ()
    pools: tuple[str, ...] = ()
    name: str = ""

    def toolchain(self, packages: Iterable[str]) -> dict[str, str]:
        """Return what influences the output of work that uses *packages*: their versions, and the provider's packages.

        For onnxruntime, that includes its builds under other distribution names.
        """
        present = self.present()
        found = versions_in(present, packages)
        if "onnxruntime" in found:
            builds = {build: present[normalised(build)] for build in runtime_builds() if normalised(build) in present}
            if builds and "onnxruntime" not in present:
                del found["onnxruntime"]  # installed under another name
            found |= builds
        return {**found, **self.tools}

    def present(self) -> Mapping[str, str]:
        """Return every installed distribution with its version."""
        return installed_distributions(self.site_packages) if self.distributions is None else self.distributions


HERE = EpPlace()


def quantize_ids(build: Build) -> list[str]:
    """Return the ids of successive quantizations; the last one's result is the quantized model."""
    return ["quantize", *(f"quantize.{place}" for place in range(1, len(build.chosen("quantize") or ())))]


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
        known: Known,
        *,
        prefix: str = "",
    ) -> None:
        """Create a line.

        *rewired*: inputs of built-in stages that the recipe replaces, by stage and slot. *known*: what was read for
        other builds. *prefix* is prepended to the ids.
        """
        self.build = build
        self._fingerprints = fingerprints
        self._rewired = rewired
        self.looked_at: dict[Path, None] = {}
        self._known = known
        self.prefix = prefix
        model = build.sources.get("model")
        self._kind = artifact_types.FLOAT_MODEL if model is None else model.kind
        # What stages read: each slot gets the artifact of its name here, which later nodes replace with their outputs.
        self._artifacts: dict[str, Source | str | None] = {
            **build.sources,
            "flags": build.search.begin,
            "support": build.search.tables,
            "input_data": None,
        }

    def start(self, maker: Node, slot: str) -> None:
        """Let the line start from the model that *maker* outputs in *slot*, instead of a source of the build."""
        self._artifacts["model"], self._kind = maker.output(slot), maker.kind(slot)

    def nodes(self) -> Iterator[Node]:
        build = self.build
        for name, stage in LINE.items():
            config = build.chosen(name)
            if name == "normalize" and self._kind != artifact_types.COMPILED_MODEL:
                # An ONNX file is compared in its original form, so that normalizing is validated too.
                self._artifacts["reference"] = self._artifacts.get("model")
            if name == "optimize":
                yield from self._rounds()
            elif name == "quantize":
                yield from self._quantizations()
            elif name == "compile" and config is not None:
                self._artifacts["uncompiled"] = self._artifacts.get("model")
                yield self._taken(self._compile(config))
            elif name == "validate" and config is not None:
                yield self._validate(config)
            elif name != "analyze" and config is not None:
                node = self._node(name, stage, config_json(config))
                if name == "calibrate" and (saved := build.save_ranges):
                    node = replace(node, folder=saved.folder, paths={"ranges": saved.path})
                elif name == "finalize" and build.also:
                    # Imported here, as below: most builds compile one model with onnxruntime.
                    from winml_dag.stages.shared import FINALIZE_SHARED

                    node = replace(node, stage=FINALIZE_SHARED, kinds={})
                yield self._taken(node)

    def _rounds(self) -> Iterator[Node]:
        """Yield optimize and analyze, as often as the search may need; see :mod:`winml_dag.pipeline.decisions`."""
        build, model = self.build, self._artifacts.get("model")
        optimize, analyze, search = build.chosen("optimize"), build.chosen("analyze"), build.search
        place = self._place(build.target) if analyze is not None and analyze.target.asks else HERE
        # The same in each round.
        optimizing, analyzing = (None if config is None else config_json(config) for config in (optimize, analyze))
        chosen = () if optimize is None else (CATALOG[name] for name in optimize.optim)
        rewrites = versions(capability.package for capability in chosen if capability.package)
        for number in range(search.rounds + 1):
            if optimizing is not None:
                node = self._node(f"optimize.{number}", LINE["optimize"], optimizing, model=model)
                yield self._taken(replace(node, toolchain={**node.toolchain, **rewrites}))
            if analyzing is not None:
                node = self._node(f"analyze.{number}", LINE["analyze"], analyzing, place)
                checked = number == search.rounds and search.refuses_unsupported
                yield self._taken(replace(node, check=CHECK) if checked else node)

    def _quantizations(self) -> Iterator[Node]:
        build, given = self.build, self.build.sources
        if "input_data" in given:
            processor = given.get("input_processor")
            self._artifacts |= {"data": None, "input_data": given["input_data"], "processor": processor}
        if build.sensitivity is not None:
            from winml_dag.stages.sensitivity import SENSITIVITY

            yield self._node("sensitivity", SENSITIVITY, config_json(build.sensitivity))
        for node_id, quantize in zip(quantize_ids(build), build.chosen("quantize") or (), strict=False):
            yield self._taken(self._node(node_id, quantize_stage(quantize.quant.mode), config_json(quantize)))

    def _validate(self, config: ValidateConfig) -> Node:
        target = Target(find_ep(config.target.execution_provider), config.target.device)
        # The origin of the ranges; irrelevant for random inputs.
        runs_on_data = self._artifacts.get("data") is not None or self._artifacts.get("input_data") is not None
        ranges = (
            self._rewired.get("quantize", {}).get("ranges", self._artifacts.get("ranges")) if runs_on_data else None
        )
        node = self._node("validate", LINE["validate"], config_json(config), self._place(target), ranges=ranges)
        self._artifacts["validation"] = node.output("report")
        return node

    def export(self, stage: Stage, config: ComponentsConfig) -> Node:
        """Return the export as *stage* declares it, for all lines: it may output more models than this one uses."""
        return replace(self._node("export", stage, config_json(config)), id="export")

    def _compile(self, config: CompileConfig) -> Node:
        build = self.build
        node = self._node("compile", LINE["compile"], config_json(config), self._place(build.target))
        if build.sdk is not None:
            sdk, folders = build.sdk, (path.parent for path in build.sdk.files)
            self.looked_at |= dict.fromkeys((*sdk.files, *folders, *sdk.site_packages, *sdk.version_files, sdk.root))
            return _of_sdk(node, sdk, self._fingerprints)
        return _of_models(node, build.also) if build.also else node

    def _taken(self, node: Node) -> Node:
        """Let the following nodes read what *node* outputs."""
        self._artifacts |= {slot: node.output(slot) for slot in node.stage.outputs}
        if "model" in node.stage.outputs:
            self._kind = node.kind("model")
        return node

    def _node(
        self,
        node_id: str,
        stage: Stage,
        config: JsonObject,
        place: EpPlace = HERE,
        **replaced: Source | str | None,
    ) -> Node:
        artifacts = {**self._artifacts, **replaced}
        if stage.name == "calibrate":
            # Ranges belong to one model: the one that quantize reads.
            artifacts["model"] = self._rewired.get("quantize", {}).get("model", artifacts.get("model"))
        given = {slot: found for slot in stage.inputs if (found := artifacts.get(slot)) is not None}
        sources = {slot: found for slot, found in given.items() if isinstance(found, Source)}
        packages = packages_of(sources.get("data") or sources.get("input_data"), sources.get("processor"))
        inputs = {slot: name.name if isinstance(name, Source) else name for slot, name in given.items()}
        # A second quantize reads the output of the first.
        rewired = {} if node_id.startswith("quantize.") else self._rewired.get(stage.name, {})
        return Node(
            id=f"{self.prefix}{node_id}",
            stage=stage,
            config=config,
            inputs={**inputs, **rewired},
            kinds={"model": self._kind} if stage.name in _KEEP_KIND else {},
            toolchain=place.toolchain((*stage.packages, *packages)),
            tools=place.libraries,
            interpreter=place.interpreter,
            pools=place.pools,
            environment=place.name,
        )

    def _place(self, target: Target) -> EpPlace:
        """Return the environment for *target*, which several stages and builds may need."""
        places = self._known.places
        if target not in places:
            places[target] = ep_place(target, self._fingerprints)
        self.looked_at |= dict.fromkeys(places[target].looked_at)
        return places[target]


# compile for several models that share a binary, and with the QAIRT SDK.


def _of_models(node: Node, also: Sequence[Source]) -> Node:
    """Extend *node*, which compiles one model, to also compile the models *also*."""
    from winml_dag.stages.shared import shared_compile_stage

    inputs = dict(node.inputs)
    names = (inputs.pop("model"), *(source.name for source in also))
    inputs |= {f"model_{number}": name for number, name in enumerate(names)}
    return replace(node, stage=shared_compile_stage(len(names)), inputs=inputs)


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


def ep_place(target: Target, fingerprints: Fingerprints) -> EpPlace:
    """Return the environment for work on *target*; *fingerprints* caches the digests of its libraries.

    Raises:
        UsageError: for a configuration that names an invalid environment.
    """
    if target.ep == CPU:
        return HERE
    name = environment_name(target.ep.alias, target.device)
    elsewhere = None if installed(target.ep) else environment_elsewhere(name)
    if elsewhere is not None:
        return EpPlace(distributions=elsewhere.distributions, tools=elsewhere.tools, pools=elsewhere.pools, name=name)
    environment = environment_of(target.ep)
    path = None if environment is None else environment.site_packages
    present = installed_distributions(path)
    counts = package_of(target.ep, environment)
    # Some distributions have the same module in different builds; only the distribution name distinguishes them.
    packages = {target.ep.plugin} | {  # the plug-in's own code matters, too
        package.distribution
        for package in target.ep.packages
        if counts is not None and (package.plugin, package.catalog) == (counts.plugin, counts.catalog)
    }
    libraries = libraries_of(target.ep, environment)
    names = [f"{target.ep.alias} library {name}" for name in libraries.names()]
    entries = fingerprints.entries(list(zip(libraries.files, names, strict=True)))
    return EpPlace(
        interpreter=None if environment is None else environment.python,
        site_packages=path,
        tools={
            **{name: present[normalised(name)] for name in sorted(packages) if normalised(name) in present},
            **{entry.name: entry.digest for entry in entries},
            **(_machine(target) if target.ep.for_this_machine else {}),
        },
        libraries=dict(zip(names, libraries.files, strict=True)),
        looked_at=(*libraries.files, *libraries.folders, *(() if environment is None else environment.looked_at)),
        pools=() if target.device == "cpu" or is_emulated(target) else (target.device,),
        name=name,
    )


def _machine(target: Target) -> dict[str, str]:
    """Return the hardware that a model is compiled for: the processor, and other devices with their drivers."""
    from winml_dag.pipeline.host import this_host

    host = this_host()
    accelerators = host.accelerators if target.device != "cpu" else ()
    return {
        "system": host.system,
        "processor": host.processor,
        **{f"{target.device} device {number}": name for number, name in enumerate(accelerators)},
    }
