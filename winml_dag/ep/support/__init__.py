"""Measured operator support, for execution providers that are not installed: cases, verdicts, and their tables.

This file locates the tables.
"""

from __future__ import annotations

import os
from pathlib import Path

from winml_dag.configuration import RULES_VARIABLE, SUPPORT_VARIABLE, config_file, expanded
from winml_dag.ep.registry import Target
from winml_dag.errors import UsageError

SUFFIX = ".support"
# The suffix of winml-cli's tables.
RULES_SUFFIX = ".parquet"
_FOLDER = "support"  # next to the user's configuration file
_SHIPPED = Path(__file__).parent / "shipped"


def table_name(target: Target) -> str:
    """Return the file name of the table of *target*, such as ``qnn_npu.support``."""
    return f"{target.ep.alias}_{target.device}{SUFFIX}"


def table_files(target: Target, *, asks: bool = False) -> tuple[Path, ...]:
    """Return the existing tables of *target*, the user's own first. Raises as :func:`table_paths` does."""
    return tuple(path for path in table_paths(target, asks=asks) if path.is_file())


def table_paths(target: Target, *, asks: bool = False) -> tuple[Path, ...]:
    """Return the possible paths of tables of *target*, the user's own first, those of winml-cli last.

    *asks*: whether the provider itself is asked. Then only the user's own table, which wins over its answer, counts.

    Raises:
        UsageError: WINML_DAG_SUPPORT_DIR or WINMLCLI_RULES_DIR does not name a folder.
    """
    own = _own_folder() / table_name(target)
    return (own,) if asks else (own, _SHIPPED / table_name(target), *rule_files(target))


def rule_files(target: Target) -> tuple[Path, ...]:
    """Return the files for *target* in the folder of WINMLCLI_RULES_DIR; none without that variable.

    Raises as :func:`rule_folder` does.
    """
    folder = rule_folder(target)
    return () if folder is None else tuple(sorted(folder.glob(f"*{RULES_SUFFIX}")))


def rule_folder(target: Target) -> Path | None:
    """Return the folder of the files for *target*, whether it exists or not, in the one of WINMLCLI_RULES_DIR.

    Raises:
        UsageError: the variable does not name a folder.
    """
    named = os.environ.get(RULES_VARIABLE)
    if not named:
        return None
    folder = expanded(named)
    if not folder.is_dir():
        raise UsageError(f"{RULES_VARIABLE} names {folder}, which is not a folder.", advice="Correct the variable.")
    return folder / f"{target.ep.name}_{target.device.upper()}"


def _own_folder() -> Path:
    named = os.environ.get(SUPPORT_VARIABLE)
    if not named:
        return config_file().parent / _FOLDER
    folder = expanded(named)
    if not folder.is_dir():
        raise UsageError(
            f"{SUPPORT_VARIABLE} names {folder}, which is not a folder.", advice="Make it, or correct the variable."
        )
    return folder
