"""The rights of a CI run: a pull request reads what is shared, and writes only what nobody else reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from winml_dag.store.remote.ci import allowed
from winml_dag.store.remote.settings import Mode, RemoteSettings, TierSettings

MAIN = TierSettings("https://team", Mode.READ_WRITE, "main", frozenset({"ci"}))
COMPANY = TierSettings("s3://company", Mode.READ, "main")
SETTINGS = RemoteSettings((MAIN, COMPANY))

GITHUB = {
    "CI": "true",
    "GITHUB_ACTIONS": "true",
    "GITHUB_EVENT_NAME": "push",
    "GITHUB_REF": "refs/heads/main",
    "GITHUB_REF_PROTECTED": "true",
}
GITHUB_PULL = GITHUB | {
    "GITHUB_EVENT_NAME": "pull_request",
    "GITHUB_REF": "refs/pull/12/merge",
    "GITHUB_REF_PROTECTED": "false",
}
AZURE = {
    "TF_BUILD": "True",
    "BUILD_REASON": "IndividualCI",
    "BUILD_SOURCEBRANCH": "refs/heads/main",
}
AZURE_PULL = AZURE | {
    "BUILD_REASON": "PullRequest",
    "BUILD_SOURCEBRANCH": "refs/pull/12/merge",
    "SYSTEM_PULLREQUEST_PULLREQUESTID": "12",
}
GITLAB = {
    "GITLAB_CI": "true",
    "CI_PIPELINE_SOURCE": "push",
    "CI_COMMIT_BRANCH": "main",
    "CI_COMMIT_REF_PROTECTED": "true",
}
GITLAB_PULL = {name: text for name, text in GITLAB.items() if name != "CI_COMMIT_BRANCH"} | {
    "CI_PIPELINE_SOURCE": "merge_request_event",
    "CI_MERGE_REQUEST_IID": "12",
    # GitLab sets it for a request from one protected branch to another.
    "CI_COMMIT_REF_PROTECTED": "true",
}


@pytest.mark.parametrize(
    "environment", [{}, {"CI": "true"}, GITHUB, AZURE, GITLAB], ids=["a person", "unknown", "GitHub", "Azure", "GitLab"]
)
def test_person_and_protected_branch_keep_configured_rights(environment: dict[str, str]) -> None:
    assert allowed(SETTINGS, environment) == (SETTINGS, "")


@pytest.mark.parametrize("environment", [GITHUB_PULL, AZURE_PULL, GITLAB_PULL], ids=["GitHub", "Azure", "GitLab"])
def test_pull_request_writes_only_its_namespace(environment: dict[str, str]) -> None:
    bounded, said = allowed(SETTINGS, environment)

    own = TierSettings("https://team", Mode.READ_WRITE, "pull/12", None, is_back_filled=False)
    assert bounded.tiers == (own, replace(MAIN, mode=Mode.READ), COMPANY)
    assert said == "This is pull request 12: what it makes is put into the namespace pull/12 only."
    for mode in (Mode.READ, Mode.OFF):
        reading = RemoteSettings((replace(MAIN, mode=mode),))
        assert allowed(reading, environment) == (reading, ""), "it gets no more than is configured"


@pytest.mark.parametrize(
    "changed",
    [
        # With the rights of the main branch, and possibly with the code of the pull request.
        {"GITHUB_EVENT_NAME": "pull_request_target"},
        {"GITHUB_EVENT_NAME": "workflow_run"},
        {"GITHUB_EVENT_NAME": "issue_comment"},
        {"GITHUB_REF": "refs/heads/feature", "GITHUB_REF_PROTECTED": "false"},
        {"GITHUB_REF": "refs/tags/v1"},
        {"GITHUB_REF": "refs/pull/not-a-number/merge"},
        {"GITHUB_REF": ""},
    ],
    ids=lambda changed: " ".join(changed.values()),
)
def test_untrusted_ci_events_write_nothing(changed: dict[str, str]) -> None:
    bounded, said = allowed(SETTINGS, GITHUB | changed)

    assert [tier.mode for tier in bounded.tiers] == [Mode.READ, Mode.READ]
    assert "nothing is put into remotes" in said


def test_branches_not_known_to_be_protected_write_nothing() -> None:
    feature = AZURE | {"BUILD_SOURCEBRANCH": "refs/heads/feature"}

    assert allowed(SETTINGS, feature)[0].tiers[0].mode is Mode.READ
    assert allowed(SETTINGS, feature)[1].startswith("The branch feature is not known to be protected")
    assert allowed(SETTINGS, GITLAB | {"CI_COMMIT_REF_PROTECTED": "false"})[0].tiers[0].mode is Mode.READ


def test_named_branches_may_write_but_pull_requests_may_not() -> None:
    unprotected = GITHUB | {"GITHUB_REF_PROTECTED": "false", "GITHUB_REF": "refs/heads/release/2"}
    named = {"WINML_DAG_REMOTE_BRANCHES": "main, release/*"}

    assert allowed(SETTINGS, unprotected | named) == (SETTINGS, "")
    assert allowed(SETTINGS, GITHUB | {"WINML_DAG_REMOTE_BRANCHES": "stable"})[0].tiers[0].mode is Mode.READ
    assert allowed(SETTINGS, GITHUB_PULL | {"WINML_DAG_REMOTE_BRANCHES": "*"})[0].tiers[0].namespace == "pull/12"
    target = GITHUB | {"GITHUB_EVENT_NAME": "pull_request_target", "WINML_DAG_REMOTE_BRANCHES": "*"}
    assert allowed(SETTINGS, target)[0].tiers[0].mode is Mode.READ
