"""Runs an Azure pipeline locally: the subset of the language that the file in ``docs/how-to/ci`` uses.

Anything else is rejected, so that the file contains nothing untested.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from cimachine import INSTALLS, Event, Machine, Run

FILE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "ci" / "azure-pipelines.yml"

_MACRO = re.compile(r"\$\(([\w.]+)\)")
_OUTPUT = re.compile(r"\$\[ dependencies\.(\w+)\.outputs\['([\w.]+)'\] \]")
_IF = re.compile(r"\$\{\{ if eq\(variables\['([\w.]+)'\], '(\w+)'\) \}\}")
_ELSE = "${{ else }}"
_SET = re.compile(r"##vso\[task\.setvariable variable=(\w+);isOutput=true\](.*)")
_KNOWN_TASKS = {"UsePythonVersion@0", "Cache@2", "DownloadPipelineArtifact@2"}
_KNOWN_CONDITIONS = {None, "not(canceled())"}


def play(run: Run, secrets: Mapping[str, Mapping[str, str]], file: Path = FILE) -> None:
    """Run all jobs of *file*. *secrets*: those of each variable group."""
    pipeline = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert pipeline.keys() == {"trigger", "pr", "pool", "variables", "jobs"}
    assert pipeline["trigger"] == pipeline["pr"] == {"branches": {"include": ["main"]}}
    known = _variables(run.event)
    known |= {each["name"]: each["value"] for each in pipeline["variables"]}
    outputs: dict[str, dict[str, str]] = {}
    for job in pipeline["jobs"]:
        assert job.keys() <= {"job", "dependsOn", "strategy", "variables", "steps", "condition"}
        assert job.get("condition") in _KNOWN_CONDITIONS
        groups = _groups(job.get("variables", []), known)
        # Pull requests from forks must not get secrets.
        secret = {} if run.event.is_fork else {name: text for group in groups for name, text in secrets[group].items()}
        for place, values in enumerate(_matrix(job, outputs), 1):
            here = {**known, **secret, **values, "System.JobPositionInPhase": str(place)}
            machine = run.machine(job["job"])
            machine.check_out(run.repository)
            outputs[job["job"]] = _play_steps(job["steps"], run, machine, here, secret.keys())


def _matrix(job: Mapping[str, Any], outputs: Mapping[str, Mapping[str, str]]) -> list[dict[str, str]]:
    if "strategy" not in job:
        return [{}]
    found = _OUTPUT.fullmatch(job["strategy"]["matrix"])
    assert found is not None
    assert found[1] == job["dependsOn"]
    jobs = json.loads(outputs[found[1]][found[2]])
    assert all(re.fullmatch(r"\w{1,100}", name) for name in jobs), "names have letters and digits"
    assert all(isinstance(text, str) for values in jobs.values() for text in values.values())
    return list(jobs.values())


def _groups(variables: list[dict[str, Any]], known: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    held = False
    for each in variables:
        for condition, inner in each.items():
            if (match := _IF.fullmatch(condition)) is not None:
                held = known.get(match[1]) == match[2]
                chosen = held
            else:
                assert condition == _ELSE, condition
                chosen = not held
            found += [group["group"] for group in inner] if chosen else []
    return found


def _play_steps(
    steps: list[dict[str, Any]], run: Run, machine: Machine, known: Mapping[str, str], secret: Any
) -> dict[str, str]:
    """Return the variables that the steps set for other jobs, by step and name."""
    told: dict[str, str] = {}
    # A script sees secrets only if its env names them.
    plain = {name.replace(".", "_").upper(): text for name, text in known.items() if name not in secret}
    for step in steps:
        assert step.get("condition") in _KNOWN_CONDITIONS
        if "task" in step:
            assert step["task"] in _KNOWN_TASKS
            if step["task"].startswith("Download"):
                shutil.copytree(run.artifacts, machine.work / step["inputs"]["path"])
        elif "publish" in step:
            machine.upload(step["publish"], run.artifacts / _with_macros(step["artifact"], known))
        elif not step["bash"].startswith(INSTALLS):
            given = {name: _with_macros(text, known) for name, text in step.get("env", {}).items()}
            # Azure's bash continues after a failing line: the last one decides the result of the step.
            said = machine.shell(_with_macros(step["bash"], known), {**plain, **given})
            told |= {f"{step.get('name')}.{name}": text for name, text in _SET.findall(said)}
    return told


def _with_macros(text: str, known: Mapping[str, str]) -> str:
    """Replace macros; unknown ones stay, as in Azure."""
    return _MACRO.sub(lambda found: known.get(found[1], found[0]), text)


def _variables(event: Event) -> dict[str, str]:
    """Return the variables that Azure sets for every step."""
    told = {
        "TF_BUILD": "True",
        "Agent.OS": "Linux",
        "Pipeline.Workspace": "/nowhere",
        "Build.Reason": "IndividualCI",
        "Build.SourceBranch": event.ref,
        "Build.SourceVersion": event.commit,
        "Build.BuildId": "88",
        "System.CollectionUri": "https://dev.azure.com/contoso/",
        "System.TeamProject": "models",
    }
    if event.pull is not None:
        told |= {
            "Build.Reason": "PullRequest",
            "System.PullRequest.PullRequestId": str(event.pull),
            "System.PullRequest.IsFork": str(event.is_fork),
        }
    return told
