"""What a sweep is for, once its cells are there: the winner of each goal, put where it is to be shipped from.

Pure but for :func:`pursue_goals`: what a cell is like is read from its folder and its measurements, and a winner
follows from that alone, so that the same cells always have the same winner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.pipeline.sweep.measuring import Running
from winml_dag.pipeline.sweep.result import CellResult, GoalResult

if TYPE_CHECKING:
    from winml_dag.pipeline.request import Request
    from winml_dag.recipe.sweep import Cell, Sweep


@dataclass(frozen=True)
class Means:
    """What it takes to pursue goals, from who runs the sweep.

    Attributes:
        folder: that of the sweep, which folders of cells and winners lie in.
        request: what builds a cell, with the options of this run.
        carry_out: builds and measures further cells as those of the sweep are, and gives a result for each, in order.
        put: brings a folder up to date with what a cell builds, all of which is known; raises WinmlDagError.
        running: how graphs are carried out besides the builds.
    """

    folder: Path
    request: Callable[[Cell], Request]
    carry_out: Callable[[Sequence[Cell]], Sequence[CellResult]]
    put: Callable[[Cell, Path], None]
    running: Running


@dataclass(frozen=True)
class Pursued:
    """The results of all goals, and the cells that were added in search of better ones."""

    goals: tuple[GoalResult, ...]
    trials: tuple[CellResult, ...] = ()


def pursue_goals(sweep: Sweep, results: Sequence[CellResult], means: Means) -> Pursued:
    """The winners among *results*, which are of the cells of *sweep*, by each of its goals; where it asks for a search,
    among further cells too. Winners are put in place.

    Raises:
        KeyboardInterrupt: after children have been ended.
    """
    raise NotImplementedError
