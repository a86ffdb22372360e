"""Runs a GitHub Actions workflow locally: the subset of the language that the file in ``docs/how-to/ci`` uses.

Anything else is rejected, so that the file contains nothing untested.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from cimachine import INSTALLS, Event, Machine, Run

FILE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "ci" / "github-actions.yml"

_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
# A text, a path through contexts, an operator.
_WORD = re.compile(r"'[^']*'|[A-Za-z_][\w-]*(?:\.[\w-]+)+|&&|\|\||!(?!=)")
_OPERATORS = {"&&": " and ", "||": " or ", "!": " not "}
_KNOWN_STEPS = {"name", "id", "run", "uses", "with", "env", "if"}
_KNOWN_JOBS = {"runs-on", "needs", "if", "environment", "outputs", "strategy", "steps"}


def play(run: Run, secrets: Mapping[str, Mapping[str, str]], file: Path = FILE) -> None:
    """Run all jobs of *file*. *secrets*: those of each environment of the repository."""
    # YAML 1.1 parses "on" as a boolean.
    workflow = {str(name): value for name, value in yaml.safe_load(file.read_text(encoding="utf-8")).items()}
    assert workflow.keys() == {"name", "True", "permissions", "jobs"}
    assert workflow["True"].keys() == {"push", "pull_request"}
    outputs: dict[str, Any] = {}
    for name, job in workflow["jobs"].items():
        assert job.keys() <= _KNOWN_JOBS, job.keys() - _KNOWN_JOBS
        needed = {need: {"outputs": outputs[need]} for need in [job.get("needs")] if need}
        contexts = {"github": _github(run.event), "needs": needed}
        matrix = _value(job.get("strategy", {}).get("matrix", {"include": [{}]}), contexts)
        for place, values in enumerate(matrix["include"]):
            here = {**contexts, "matrix": values, "strategy": {"job-index": place}, "steps": {}}
            environment = _value(job.get("environment", ""), here)
            # Pull requests from forks must not get secrets.
            here["secrets"] = {} if run.event.is_fork else secrets.get(environment, {})
            _play_steps(job["steps"], run, run.machine(name), here)
            outputs[name] = {each: _value(text, here) for each, text in job.get("outputs", {}).items()}


def _play_steps(steps: list[dict[str, Any]], run: Run, machine: Machine, contexts: dict[str, Any]) -> None:
    for step in steps:
        assert step.keys() <= _KNOWN_STEPS, step.keys() - _KNOWN_STEPS
        if "if" in step and not _value(step["if"], contexts):
            continue
        if "uses" in step:
            action = step["uses"].partition("@")[0]
            _ACTIONS[action](
                run,
                machine,
                {name: _value(text, contexts) for name, text in step["with"].items()} if "with" in step else {},
            )
        elif not step["run"].startswith(INSTALLS):
            told = machine.folder / "output"
            told.write_text("")
            variables = {name: _text(_value(text, contexts)) for name, text in step.get("env", {}).items()}
            given = {**_variables(run.event), "GITHUB_OUTPUT": str(told), **variables}
            # GitHub's default for bash: a failing line ends the step, a failing part of a pipe does not.
            machine.shell(_value(step["run"], contexts), given, "-e")
            lines = (line.partition("=") for line in told.read_text(encoding="utf-8").splitlines())
            contexts["steps"][step.get("id")] = {"outputs": {name: value for name, _, value in lines}}


def _upload(run: Run, machine: Machine, given: Mapping[str, str]) -> None:
    machine.upload(given["path"], run.artifacts / given["name"])


def _download(run: Run, machine: Machine, given: Mapping[str, str]) -> None:
    shutil.copytree(run.artifacts, machine.work / given["path"])


_ACTIONS: dict[str, Callable[[Run, Machine, Mapping[str, str]], None]] = {
    "actions/checkout": lambda run, machine, _: machine.check_out(run.repository),
    "actions/setup-python": lambda *_: None,
    "actions/cache": lambda *_: None,
    "actions/upload-artifact": _upload,
    "actions/download-artifact": _download,
}


def _github(event: Event) -> dict[str, Any]:
    told: dict[str, Any] = {"event_name": "push", "ref": event.ref, "event": {}}
    if event.pull is not None:
        told["event_name"] = "pull_request"
        told["event"] = {"pull_request": {"head": {"repo": {"fork": event.is_fork}}}}
    return told


def _variables(event: Event) -> dict[str, str]:
    """Return the variables that GitHub sets for every step."""
    return {
        "GITHUB_ACTIONS": "true",
        "GITHUB_EVENT_NAME": "push" if event.pull is None else "pull_request",
        "GITHUB_REF": event.ref,
        "GITHUB_REF_PROTECTED": "true" if event.pull is None else "false",
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_REPOSITORY": "contoso/models",
        "GITHUB_RUN_ID": "77",
        "GITHUB_SHA": event.commit,
    }


def _value(text: Any, contexts: Mapping[str, Any]) -> Any:
    """Evaluate the expressions in *text*; a text that is a single expression gets its value."""
    if not isinstance(text, str):
        return text
    if (whole := _EXPRESSION.fullmatch(text.strip())) and "${{" not in whole[1]:
        return _evaluated(whole[1], contexts)
    return _EXPRESSION.sub(lambda found: _text(_evaluated(found[1], contexts)), text)


def _evaluated(expression: str, contexts: Mapping[str, Any]) -> Any:
    """Evaluate an expression; ``&&`` and ``||`` return one of their operands, as in Python."""

    def python(word: re.Match[str]) -> str:
        return _OPERATORS.get(word[0]) or (word[0] if word[0].startswith("'") else f"at({word[0]!r})")

    functions = {
        "at": lambda path: _at(path, contexts),
        "fromJSON": json.loads,
        "hashFiles": lambda *_: "0" * 64,
        "cancelled": lambda: False,
    }
    return eval(_WORD.sub(python, expression.strip()), {"__builtins__": {}, **functions})


def _at(path: str, contexts: Mapping[str, Any]) -> Any:
    """Return the value at a path, null if missing; its first part must be an existing context."""
    first, *rest = path.split(".")
    value = contexts[first]
    for name in rest:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
