"""What a CI system says of a run: which it is, and what it may write to remotes.

In CI a pull request reads the configured namespace and writes at most one of its own, which no other run reads.
Otherwise its code could put there what the next build of the main branch takes for its own work. A branch writes only
if changes get to it by review. The run is identified by environment variables, which anyone who can edit a workflow can
set, so this keeps honest runs where they belong. Protection from others is the task of credentials and keys.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote, urlsplit, urlunsplit

if TYPE_CHECKING:
    from winml_dag.store.remote.settings import RemoteSettings, TierSettings

BRANCHES_VARIABLE = "WINML_DAG_REMOTE_BRANCHES"
_PULL = "pull"
# Events that run the code of the branch that they name. Others, such as pull_request_target, workflow_run and
# issue_comment, name the default branch and may run anybody's code.
_OWN_EVENTS = {"push", "schedule", "workflow_dispatch", "repository_dispatch"}
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")

# The environment, in which a variable that is not set is empty.
_Variables: TypeAlias = Mapping[str, str]
# Why a CI run may not write what is shared, and the number of the pull request whose own namespace it may write.
_Restriction: TypeAlias = tuple[str, int | None]


@dataclass(frozen=True)
class CiRun:
    """A run of a CI system, according to its environment variables.

    It has only URLs and a commit, no secrets: credentials before the ``@`` of a URL are removed.

    Attributes:
        builder: the URL of what executes the run: a workflow, a pipeline, a runner.
        run: the URL of this run.
        repository: the URL of the repository; ``revision``: its commit. Both are empty if the system does not report
            them.
    """

    builder: str
    run: str
    repository: str = ""
    revision: str = ""


def ci_run(environment: Mapping[str, str] | None = None) -> CiRun | None:
    """Return the run of GitHub Actions (and compatible systems), Azure Pipelines or GitLab; None outside of these."""
    env = _variables(os.environ if environment is None else environment)
    found = (find(env) for marker, (find, _) in _SYSTEMS.items() if env[marker].casefold() == "true")
    return next(filter(None, found), None)


def _github_run(env: _Variables) -> CiRun | None:
    repository = _below(env["GITHUB_SERVER_URL"], env["GITHUB_REPOSITORY"])
    if not repository:
        return None
    run, attempt = env["GITHUB_RUN_ID"], (env["GITHUB_RUN_ATTEMPT"] or "1")
    workflow = _below(env["GITHUB_SERVER_URL"], env["GITHUB_WORKFLOW_REF"])
    return CiRun(
        workflow or f"{repository}/actions",
        f"{repository}/actions/runs/{run}/attempts/{attempt}",
        repository,
        env["GITHUB_SHA"],
    )


def _azure_run(env: _Variables) -> CiRun | None:
    project = _below(env["SYSTEM_COLLECTIONURI"], env["SYSTEM_TEAMPROJECT"])
    if not project:
        return None
    return CiRun(
        f"{project}/_build?definitionId={env['SYSTEM_DEFINITIONID']}",
        f"{project}/_build/results?buildId={env['BUILD_BUILDID']}",
        _without_user(env["BUILD_REPOSITORY_URI"]),
        env["BUILD_SOURCEVERSION"],
    )


def _gitlab_run(env: _Variables) -> CiRun | None:
    project = _without_user(env["CI_PROJECT_URL"])
    if not project:
        return None
    runner = env["CI_RUNNER_ID"]
    return CiRun(
        f"{project}/-/runners/{runner}" if runner else project,
        _without_user(env["CI_JOB_URL"]) or project,
        project,
        env["CI_COMMIT_SHA"],
    )


def _below(address: str, path: str) -> str:
    """Return *path* below *address*; empty if either is empty."""
    return f"{_without_user(address).rstrip('/')}/{quote(path, safe='/@')}" if address and path else ""


def _without_user(address: str) -> str:
    """Return *address* without credentials."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def is_of_pull(namespace: str) -> bool:
    """Whether a pull request may write *namespace*."""
    return namespace.partition("/")[0] == _PULL


