"""Turn a build into one graph of stages with digested sources.

It is the line of built-in stages (:mod:`winml_dag.pipeline.line`), or one line per component after a shared export.
Stages that a recipe declares are nodes of the same graph; see :mod:`winml_dag.pipeline.userstages.plan`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from winml_dag.engine.graph import Cycle, Graph
from winml_dag.engine.stage import Node, Skip, Source
from winml_dag.ep.availability import environments_behind
from winml_dag.pipeline.buildgraph import BuildGraph, Step, prefixed
from winml_dag.pipeline.layout import RANGES, is_builtin, reserved
from winml_dag.pipeline.line import Line, id_of
from winml_dag.pipeline.model import Known
from winml_dag.pipeline.resolved import Build, BuiltIn, Declared, UserPlan
from winml_dag.stages.builtin import LINE
from winml_dag.stages.export import export_stage
from winml_dag.store.artifact import Artifact
from winml_dag.store.digest import Fingerprints


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

    builtin = {name: BuiltIn(stage, id_of(build, name), _skipped_because(build, name)) for name, stage in LINE.items()}
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
