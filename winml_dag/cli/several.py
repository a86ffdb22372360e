"""Several builds on the command line: planned together, and the lines and the JSON that are printed of each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from winml_dag.errors import WinmlDagError
from winml_dag.pipeline.build import Planned
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.planning import plan_or_refusal
from winml_dag.pipeline.request import Request
from winml_dag.pipeline.standing.surroundings import surroundings

if TYPE_CHECKING:
    from winml_dag.store.local import LocalStore


def planned_each(
    asked: Sequence[tuple[str, Request]], store: LocalStore, *, download: bool, needs_folder: bool = True
) -> tuple[Planned, ...]:
    """Plan each request, by its label; one that cannot be planned has an error in place of a graph."""
    # Read once for all: it is the same for each, and takes a third of the time of planning one.
    around = surroundings(time.time_ns())
    return tuple(
        Planned(label, plan_or_refusal(request, store, around, download=download, needs_folder=needs_folder))
        for label, request in asked
    )


def refuse_if_all_the_same(planned: Sequence[Planned]) -> None:
    """Raise the error of all of them where it is the same for each, so that it is printed once."""
    errors = {str(each.graph): each.graph for each in planned if isinstance(each.graph, WinmlDagError)}
    if len(errors) == 1 and not any(isinstance(each.graph, BuildGraph) for each in planned):
        raise next(iter(errors.values()))
