"""A build with nothing left to decide, and how it becomes one graph of stages with digested sources.

A :class:`Build` is one resolved variant (one model, one precision, one EP and device) with its one output folder: the
complete config of every stage, or the reason why it is skipped, and the stages that a recipe declares; nothing
downstream reads a recipe.

The graph is the line of built-in stages (:mod:`winml_dag.pipeline.line`), or one line per component after a shared
export. Stages that a recipe declares are nodes of the same graph; see :mod:`winml_dag.pipeline.userstages.plan`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from winml_dag.engine.graph import Cycle, Graph
from winml_dag.engine.stage import Node, Skip, Source
from winml_dag.ep.availability import environments_behind
from winml_dag.pipeline.buildgraph import BuildGraph, BuildSummary, Step, prefixed
from winml_dag.pipeline.layout import RANGES, is_builtin, reserved
from winml_dag.pipeline.line import Line, id_of
from winml_dag.pipeline.model import Known
from winml_dag.stages.builtin import LINE
from winml_dag.stages.export import export_stage
from winml_dag.store.artifact import Artifact
from winml_dag.store.digest import Fingerprints

if TYPE_CHECKING:
    from winml_dag.ep.qairt import QairtSdk
    from winml_dag.ep.registry import Target
    from winml_dag.recipe.document import Positions
    from winml_dag.recipe.schema import StageEntry
    from winml_dag.stages.sensitivity import SensitivityConfig

T = TypeVar("T")


@dataclass(frozen=True)
class Search:
    """How a build searches.

    Attributes:
        begin: a file without discoveries.
        rounds: how many optimizations may follow the first.
        refuses_unsupported: whether an operator that the target cannot run at all fails the build.
        tables: the support tables of the target; None without any.
        looked_at, absent: the paths that decided on the tables.
    """

    begin: Source | None = None
    rounds: int = 0
    refuses_unsupported: bool = True
    tables: Source | None = None
    looked_at: tuple[Path, ...] = ()
    absent: tuple[Path, ...] = ()


@dataclass(frozen=True)
class SavePath:
    """A path that the user chose: ``path``, with ``/``, in ``folder``, which is absolute and without links."""

    folder: Path
    path: str


@dataclass(frozen=True)
class Build:
    """One resolved variant: its summary, its inputs, and the config of each stage.

    Without a model, all stages of the line are skipped, and only those that the recipe declares are left.

    Attributes:
        sources: by the input slot of the stages that read them: ``model`` (what export reads, or the ONNX model
            itself), ``script`` (makes the model), ``data``, ``processor``, ``ranges``, ``option_files``; and
            ``input_data`` with ``input_processor``, what the result runs on if calibration keeps back no data for that.
        looked_at: the folders and files that decided the choice of these.
        configs: for each stage of the line its config, or why it is skipped. quantize has a tuple of configs, in order:
            a second one converts what 4-bit weights leave in float32 to float16.
        search: the number of rounds of optimize and analyze, and their initial input.
        save_ranges: an additional path for calibrate's ranges.
        sensitivity: ranks nodes by the first quantization, outside of the line.
        declared: the recipe's own stages, which run next to and between built-in ones.
        also: further models that compile puts into one binary with the first.
        sdk: compiles instead of onnxruntime.
        lacks: what this machine lacks to run it, as sentences; only for a build that is only planned.
        parts: for a model of several components, the builds of these after one export of all, by name; their inputs
            include those of the export, and ``configs`` has only the export.
    """

    summary: BuildSummary
    target: Target
    sources: Mapping[str, Source]
    configs: Mapping[str, Any]
    search: Search
    looked_at: tuple[Path, ...] = ()
    save_ranges: SavePath | None = None
    sensitivity: SensitivityConfig | None = None
    declared: Declared | None = None
    also: tuple[Source, ...] = ()
    sdk: QairtSdk | None = None
    lacks: tuple[str, ...] = ()
    parts: Mapping[str, Build] = field(default_factory=dict)

    def chosen(self, stage: str) -> Any:
        """Return the config of *stage*, or None if it is skipped."""
        return chosen(self.configs[stage])

    def with_configs(self, **configs: Any) -> Build:
        return replace(self, configs={**self.configs, **configs})


def chosen(config: T | Skip) -> T | None:
    """Return the config of a stage that is not skipped, else None."""
    return None if isinstance(config, Skip) else config


# Names of stages and of their inputs and outputs: they are used in `stage.output` and in `{inputs.name}`.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Declared:
    """The ``stages`` of a recipe. *folder* is the recipe's own, absolute: the base of their paths."""

    stages: Mapping[str, StageEntry]
    folder: Path
    recipe: Path
    positions: Callable[[], Positions]


@dataclass(frozen=True)
class UserPlan:
    """The part of a build that a recipe declares.

    Attributes:
        rewired: the artifact that a built-in stage reads instead, by stage and slot.
        looked_at: files and folders other than the sources that influenced this plan.
        absent: missing files that commands seem to name, and missing programs of the same names.
        programs: files that are used as programs, or non-executable files that precede them in the search.
    """

    nodes: tuple[Node, ...] = ()
    sources: tuple[Source, ...] = ()
    rewired: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    looked_at: tuple[Path, ...] = ()
    absent: tuple[Path, ...] = ()
    programs: tuple[Path, ...] = ()


def rewires_builtin(entry: StageEntry) -> bool:
    """Whether *entry* does no work of its own, but sets an input of a built-in stage."""
    return entry.command is None and entry.run is None and entry.uses is None


