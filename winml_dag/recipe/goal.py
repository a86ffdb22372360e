"""What a sweep is for: which of its cells is best, under which bounds, and how a better one is searched for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from winml_dag.recipe.fields import Count, ListOf, MapOf, Section, Text


class Goal(Section):
    """The winner among cells that differ only in what is chosen. ``subject_to``: bounds such as ``">=0.99"`` by the
    name of a measure. ``per``: the axes that a winner is named for each value of; None: of the model and the target.
    ``folder``: a template of the folder that the winner is put into.
    """

    minimize: Literal["latency", "size"]
    subject_to: MapOf[Text] = Field(default_factory=dict)
    per: ListOf[Text] | None = None
    folder: Text | None = None


class Search(Section):
    """Per-layer mixed precision where no cell meets the bounds of a goal. ``most_trials``, ``nodes_at_most`` None: as
    many as it takes.
    """

    method: Literal["bisect", "all"] = "bisect"
    most_trials: Count | None = None
    nodes_at_most: Count | None = None
