"""What CI says of the run that we are part of: read from environment variables, which are text that may be missing.

Whoever can edit a workflow can set them. So what follows from this keeps honest runs where they belong, and is no
protection from others: that is what credentials and keys are for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

BRANCHES_VARIABLE = "WINML_DAG_REMOTE_BRANCHES"
# Those whose code is that of the branch. Of others, such as pull_request_target, workflow_run and issue_comment, the
# branch is the default one, and the code that runs may be anybody's.
_OWN_EVENTS = {"push", "schedule", "workflow_dispatch", "repository_dispatch"}
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class CiRun:
    """One run of CI.

    Attributes:
        system: what runs it, ``GitHub Actions``.
        pull: the number of the pull request whose code runs; None when it is none, or nobody says which.
        is_trusted: whether what runs is the code of a branch that only reviewed changes get to.
        what: what runs, for messages, ``pull request 12`` or ``the branch main``.
        address: of the run; empty when nobody says.
        revision: the commit; empty when nobody says.
    """

    system: str
    pull: int | None
    is_trusted: bool
    what: str
    address: str = ""
    revision: str = ""


def ci_run(environment: Mapping[str, str]) -> CiRun | None:
    """The run that this is; None when no system that we know is at work."""

    def said(name: str) -> str:
        return environment.get(name, "").strip()

    for variable, read in _SYSTEMS.items():
        if said(variable):
            return read(said)
    return None


_Said = Callable[[str], str]


def _github(said: _Said) -> CiRun:
    event, ref = said("GITHUB_EVENT_NAME"), said("GITHUB_REF")
    pull = _number(ref.removeprefix("refs/pull/").partition("/")[0]) if ref.startswith("refs/pull/") else None
    run = f"{said('GITHUB_SERVER_URL')}/{said('GITHUB_REPOSITORY')}/actions/runs/{said('GITHUB_RUN_ID')}"
    return _run(
        "GitHub Actions",
        is_pull=ref.startswith("refs/pull/") or event.startswith("pull_request"),
        pull=pull,
        is_own=event in _OWN_EVENTS,
        event=event,
        branch=_branch(ref),
        is_protected=said("GITHUB_REF_PROTECTED") == "true",
        branches=said(BRANCHES_VARIABLE),
        address=run if said("GITHUB_RUN_ID") else "",
        revision=said("GITHUB_SHA"),
    )


def _azure(said: _Said) -> CiRun:
    ref, reason = said("BUILD_SOURCEBRANCH"), said("BUILD_REASON")
    # The number that people see is that of GitHub where the code is there, else Azure's own.
    number = said("SYSTEM_PULLREQUEST_PULLREQUESTNUMBER") or said("SYSTEM_PULLREQUEST_PULLREQUESTID")
    run = f"{said('SYSTEM_COLLECTIONURI')}{said('SYSTEM_TEAMPROJECT')}/_build/results?buildId={said('BUILD_BUILDID')}"
    return _run(
        "Azure Pipelines",
        is_pull=reason == "PullRequest" or bool(number) or ref.startswith("refs/pull/"),
        pull=_number(number or ref.removeprefix("refs/pull/").partition("/")[0]),
        is_own=True,
        event=reason,
        branch=_branch(ref),
        # Azure does not say which branches have policies.
        is_protected=_branch(ref) in ("main", "master"),
        branches=said(BRANCHES_VARIABLE),
        address=run if said("BUILD_BUILDID") else "",
        revision=said("BUILD_SOURCEVERSION"),
    )


def _gitlab(said: _Said) -> CiRun:
    number = said("CI_MERGE_REQUEST_IID")
    return _run(
        "GitLab CI",
        is_pull=bool(number) or said("CI_PIPELINE_SOURCE") in ("merge_request_event", "external_pull_request_event"),
        pull=_number(number or said("CI_EXTERNAL_PULL_REQUEST_IID")),
        is_own=True,
        event=said("CI_PIPELINE_SOURCE"),
        branch=said("CI_COMMIT_BRANCH"),
        is_protected=said("CI_COMMIT_REF_PROTECTED") == "true",
        branches=said(BRANCHES_VARIABLE),
        address=said("CI_JOB_URL"),
        revision=said("CI_COMMIT_SHA"),
    )


def _run(
    system: str, *, is_pull: bool, pull: int | None, is_own: bool, event: str, branch: str, is_protected: bool,
    branches: str, address: str, revision: str,
) -> CiRun:  # fmt: skip
    if is_pull:
        what = "a pull request" if pull is None else f"pull request {pull}"
        return CiRun(system, pull, False, what, address, revision)
    if branches:
        is_protected = any(fnmatchcase(branch, each) for each in branches.replace(",", " ").split())
    what = f"the branch {branch}" if branch else f"the event {event}"
    if branch and not is_own:
        what = f"the event {event}"
    return CiRun(system, None, bool(branch) and is_own and is_protected, what, address, revision)


def _branch(ref: str) -> str:
    return ref.removeprefix("refs/heads/") if ref.startswith("refs/heads/") else ""


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


# By the variable that each of them sets always, and nobody else.
_SYSTEMS: dict[str, Callable[[_Said], CiRun]] = {"GITHUB_ACTIONS": _github, "TF_BUILD": _azure, "GITLAB_CI": _gitlab}
