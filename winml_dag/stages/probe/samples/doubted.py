"""Samples that tables are in doubt about: what is measured next, when the first few thousand are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from winml_dag.ep.support.case import Level
from winml_dag.ep.support.table import SupportTable
from winml_dag.stages.probe.readback import case_of_model
from winml_dag.stages.probe.samples.every import Sample, drawn

_TRIES = 40
_APART = 10_000_019  # from the seeds of samples that are drawn without asking


def doubted(number: int, seed: int, tables: Sequence[SupportTable], folder: Path) -> Sample | None:
    """Of many samples that are drawn for *number*, the first that *tables* do not agree on or one does not know; the
    last where there is none. None where that is no model. *folder* is for files in between.
    """
    found = None
    for attempt in range(_TRIES):
        found = drawn(seed * _APART + number * _TRIES + attempt)
        if found is None:
            continue
        case = case_of_model(found.node.model().SerializeToString(), folder)
        levels = {table.verdict(case).level for table in tables}
        if len(levels) > 1 or Level.UNKNOWN in levels:
            break
    return found
