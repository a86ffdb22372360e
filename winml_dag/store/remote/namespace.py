"""What a run of CI may do with remotes, whatever their configuration says.

A pull request reads the namespace that is configured and writes at most one of its own, which no other run reads: else
its code could put there what the next build of the main branch takes for its own work. A branch writes only when
changes get to it by review.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from winml_dag.store.remote.cirun import BRANCHES_VARIABLE, CiRun, ci_run
from winml_dag.store.remote.settings import LevelSettings, Mode, RemoteSettings


def pull_namespace(number: int) -> str:
    """The namespace that pull request *number* may write."""
    return f"pull/{number}"


def allowed(settings: RemoteSettings, environment: Mapping[str, str]) -> tuple[RemoteSettings, str]:
    """What of *settings* this run may do, and a sentence on what it may not; empty when it may do all.

    Outside of CI, and in systems that we do not know, all stays as it is.
    """
    run = ci_run(environment)
    if run is None or run.is_trusted or not any(level.mode is Mode.READ_WRITE for level in settings.levels):
        return settings, ""
    levels = tuple(each for level in settings.levels for each in _levels(level, run))
    return replace(settings, levels=levels), _sentence(run)


def _levels(level: LevelSettings, run: CiRun) -> tuple[LevelSettings, ...]:
    if level.mode is not Mode.READ_WRITE:
        return (level,)
    shared = replace(level, mode=Mode.READ)
    if run.pull is None:
        return (shared,)
    # Its own is asked first: what it made itself is what it changed. What is shared already need not be there again.
    own = replace(level, namespace=pull_namespace(run.pull), trusted=None, is_back_filled=False)
    return own, shared


def _sentence(run: CiRun) -> str:
    if run.pull is not None:
        return f"This is {run.what}: what it makes is put into the namespace {pull_namespace(run.pull)} only."
    if run.what == "a pull request":
        return "This is a pull request without a number: nothing is put into remotes."
    return (
        f"{run.what[:1].upper()}{run.what[1:]} is not known to be protected: nothing is put into remotes."
        f" {BRANCHES_VARIABLE} may name branches that are."
    )
