"""Edit, build, and which stages ran: on separate machines with remotes, as in a team, its CI and pull requests.

Machines are caches; the server is a real one, on this machine.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project
from servers.faulty import FaultyServer

from winml_dag import optimize_onnx
from winml_dag.errors import UsageError
from winml_dag.pipeline.buildresult import CommandResult

RECIPE = {"model": "model.onnx", "precision": "fp32", "quant": {"calibration_data": "data.npz", "samples": 8}}
KEYS = {name: f"{name}:{letter * 43}=" for name, letter in (("main", "A"), ("pull", "B"))}
PULL_REQUEST = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_EVENT_NAME": "pull_request",
    "GITHUB_REF": "refs/pull/12/merge",
}
MAIN = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_EVENT_NAME": "push",
    "GITHUB_REF": "refs/heads/main",
    "GITHUB_REF_PROTECTED": "true",
}


class Machine(Project):
    """A machine with its own cache and environment, and a common recipe."""

    def __init__(self, folder: Path, commands: OneProcess | None, name: str, variables: dict[str, str]) -> None:
        super().__init__(folder, commands)
        self.cache = folder / f"cache-{name}"
        self.name = name
        self._variables = variables

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "WINML_DAG_REMOTE_KEYS": KEYS["main"], **self._variables}

    def ran(self, *arguments: str) -> list[str]:
        """Build here and return the stages that ran."""
        result = self.build(*arguments, out=f"out-{self.name}")
        assert result.code == 0, result.messages
        self.messages = result.messages
        self.traffic: dict[str, int] = result.value.get("remote", {})
        return result.ran

    def model(self) -> bytes:
        return (self.folder / f"out-{self.name}" / "model.onnx").read_bytes()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    perceptron(folder / "model.onnx")
    samples(folder / "data.npz")
    return folder


class Team:
    def __init__(self, folder: Path, commands: OneProcess | None) -> None:
        self.folder = folder
        self._commands = commands

    def machine(self, name: str, **variables: str) -> Machine:
        return Machine(self.folder, self._commands, name, variables)

    def configure(self, *levels: dict[str, Any]) -> None:
        """Write the project's configuration."""
        lines = [
            line
            for level in levels
            for line in ("[[remote]]", *(f"{name} = {json.dumps(value)}" for name, value in level.items()))
        ]
        (self.folder / "winml_dag.toml").write_text("\n".join(lines))

    def edit(self, **changes: Any) -> None:
        (self.folder / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, **changes}))


@pytest.fixture
def team(files: Path, tmp_path: Path, commands: OneProcess | None) -> Team:
    folder = tmp_path / "team"
    shutil.copytree(files, folder)
    team = Team(folder, commands)
    team.edit()
    return team


@pytest.mark.slow
def test_who_reads_runs_what_nobody_has_run_and_keeps_it_to_itself(team: Team, server: FaultyServer) -> None:
    team.configure({"url": server.url, "namespace": "main"})
    first = team.machine("first", WINML_DAG_REMOTE_MODE="read-write")
    second, third = team.machine("second"), team.machine("third")
    assert first.ran() == ["optimize", "analyze", "validate", "finalize"]
    assert second.ran() == []
    assert second.model() == first.model()
    team.edit(precision="w8a8")
    quantized = ["analyze", "calibrate", "quantize", "validate", "finalize"]
    put = server.count("PUT")
    assert second.ran() == quantized
    assert third.ran() == quantized
    assert server.count("PUT") == put
    assert first.ran() == quantized
    assert team.machine("fourth").ran() == []


def test_nothing_is_asked_when_all_is_up_to_date_or_the_remote_is_off(team: Team, server: FaultyServer) -> None:
    team.configure({"url": server.url, "mode": "read-write"})
    off = team.machine("off", WINML_DAG_REMOTE_MODE="off", WINML_DAG_REMOTE_KEYS="")
    assert len(off.ran()) == 4
    assert server.requests == []
    on = team.machine("off")
    # Turned on, it has the same keys.
    assert on.ran() == []
    # What was built less than two seconds ago counts as having come to rest: else its files are read once more.
    settled = "from winml_dag import file_reading\nfile_reading.SETTLED_NS = 0\n"
    script = """
import sys
from winml_dag.cli import run
for arguments in (["--help"], ["build", "-c", "recipe.yaml", "-o", "out-off"]):
    assert run(arguments) == 0
remote = {name for name in sys.modules if name.startswith("winml_dag.store.remote")}
heavy = remote | {"urllib3", "obstore", "distributed", "tomllib", "pydantic", "sqlite3"} & set(sys.modules)
assert not heavy, heavy
"""
    # What surrounds a process of its own is not what surrounds the one that all commands before it had.
    on.python(f"{settled}from winml_dag.cli import run; run(['build', '-c', 'recipe.yaml', '-o', 'out-off'])")
    server.requests.clear()
    assert "Up to date" in on.python(settled + script)
    assert server.requests == []


