"""The current CI run, according to the CI system's environment variables: who built something.

It has only URLs and a commit, no secrets: credentials before the ``@`` of a URL are removed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit


@dataclass(frozen=True)
class CiRun:
    """A run of a CI system.

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
    told = os.environ if environment is None else environment
    for find in (_github, _azure, _gitlab):
        if (found := find(told)) is not None:
            return found
    return None


def _github(told: Mapping[str, str]) -> CiRun | None:
    repository = _below(told.get("GITHUB_SERVER_URL", ""), told.get("GITHUB_REPOSITORY", ""))
    if told.get("GITHUB_ACTIONS") != "true" or not repository:
        return None
    run, attempt = told.get("GITHUB_RUN_ID", ""), told.get("GITHUB_RUN_ATTEMPT", "1")
    workflow = _below(told.get("GITHUB_SERVER_URL", ""), told.get("GITHUB_WORKFLOW_REF", ""))
    return CiRun(
        workflow or f"{repository}/actions",
        f"{repository}/actions/runs/{run}/attempts/{attempt}",
        repository,
        told.get("GITHUB_SHA", ""),
    )


def _azure(told: Mapping[str, str]) -> CiRun | None:
    project = _below(told.get("SYSTEM_COLLECTIONURI", ""), told.get("SYSTEM_TEAMPROJECT", ""))
    if told.get("TF_BUILD", "").casefold() != "true" or not project:
        return None
    return CiRun(
        f"{project}/_build?definitionId={told.get('SYSTEM_DEFINITIONID', '')}",
        f"{project}/_build/results?buildId={told.get('BUILD_BUILDID', '')}",
        _plain(told.get("BUILD_REPOSITORY_URI", "")),
        told.get("BUILD_SOURCEVERSION", ""),
    )


def _gitlab(told: Mapping[str, str]) -> CiRun | None:
    project = _plain(told.get("CI_PROJECT_URL", ""))
    if told.get("GITLAB_CI") != "true" or not project:
        return None
    runner = told.get("CI_RUNNER_ID", "")
    return CiRun(
        f"{project}/-/runners/{runner}" if runner else project,
        _plain(told.get("CI_JOB_URL", "")) or project,
        project,
        told.get("CI_COMMIT_SHA", ""),
    )


def _below(address: str, path: str) -> str:
    """Return *path* below *address*; empty if either is empty."""
    return f"{_plain(address).rstrip('/')}/{quote(path, safe='/@')}" if address and path else ""


def _plain(address: str) -> str:
    """Return *address* without credentials."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