def plan_build(build: Build, fingerprints: Fingerprints, known: Known | None = None) -> BuildGraph:
    """Return the graph of *build*, with every source digested. *known*: what other builds of the same plan have read.

    Raises:
        UsageError: when a stage cannot take its input (a compiled or quantized model), and for errors in stages that
            the recipe declares.
        InputError: when a source cannot be read.
    """
    known = known or Known()
    own = UserPlan() if build.declared is None else _plan_own(build, build.declared, fingerprints)
    lines = {
        name: Line(part, fingerprints, own.rewired, known, prefix=f"{name}." if name else "")
        for name, part in (build.parts or {"": build}).items()
    }
    nodes, steps = list[Node](), list[Step]()
    if build.parts:
        export = next(iter(lines.values())).export(export_stage(build.parts), build.configs["export"])
        nodes, steps = [export], [Step(export.id, export.stage.name)]
        for name, line in lines.items():
            line.start(export, prefixed("model", name))
    looked_at, absent = list[Path](), list[Path]()
    for line in lines.values():
        of_line = tuple(line.nodes())
        nodes += of_line
        if build.parts:
            steps += _steps(line.build, of_line, line.prefix)
        if of_line:
            looked_at += _looked_at(line)
            absent += line.build.search.absent
    if nodes:
        configured, not_configured = known.configuration
        looked_at += configured
        absent += not_configured
    sources = list(
        dict.fromkeys([*(source for line in lines.values() for source in _sources(line.build)), *own.sources])
    )
    graph = _graph((*nodes, *own.nodes), sources, build.declared)
    return BuildGraph(
        summary=build.summary,
        graph=graph,
        steps=tuple(steps or _steps(build, graph.nodes)),
        sources=_digested(sources, fingerprints, known),
        final=nodes[-1].id if nodes else None,
        looked_at=(*looked_at, *own.looked_at),
        absent=(*own.absent, *absent),
        programs=own.programs,
    )


def _sources(build: Build) -> Iterator[Source]:
    searched = build.chosen("optimize") or build.chosen("analyze")
    search = (build.search.begin, build.search.tables) if searched else ()
    given = (*build.sources.values(), *build.also, *search)
    return (source for source in given if source is not None)


def _looked_at(line: Line) -> Iterator[Path]:
    """Yield the paths that influenced *line*."""
    yield from line.build.looked_at
    yield from line.looked_at
    yield from line.build.search.looked_at
    for environment in environments_behind(line.build.target):
        yield from environment.looked_at


def _plan_own(build: Build, declared: Declared, fingerprints: Fingerprints) -> UserPlan:
    from winml_dag.pipeline.userstages.plan import plan_stages

    builtin = {name: Step(id_of(build, name), name, _skipped_because(build, name)) for name in LINE}
    taken: dict[str, str] = {}
    if build.summary.origin != "stages":
        there = os.path.relpath(build.summary.output_dir.resolve(), declared.folder)
        names = (*reserved({}), RANGES)
        taken = dict.fromkeys((Path(there, name).as_posix() for name in names), "a file of the output folder")
    if build.save_ranges is not None:
        taken[build.save_ranges.path] = "where quant.calibration_save_path goes"
    return plan_stages(declared, builtin, taken, fingerprints)


def _skipped_because(build: Build, name: str) -> str | None:
    config = build.configs[name]
    return config.reason if isinstance(config, Skip) else None


def _graph(nodes: Sequence[Node], sources: Sequence[Source], declared: Declared | None) -> Graph:
    try:
        return Graph.of(nodes, sources)
    except Cycle as cycle:
        # Built-in stages alone have no cycle, so there is a line of the recipe to name.
        if declared is not None:
            from winml_dag.recipe.document import Findings

            findings = Findings(declared.recipe, declared.positions)
            first = next((node_id for node_id in cycle.path if node_id in declared.stages), cycle.path[0])
            findings.add(
                ("stages", first), f"these stages wait for each other: {' -> '.join(cycle.path)}", about_key=True
            )
            findings.refuse()
        raise


def _digested(sources: Sequence[Source], fingerprints: Fingerprints, known: Known) -> dict[str, Artifact]:
    """Digest all new sources together: one index lookup for thousands of files."""
    new = [source for source in sources if source not in known.artifacts]
    if new:
        entries = iter(fingerprints.entries([(file.path, file.name) for source in new for file in source.files]))
        known.artifacts.update((source, Artifact.of(islice(entries, len(source.files)))) for source in new)
    return {source.name: known.artifacts[source] for source in sources}


def _steps(build: Build, nodes: Sequence[Node], prefix: str = "") -> Iterator[Step]:
    """Yield every stage in a valid order, with skipped built-in stages at their usual position."""
    present = {node.stage.name for node in nodes if is_builtin(node)}
    places = {name: place for place, name in enumerate(LINE)}
    left_out: list[Step] = []
    # Skipped stages are not listed for a build of a single file.
    for name in LINE if build.summary.output_file is None else ():
        skip = build.configs[name]
        if name not in present and (not isinstance(skip, Skip) or skip.listed):
            why = _skipped_because(build, name) or "not part of this build"
            left_out.append(Step(f"{prefix}{name}", name, why))
    for node in nodes:
        if is_builtin(node) and node.stage.name in LINE:
            while left_out and places[left_out[0].stage] < places[node.stage.name]:
                yield left_out.pop(0)
        yield Step(node.id, node.stage.name)
    yield from left_out