def test_what_is_built_with_and_without_a_remote_stands_side_by_side(team: Team, server: FaultyServer) -> None:
    machine = team.machine("both")
    with_remote = ("--remote", server.url, "--remote-mode", "read-write")
    command = ("build", "-c", "recipe.yaml", "-o", "out-both")
    assert len(machine.ran()) == 4
    assert len(machine.ran(*with_remote)) == 4
    assert "which begins empty" in machine.messages
    # Each time the manifest is written with the other digests; after that both are recognized by their stamps.
    for arguments in (command, (*command, *with_remote)):
        machine.run(*arguments)
        assert "Up to date" in machine.run(*arguments).stdout


def test_a_pull_request_reads_what_main_has_made_and_writes_nothing_that_others_read(
    team: Team, server: FaultyServer
) -> None:
    team.configure({"url": server.url, "namespace": "main", "mode": "read-write", "trusted": ["main"]})
    assert len(team.machine("main", **MAIN).ran()) == 4
    before = {path for path in server.content if path.startswith("/main/")}
    team.edit(precision="w8a8")
    both = {"WINML_DAG_REMOTE_KEYS": f"{KEYS['pull']},{KEYS['main']}"}
    pull = team.machine("pull", **PULL_REQUEST, **both)
    assert "optimize" not in pull.ran()
    assert "pull request 12: what it makes is put into the namespace pull/12 only" in pull.messages
    assert {path for path in server.content if path.startswith("/main/")} == before
    # Its next run, on a fresh machine, has its own results; main does not.
    assert team.machine("again", **PULL_REQUEST, **both).ran() == []
    assert "quantize" in team.machine("main again", **MAIN).ran()


def test_what_a_far_level_had_is_in_the_near_one_afterwards(team: Team, server: FaultyServer) -> None:
    near = (team.folder / "near").as_uri()
    far = {"url": server.url, "mode": "read"}
    assert len(team.machine("company", WINML_DAG_REMOTE=server.url, WINML_DAG_REMOTE_MODE="read-write").ran()) == 4
    team.configure({"url": near, "mode": "read-write"}, far)
    assert team.machine("first").ran() == []
    asked = server.count("GET")
    second = team.machine("second")
    assert second.ran() == []
    # Only records of intermediates came near: the far tier is asked whether it still has their blobs.
    assert server.count("GET") == asked
    assert second.traffic["records_found"] == 4
    assert second.model() == team.machine("company").model()


def test_a_sweep_shares_as_a_build_does(team: Team, server: FaultyServer) -> None:
    sweep = {"base": "recipe.yaml", "matrix": {"precision": ["fp32", "fp16"]}}
    (team.folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    command = ("build", "-c", "sweep.yaml", "--format", "json", "--remote", server.url)
    first = json.loads(team.machine("first").run(*command, "-o", "one", "--remote-mode", "read-write").stdout)
    assert first["remote"]["records_put"] == first["graph"]["by_status"]["ran"]
    second = json.loads(team.machine("second").run(*command, "-o", "two").stdout)
    assert "ran" not in second["graph"]["by_status"]
    assert second["remote"]["records_found"] == first["remote"]["records_put"]
    planned = team.machine("third").run("plan", "-c", "sweep.yaml", "-o", "three", "--remote", server.url)
    assert "8 cached, nothing to do" in planned.stdout


def test_python_shares_as_the_command_line_does(
    team: Team, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINML_DAG_REMOTE_KEYS", KEYS["main"])

    def optimized(machine: str, **how: Any) -> CommandResult:
        output, cache = team.folder / f"{machine}.onnx", team.folder / f"cache-{machine}"
        return optimize_onnx(team.folder / "model.onnx", output, validate=False, cache_dir=cache, **how)

    first = optimized("one", remote=server.url, remote_mode="read-write")
    second = optimized("two", remote=[server.url])
    assert (first.cached, second.cached) == (False, True)
    assert first.output_path is not None
    assert second.output_path is not None
    assert second.output_path.read_bytes() == first.output_path.read_bytes()
    with pytest.raises(UsageError, match="remote_mode is 'write'"):
        optimized("three", remote=server.url, remote_mode="write")


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of a folder are those of POSIX")
def test_a_folder_that_only_its_user_can_write_needs_no_key_from_them(team: Team) -> None:
    shared, configuration = team.folder / "shared", team.folder / "configuration"
    variables = {
        "WINML_DAG_REMOTE": shared.as_uri(),
        "WINML_DAG_REMOTE_KEYS": "",
        "WINML_DAG_CONFIG": str(configuration / "config.toml"),
    }
    assert len(team.machine("one", **variables, WINML_DAG_REMOTE_MODE="read-write").ran()) == 4
    assert team.machine("two", **variables).ran() == []
    assert (configuration / "own-folders.key").stat().st_mode & 0o077 == 0
    # Another user who reads it has another key, and builds.
    other = {**variables, "WINML_DAG_CONFIG": str(team.folder / "other" / "config.toml")}
    assert len(team.machine("three", **other).ran()) == 4
    shared.chmod(0o775)
    refused = team.machine("four", **variables).run("build", "-c", "recipe.yaml", "-o", "out-four")
    assert refused.returncode == 2
    assert "There is no key to check the records of" in refused.stderr
