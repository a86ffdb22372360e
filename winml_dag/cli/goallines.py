"""What is told of the goals of a sweep when a run has ended: winners, and what searches for mixed precision came to."""

from __future__ import annotations

from collections.abc import Iterator

from winml_dag.pipeline.sweep.result import GoalResult, SearchResult

_MOST_NODES = 8


def goal_lines(goal: GoalResult) -> Iterator[str]:
    """One line for the winner or for why there is none, and one for its search."""
    of = ", ".join(f"{axis} {label}" for axis, label in goal.group.items())
    which = f"smallest {goal.minimize}" if goal.minimize != "size" else "smallest"
    whose = f"{f' of {of}' if of else ''} ({which})"
    if goal.pending:
        yield f"note: no winner{whose} yet: {goal.why}."
    elif goal.winner is None:
        yield f"error: no winner{whose}: {goal.why}."
    elif goal.folder is None:
        yield f"error: the winner{whose} is {goal.winner}, but {goal.why}"
    else:
        yield f"winner{whose}: {goal.winner}, in {goal.folder}{_but(goal)}"
    if goal.search is not None:
        yield from _search_lines(goal.search)


def _but(goal: GoalResult) -> str:
    return f"; {goal.why}" if goal.why else ""


def _search_lines(search: SearchResult) -> Iterator[str]:
    what = f"of {search.cell}, " if search.cell else ""
    yield f"  search: {what}{search.why}"
    if search.nodes:
        names = search.nodes[:_MOST_NODES]
        more = len(search.nodes) - len(names)
        yield f"    {', '.join(names)}{f' and {more} more' if more else ''}"
