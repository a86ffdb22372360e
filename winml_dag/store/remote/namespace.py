"""What a run of CI may do with remotes, whatever their configuration says.

A pull request reads the configured namespace and writes at most one of its own, which no other run reads. Otherwise
its code could put there what the next build of the main branch takes for its own work. A branch writes only if changes
get to it by review.

What runs is read from the environment, which whoever can edit a workflow can set. So this keeps honest runs where they
belong. Protection from others is the task of credentials and keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TypeAlias

from winml_dag.store.remote.settings import Mode, RemoteSettings, TierSettings

_PULL = "pull"
BRANCHES_VARIABLE = "WINML_DAG_REMOTE_BRANCHES"
# Events that run the code of the branch that they name. Others, such as pull_request_target, workflow_run and
# issue_comment, name the default branch and may run anybody's code.
_OWN_EVENTS = {"push", "schedule", "workflow_dispatch", "repository_dispatch"}
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")

# The value of a variable, empty when it is not set.
_Said: TypeAlias = Callable[[str], str]


def pull_namespace(number: int) -> str:
    """The namespace that pull request *number* may write."""
    return f"{_PULL}/{number}"


def is_of_pull(namespace: str) -> bool:
    """Whether some pull request may write *namespace*."""
    return namespace.partition("/")[0] == _PULL


def allowed(settings: RemoteSettings, environment: Mapping[str, str]) -> tuple[RemoteSettings, str]:
    """What of *settings* this run may do, and a sentence on what it may not; empty when it may do all, as outside of CI
    and in unknown CI systems.
    """
    run = _run(environment)
    if run is None or run.is_trusted or not any(level.mode is Mode.READ_WRITE for level in settings.levels):
        return settings, ""
    levels = tuple(each for level in settings.levels for each in _levels(level, run))
    return replace(settings, levels=levels), _sentence(run)


@dataclass(frozen=True)
class _Run:
    """What runs in CI.

    Attributes:
        is_pull: whether it is the code of a pull request.
        pull: its number; None when the system does not say.
        what: for messages, such as ``the branch main``; empty for a pull request.
        is_trusted: whether it is the code of a branch that only reviewed changes get to.
    """

    is_pull: bool
    pull: int | None = None
    what: str = ""
    is_trusted: bool = False


def _run(environment: Mapping[str, str]) -> _Run | None:
    """What runs here; None outside of the known CI systems."""

    def said(name: str) -> str:
        return environment.get(name, "").strip()

    return next((read(said) for variable, read in _SYSTEMS.items() if said(variable)), None)


def _github(said: _Said) -> _Run:
    event, ref = said("GITHUB_EVENT_NAME"), said("GITHUB_REF")
    if ref.startswith("refs/pull/") or event.startswith("pull_request"):
        return _Run(True, _number_in(ref))
    if event not in _OWN_EVENTS:
        return _Run(False, what=f"the event {event}")
    return _branch(said, _name(ref), is_protected=said("GITHUB_REF_PROTECTED") == "true")


def _azure(said: _Said) -> _Run:
    ref, reason = said("BUILD_SOURCEBRANCH"), said("BUILD_REASON")
    # If the code is on GitHub, people see GitHub's number, else Azure's own.
    number = said("SYSTEM_PULLREQUEST_PULLREQUESTNUMBER") or said("SYSTEM_PULLREQUEST_PULLREQUESTID")
    if reason == "PullRequest" or number or ref.startswith("refs/pull/"):
        return _Run(True, _number(number) or _number_in(ref))
    # Azure does not say which branches have policies.
    return _branch(said, _name(ref), is_protected=_name(ref) in ("main", "master"))


def _gitlab(said: _Said) -> _Run:
    number = said("CI_MERGE_REQUEST_IID") or said("CI_EXTERNAL_PULL_REQUEST_IID")
    if number or said("CI_PIPELINE_SOURCE") in ("merge_request_event", "external_pull_request_event"):
        return _Run(True, _number(number))
    return _branch(said, said("CI_COMMIT_BRANCH"), is_protected=said("CI_COMMIT_REF_PROTECTED") == "true")


def _branch(said: _Said, name: str, *, is_protected: bool) -> _Run:
    if not name:
        return _Run(False, what="what is no branch")
    if named := said(BRANCHES_VARIABLE):
        is_protected = any(fnmatchcase(name, each) for each in named.replace(",", " ").split())
    return _Run(False, what=f"the branch {name}", is_trusted=is_protected)


def _name(ref: str) -> str:
    return ref.removeprefix("refs/heads/") if ref.startswith("refs/heads/") else ""


def _number_in(ref: str) -> int | None:
    return _number(ref.removeprefix("refs/pull/").partition("/")[0])


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


# By a variable that each of them always sets, and nothing else does.
_SYSTEMS: dict[str, Callable[[_Said], _Run]] = {"GITHUB_ACTIONS": _github, "TF_BUILD": _azure, "GITLAB_CI": _gitlab}


def _levels(level: TierSettings, run: _Run) -> tuple[TierSettings, ...]:
    if level.mode is not Mode.READ_WRITE:
        return (level,)
    shared = replace(level, mode=Mode.READ)
    if run.pull is None:
        return (shared,)
    # Its own is asked first: it has what the pull request changed. What is shared already is not copied there.
    own = replace(level, namespace=pull_namespace(run.pull), trusted=None, is_back_filled=False)
    return own, shared


def _sentence(run: _Run) -> str:
    if run.pull is not None:
        return (
            f"This is pull request {run.pull}: what it makes is put into the namespace {pull_namespace(run.pull)} only."
        )
    if run.is_pull:
        return "This is a pull request without a number: nothing is put into remotes."
    return (
        f"{run.what[:1].upper()}{run.what[1:]} is not known to be protected: nothing is put into remotes."
        f" {BRANCHES_VARIABLE} may name branches that are."
    )
