"""From requests to their graphs: recalled where what is known of one stands, planned anew where not."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonValue
from winml_dag.ep.elsewhere import environment_elsewhere
from winml_dag.errors import InputError, WinmlDagError
from winml_dag.file_reading import reads_logged
from winml_dag.pipeline.request import Request

if TYPE_CHECKING:
    from winml_dag.pipeline.buildgraph import BuildGraph
    from winml_dag.pipeline.uptodate import CurrentPlan
    from winml_dag.pipeline.variant import Build, CompositeBuild
    from winml_dag.store.store import Store


def plan_request(
    request: Request,
    store: Store,
    *,
    download: bool,
    needs_folder: bool = True,
    current_plan: CurrentPlan | None = None,
    part: bool = False,
    around: Mapping[str, JsonValue] | None = None,
) -> BuildGraph:
    """The graph of the build that *request* means; *download* allows fetching a model from the hub.

    Without *needs_folder* a request that names no output folder is planned for one in the cache. *current_plan*: the
    cached plan, if it was looked up already. With *part* only the nodes that may have to run are returned, where these
    can be determined. *around*: the fingerprint of the environment, if it was taken before planning began.

    Raises:
        UsageError, InputError: as for :func:`winml_dag.pipeline.resolve.resolve`, and for sources that cannot be read.
    """
    from winml_dag.pipeline.uptodate import MALFORMED, check

    words = request.words
    current_plan = current_plan or (None if words is None else check(str(store.folder), words))
    if current_plan is not None:
        from winml_dag.pipeline.plan_text import recall

        # A source that is gone is missed, or done without, when it is looked for anew.
        with suppress(*MALFORMED, InputError):
            return recall(current_plan, store, part=part)
    from winml_dag.file_reading import FirstLooks
    from winml_dag.pipeline.uptodate import environment_fingerprint

    began_ns = time.time_ns()
    around = around or environment_fingerprint(began_ns)
    # Imported here: a plan that stands needs neither recipe nor declarations, which take 0.1 s to import.
    from winml_dag.pipeline.plan import plan_build
    from winml_dag.pipeline.resolve import build_of
    from winml_dag.pipeline.variant import OnlyDeclared

    looks = FirstLooks()
    with reads_logged(looks):
        if request.command is not None:
            from winml_dag.pipeline.onestage import build_of_one

            build: Build | CompositeBuild | OnlyDeclared = build_of_one(request, download=download)
        else:
            build = build_of(request, store.folder, download=download, needs_folder=needs_folder)
        planned = plan_build(build, store.fingerprints)
    if words is None or not (needs_folder or request.output_dir or request.command or request.use_cache):
        return planned
    if not isinstance(build, OnlyDeclared) and build.lacks:
        return planned  # nothing would tell that it has come, and who builds must hear of it
    if any(environment_elsewhere(node.environment) for node in planned.graph.nodes):
        return planned  # nothing here would tell what comes or goes on another machine
    from winml_dag.pipeline.plan_cache import Planning, note

    recipe = request.recipe if isinstance(request.recipe, Path) else None
    return replace(planned, current_plan=note(planned, store, Planning(words, recipe, began_ns, around, looks)))


@dataclass(frozen=True)
class Planned:
    """A build among others: how it is called, and its graph, or why there is none."""

    label: str
    graph: BuildGraph | WinmlDagError


def plan_each(
    asked: Iterable[tuple[str, Request]], store: Store, *, download: bool = True, needs_folder: bool = True
) -> tuple[Planned, ...]:
    """Plan each request, by its label; one that cannot be planned has an error in place of a graph."""
    from winml_dag.pipeline.uptodate import environment_fingerprint

    # Read once for all: it is the same for each, and takes a third of the time of planning one.
    environment = environment_fingerprint(time.time_ns())
    found = []
    for label, request in asked:
        try:
            graph: BuildGraph | WinmlDagError = plan_request(
                request, store, download=download, needs_folder=needs_folder, around=environment
            )
        except WinmlDagError as error:
            graph = error
        found.append(Planned(label, graph))
    return tuple(found)


def refuse_if_all_the_same(planned: Sequence[Planned]) -> None:
    """Raise the error of all of them where it is the same for each, so that it is printed once."""
    errors = [each.graph for each in planned if isinstance(each.graph, WinmlDagError)]
    if len(errors) == len(planned) and len({str(error) for error in errors}) == 1:
        raise errors[0]