def allowed(settings: RemoteSettings, environment: Mapping[str, str]) -> tuple[RemoteSettings, str]:
    """The part of *settings* that this run may use, and a sentence on the restriction; empty without one, as outside of
    CI and in unknown CI systems.
    """
    # Imported here, as below: the manifest of a build without remotes names its run.
    from winml_dag.store.remote.settings import Mode

    env = _variables(environment)
    restriction = next((find(env) for marker, (_, find) in _SYSTEMS.items() if env[marker]), None)
    if restriction is None or not any(tier.mode is Mode.READ_WRITE for tier in settings.tiers):
        return settings, ""
    sentence, pull = restriction
    tiers = tuple(each for tier in settings.tiers for each in _restrict(tier, pull))
    return replace(settings, tiers=tiers), sentence


def _restrict(tier: TierSettings, pull: int | None) -> tuple[TierSettings, ...]:
    from winml_dag.store.remote.settings import Mode

    if tier.mode is not Mode.READ_WRITE:
        return (tier,)
    shared = replace(tier, mode=Mode.READ)
    if pull is None:
        return (shared,)
    # Its own is asked first: it has what the pull request changed. What is shared already is not copied there.
    own = replace(tier, namespace=f"{_PULL}/{pull}", trusted=None, is_back_filled=False)
    return own, shared


def _github(env: _Variables) -> _Restriction | None:
    event, ref = env["GITHUB_EVENT_NAME"], env["GITHUB_REF"]
    if ref.startswith("refs/pull/") or event.startswith("pull_request"):
        return _pull_request(_number_in(ref))
    if event not in _OWN_EVENTS:
        return _unprotected(f"The event {event}")
    return _branch(env, _branch_in(ref), is_protected=env["GITHUB_REF_PROTECTED"] == "true")


def _azure(env: _Variables) -> _Restriction | None:
    ref, reason = env["BUILD_SOURCEBRANCH"], env["BUILD_REASON"]
    # If the code is on GitHub, people see GitHub's number, else Azure's own.
    number = env["SYSTEM_PULLREQUEST_PULLREQUESTNUMBER"] or env["SYSTEM_PULLREQUEST_PULLREQUESTID"]
    if reason == "PullRequest" or number or ref.startswith("refs/pull/"):
        return _pull_request(_number(number) or _number_in(ref))
    # Azure does not report which branches have policies.
    return _branch(env, _branch_in(ref), is_protected=_branch_in(ref) in ("main", "master"))


def _gitlab(env: _Variables) -> _Restriction | None:
    number = env["CI_MERGE_REQUEST_IID"] or env["CI_EXTERNAL_PULL_REQUEST_IID"]
    if number or env["CI_PIPELINE_SOURCE"] in ("merge_request_event", "external_pull_request_event"):
        return _pull_request(_number(number))
    return _branch(env, env["CI_COMMIT_BRANCH"], is_protected=env["CI_COMMIT_REF_PROTECTED"] == "true")


# By a variable that each of them always sets, and nothing else does.
_SYSTEMS: dict[str, tuple[Callable[[_Variables], CiRun | None], Callable[[_Variables], _Restriction | None]]] = {
    "GITHUB_ACTIONS": (_github_run, _github),
    "TF_BUILD": (_azure_run, _azure),
    "GITLAB_CI": (_gitlab_run, _gitlab),
}


def _variables(environment: Mapping[str, str]) -> _Variables:
    return defaultdict(str, {name: value.strip() for name, value in environment.items()})


def _pull_request(number: int | None) -> _Restriction:
    if number is None:
        return "This is a pull request without a number: nothing is put into remotes.", None
    return f"This is pull request {number}: what it makes is put into the namespace {_PULL}/{number} only.", number


def _branch(env: _Variables, name: str, *, is_protected: bool) -> _Restriction | None:
    if not name:
        return _unprotected("What is no branch")
    if named := env[BRANCHES_VARIABLE]:
        is_protected = any(fnmatchcase(name, each) for each in named.replace(",", " ").split())
    return None if is_protected else _unprotected(f"The branch {name}")


def _unprotected(what: str) -> _Restriction:
    advice = f"{BRANCHES_VARIABLE} may name branches that are."
    return f"{what} is not known to be protected: nothing is put into remotes. {advice}", None


def _branch_in(ref: str) -> str:
    return ref.removeprefix("refs/heads/") if ref.startswith("refs/heads/") else ""


def _number_in(ref: str) -> int | None:
    return _number(ref.removeprefix("refs/pull/").partition("/")[0])


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None
