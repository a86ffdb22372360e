"""Sweeps from Python: the same as on the command line, with the same files and cache."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from winml_dag.api.arguments import HOW, CommonArguments, driver_of, only_known, remote_of
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.sweep.cells import Selection
from winml_dag.pipeline.sweep.result import SweepResult
from winml_dag.pipeline.sweep.run import SilentWatcher, SweepRun, Watcher, run_sweep


class SweepArguments(CommonArguments, total=False):
    """Additional arguments of :func:`build_sweep`, the same as on the command line.

    ``filters``, ``shard`` and ``retry_failed`` choose cells. ``keep_going`` is true by default.
    ``stage_timeout_seconds`` limits each stage, ``memory_bytes`` the memory of all stages that run at once. ``watcher``
    receives a callback for every stage and cell. All other arguments apply to every cell.
    """

    filters: Sequence[str]
    shard: str | None
    retry_failed: bool
    keep_going: bool
    stage_timeout_seconds: float | None
    memory_bytes: int | None
    watcher: Watcher | None
    random_weights: bool
    trust_remote_code: bool


# Arguments that say how to build. All others say what to build.
_HOW = (
    *HOW,
    "filters",
    "shard",
    "retry_failed",
    "keep_going",
    "stage_timeout_seconds",
    "memory_bytes",
    "watcher",
)


# Options without a ``--no-`` form on the command line.
_FLAGS = frozenset({"allow_unsupported_nodes", "random_weights", "trust_remote_code", "final_only"})


@only_known
def build_sweep(
    config: str | Path | Sequence[str | Path],
    output_dir: str | Path | None = None,
    **arguments: Unpack[SweepArguments],
) -> SweepResult:
    """Build all cells of the sweep *config* into *output_dir*, measure them and pursue the goals of the sweep.

    *config* is a sweep, or several recipes, a folder or a pattern of them. *output_dir* is by default the recipe's.
    Returns the contents of ``sweep.json``: failed cells are reported there and raise nothing.

    Raises:
        RecipeError, UsageError, InputError, StoreError: as their names say, when nothing can be started.
    """
    named = [Path(config)] if isinstance(config, str | os.PathLike) else [Path(each) for each in config]
    what: dict[str, Any] = {name: value for name, value in arguments.items() if name not in _HOW}
    remote = remote_of(arguments, next(iter(named), None))
    folder = None if output_dir is None else Path(output_dir)
    request = Request(None, Overrides(**what), folder, remote=remote, final_only=arguments.get("final_only", False))
    selection = Selection(
        tuple(arguments.get("filters", ())), arguments.get("shard"), arguments.get("retry_failed", False)
    )
    told = {name: arguments.get(name) for name in ("remote", "remote_mode", "final_only")}
    asked = SweepRun.of(named, request, selection, _command({**what, **told}, named, folder))
    watcher = arguments.get("watcher") or SilentWatcher()
    with driver_of({"keep_going": True, **arguments}, remote) as driver:
        return run_sweep(asked, driver.store, driver.options, watcher).result


def _command(arguments: Mapping[str, object], named: Sequence[Path], folder: Path | None) -> str:
    """What builds the same on the command line, whose options have the names of *arguments*."""
    from winml_dag.store.remote.settings import shown

    words = [word for path in named for word in ("-c", str(path))]
    words += [] if folder is None else ["-o", str(folder)]
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            # An option without a ``--no-`` form is off when omitted.
            words += [f"--{option}"] if value else [] if name in _FLAGS else [f"--no-{option}"]
        elif value is not None:
            several = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
            # The command is written to files, so it must not contain a password.
            words += [
                word
                for each in several
                for word in (f"--{option}", shown(str(each)) if name == "remote" else str(each))
            ]
    return shlex.join(("winml-dag", "build", *words))
