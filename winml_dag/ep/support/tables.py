"""Which tables there are for a target, and several of them asked as one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from winml_dag.ep.configuration import SUPPORT_VARIABLE, config_file, expanded
from winml_dag.ep.registry import Target
from winml_dag.ep.support.case import Case
from winml_dag.ep.support.table import SupportTable, read_table
from winml_dag.ep.support.verdict import Level, Verdict
from winml_dag.ep.support.winmlcli import SUFFIX as RULES_SUFFIX
from winml_dag.ep.support.winmlcli import WinmlCliRules, rule_files
from winml_dag.errors import UsageError

_SHIPPED = Path(__file__).parent / "shipped"
_SUFFIX = ".support"
_FOLDER = "support"  # beside the user's configuration file


# The domain of what is no operator but a pattern of several.
PATTERN = "SUBGRAPH"


class Rules(Protocol):
    """What can be asked about a case."""

    def verdict(self, case: Case) -> Verdict: ...


class Support:
    """Several tables: the first that knows a case counts."""

    def __init__(self, tables: Sequence[Rules]) -> None:
        self._tables = tables

    def verdict(self, case: Case) -> Verdict:
        """What is known of *case*; where nothing is, the reason of the first table."""
        first: Verdict | None = None
        for table in self._tables:
            found = table.verdict(case)
            if found.level is not Level.UNKNOWN:
                return found
            first = first or found
        return first or Verdict(Level.UNKNOWN, "there is no table of support for this execution provider and device")


def table_name(target: Target) -> str:
    """The name of the file that has the table of *target*, such as ``qnn_npu.support``."""
    return f"{target.ep.alias}_{target.device}{_SUFFIX}"


def patterns_name(target: Target) -> str:
    """The name of the file with the patterns that *target* takes as a whole, such as ``qnn_npu_patterns.support``."""
    return f"{target.ep.alias}_{target.device}_patterns{_SUFFIX}"


def table_files(target: Target) -> tuple[Path, ...]:
    """The tables of *target* that there are, the user's own first. Raises as :func:`table_places` does."""
    return tuple(path for path in table_places(target) if path.is_file())


def table_places(target: Target) -> tuple[Path, ...]:
    """Where tables of *target* are looked for, the user's own first, those of winml-cli last.

    Raises:
        UsageError: when WINML_DAG_SUPPORT_DIR or WINMLCLI_RULES_DIR names no folder.
    """
    names = (table_name(target), patterns_name(target))
    own = tuple(folder / name for name in names for folder in (_own_folder(), _SHIPPED))
    return (*own, *rule_files(target))


def read_support(folder: Path) -> tuple[list[SupportTable], Support]:
    """The tables in *folder*, in the order of their names, and these and winml-cli's asked as one.

    Raises:
        InputError: when a table is damaged or of another format.
    """
    tables = [read_table(path) for path in sorted(folder.rglob(f"*{_SUFFIX}"))]
    files = list(folder.rglob(f"*{RULES_SUFFIX}"))
    return tables, Support([*tables, *([WinmlCliRules(files)] if files else [])])


def _own_folder() -> Path:
    named = os.environ.get(SUPPORT_VARIABLE)
    if not named:
        return config_file().parent / _FOLDER
    folder = expanded(named)
    if not folder.is_dir():
        raise UsageError(
            f"{SUPPORT_VARIABLE} names {folder}, which is no folder.", advice="Make it, or correct the variable."
        )
    return folder
