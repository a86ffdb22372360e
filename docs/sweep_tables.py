"""The tables of ``docs/reference/sweep.md``, from the schema of a sweep's own keys, of its goals and of its search."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel
from recipe_fields import Meaning
from recipe_tables import fields_table

from winml_dag.recipe.goal import Goal, Search
from winml_dag.recipe.matrix import OneGoal

_HEAD = {
    "name": Meaning("What the sweep is called. Left out: the name of its file."),
    "output_dir": Meaning("The folder that the cells' folders go below, relative to the file. `-o` wins over it."),
    "folder": Meaning(
        "A template of a cell's folder, which is also its name: `{model}` stands for the label on that axis. Left out: "
        "all labels, joined by `/`."
    ),
    "measure": Meaning(
        "What is measured of each cell once all are built: `perf`, `eval`. The sections of these names say how."
    ),
    "search": Meaning("Search for mixed precision where a goal is missed: [search](#search)."),
    "goal": Meaning("What the winner is chosen by: [goal](#goal), or a list of goals."),
}
_GOAL = {
    "minimize": Meaning("What is best when it is least."),
    "subject_to": Meaning(
        'Bounds by measure, such as `{cosine: ">=0.99", accuracy_drop: "<=0.01"}`:'
        " [all measures](../how-to/choose-by-goal.md#what-can-be-asked-for)."
    ),
    "per": Meaning(
        "The axes that there is a winner for each value of. Left out: those that change the model or the target."
    ),
    "folder": Meaning("A template of the folder that the winner is put into. Left out: `best/`, and those values."),
}
_SEARCH = {
    "method": Meaning("`bisect` looks for the fewest nodes by doubling and halving, `all` tries every number."),
    "keep": Meaning(
        "In what the worst nodes are kept. `auto`: in 16 bits where the provider mixes widths, and in float where that"
        " is not enough."
    ),
    "most_trials": Meaning("For each cell that is searched. Left out: as many as it takes."),
    "nodes_at_most": Meaning("That are kept. Left out: all but one."),
}


def sweep_head() -> str:
    """The keys that only a sweep has, besides those that say which cells it has."""
    return _of(OneGoal, _HEAD)


def goal() -> str:
    """The fields of a goal."""
    return _of(Goal, _GOAL)


def search() -> str:
    """The fields of a search."""
    return _of(Search, _SEARCH)


def _of(kind: type[BaseModel], meanings: Mapping[str, Meaning]) -> str:
    fields = kind.model_json_schema()["properties"]
    if differing := fields.keys() ^ meanings.keys():
        raise ValueError(f"docs/sweep_tables.py and {kind.__name__} differ in: {', '.join(sorted(differing))}")
    return fields_table(fields, meanings)
