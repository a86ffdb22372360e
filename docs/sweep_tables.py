"""The tables of ``docs/reference/sweep.md``, from the schema of a sweep's own keys, of its goals and of its search."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel
from recipe_fields import Meaning
from recipe_tables import fields_table

from winml_dag.recipe.goal import Goal, Search
from winml_dag.recipe.matrix import OneGoal

_HEAD = {
    "name": Meaning("Name of the sweep. Default: the name of its file."),
    "output_dir": Meaning("Folder of the cells' folders, relative to the file. `-o` wins."),
    "folder": Meaning(
        "Template of a cell's folder, which is also its name: `{model}` is the label on that axis. Default: all "
        "labels, joined by `/`."
    ),
    "measure": Meaning(
        "What to measure of each cell after building: `perf`, `eval`, with the settings in the sections of these names."
    ),
    "search": Meaning("Search for mixed precision if a goal is missed: [search](#search)."),
    "goal": Meaning("How the winner is chosen: [goal](#goal), or a list of goals."),
}
_GOAL = {
    "minimize": Meaning("What to minimize."),
    "subject_to": Meaning(
        'Bounds by measure, such as `{cosine: ">=0.99", accuracy_drop: "<=0.01"}`:'
        " [all measures](../how-to/sweeps.md#bounds)."
    ),
    "per": Meaning("One winner per value of these axes. Default: those that change the model or the target."),
    "folder": Meaning("Template of the winner's folder. Default: `best/` and those values."),
}
_SEARCH = {
    "method": Meaning("`bisect` finds the fewest nodes by doubling and halving, `all` tries every number."),
    "keep": Meaning(
        "Type of the kept nodes. `auto`: 16 bits where the provider mixes widths, and float where that is not enough."
    ),
    "most_trials": Meaning("Limit per cell that is searched. Default: none."),
    "nodes_at_most": Meaning("Most nodes to keep. Default: all but one."),
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
