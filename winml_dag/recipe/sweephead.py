"""What a sweep's file says besides the keys of a recipe and the matrix: how it is called, and what it is for."""

from __future__ import annotations

from typing import Literal

from winml_dag.recipe.fields import ListOf, Section, Text
from winml_dag.recipe.goal import Goal, Search


class SweepHead(Section):
    """``folder``: a template of a cell's folder and name, in which the name of an axis in braces stands for the label
    of the value there; None: all labels, joined by ``/``. ``measure``: of each cell, once all are built.
    """

    name: Text | None = None
    output_dir: Text | None = None
    folder: Text | None = None
    measure: ListOf[Literal["perf", "eval"]] = ()
    search: Search | None = None


class OneGoal(SweepHead):
    goal: Goal | None = None

    @property
    def goals(self) -> tuple[Goal, ...]:
        return () if self.goal is None else (self.goal,)


class ManyGoals(SweepHead):
    goal: ListOf[Goal]

    @property
    def goals(self) -> tuple[Goal, ...]:
        return self.goal
