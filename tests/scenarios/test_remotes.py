"""Edit, build, and which stages ran: on separate machines with remotes, as in a team, its CI and pull requests.

Machines are caches; the remote is a folder, or a real server on this machine.
"""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project, Result, needs_qnn
from servers.faulty import FaultyServer

from winml_dag import optimize_onnx
from winml_dag.errors import UsageError
from winml_dag.pipeline.buildresult import CommandResult

QUANT = {"calibration_data": "data.npz", "samples": 8}
RECIPE = {"model": "model.onnx", "precision": "fp32", "quant": QUANT}
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


STAGES = ["optimize", "analyze", "calibrate", "quantize", "compile", "validate", "finalize"]


class Machine(Project):
    """A machine with its own cache, environment and output folder, and common recipes."""

    def __init__(self, folder: Path, commands: OneProcess, name: str, variables: dict[str, str]) -> None:
        super().__init__(folder, commands)
        self.cache = folder / f"cache-{name}"
        self.out_name = f"out-{name}"
        self._variables = variables

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "WINML_DAG_REMOTE_KEYS": KEYS["main"], **self._variables}

    def made(self, *arguments: str) -> Result:
        """Build here."""
        result = self.build(*arguments, out=self.out_name)
        assert result.code == 0, result.messages
        return result

    def ran(self, *arguments: str) -> list[str]:
        return self.made(*arguments).ran

    def files(self) -> dict[str, bytes]:
        """Return the outputs, without times."""
        found = self.contents(self.out_name)
        found.pop("build_manifest.json")
        return found

    def blobs(self) -> set[str]:
        folder = self.cache / "blobs" / "sha256"
        return {path.parent.name + path.name for path in folder.rglob("*") if path.is_file()}

    def digests_of(self, stage: str) -> set[str]:
        slots = self.stage(stage, self.out_name)["outputs"].values()
        return {file["digest"].removeprefix("sha256:") for slot in slots for file in slot["files"]}


class Team:
    def __init__(self, folder: Path, commands: OneProcess) -> None:
        self.folder = folder
        self.remote = folder / "remote"
        self.commands = commands

    def machine(self, name: str, **variables: str) -> Machine:
        return Machine(self.folder, self.commands, name, variables)

    def sharing(self, name: str) -> Machine:
        """Return a machine that shares unsigned records in a folder."""
        unsigned = {"WINML_DAG_REMOTE_KEYS": "", "WINML_DAG_REMOTE_ACCEPT_UNSIGNED": "1"}
        return self.machine(name, WINML_DAG_REMOTE=self.remote.as_uri(), WINML_DAG_REMOTE_MODE="read-write", **unsigned)

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


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess) -> Team:
    """A model, data, a recipe for QNN, and a remote that one machine has filled."""
    team = Team(tmp_path_factory.mktemp("team"), commands)
    perceptron(team.folder / "model.onnx")
    samples(team.folder / "data.npz")
    if find_spec("onnxruntime_qnn") is not None:
        team.edit(ep="qnn", precision="w8a8")
        assert team.sharing("first").ran() == STAGES
    return team


def copy_of(filled: Team, folder: Path) -> Team:
    shutil.copytree(filled.folder, folder)
    return Team(folder, filled.commands)


@pytest.fixture
def team(filled: Team, tmp_path: Path) -> Team:
    """A recipe for the CPU, which nobody has built."""
    folder = tmp_path / "team"
    folder.mkdir()
    for name in ("model.onnx", "data.npz"):
        shutil.copy(filled.folder / name, folder)
    team = Team(folder, filled.commands)
    team.edit()
    return team


@needs_qnn
def test_second_machine_runs_nothing_and_fetches_only_outputs(filled: Team, tmp_path: Path) -> None:
    team = copy_of(filled, tmp_path / "team")
    first, second = team.sharing("first"), team.sharing("second")
    plan = second.plan(out=second.out_name)
    assert plan.ran == []
    assert plan.reason("compile").startswith("found in the remote, made ")
    assert "winml_dag" in plan.reason("compile")
    assert second.blobs() == set()
    # Records without their blobs are no damage.
    for machine in (second, team.machine("second", WINML_DAG_REMOTE="")):
        checked = machine.says("cache", "verify", "--repair")
        assert "0 records lack a blob" in checked
        assert "come from a remote when needed" in checked
    records = second.told("cache", "list")["records"]
    shown = second.says("cache", "show", next(entry["key"] for entry in records if entry["stage"] == "compile"))
    assert "compiled_qnn.bin" in shown
    assert "in a remote, not here" in shown
    assert "MISSING" not in shown

    result = second.made()
    assert result.ran == []
    assert " by winml_dag" in result.reason("compile")
    first.made()
    assert second.files() == first.files()
    assert {"model.onnx", "model_qnn.bin"} <= second.files().keys()
    assert second.blobs() < first.blobs()
    assert second.digests_of("finalize") <= second.blobs()
    assert not second.digests_of("calibrate") & second.blobs()
    second.says("cache", "gc", "--older-than", "0d")
    assert "records        0" in second.says("cache", "info")


@needs_qnn
def test_lost_remote_blobs_are_rebuilt(filled: Team, tmp_path: Path) -> None:
    team = copy_of(filled, tmp_path / "team")
    first, second = team.sharing("first"), team.sharing("second")
    assert second.plan(out=second.out_name).ran == []
    shutil.rmtree(team.remote)
    result = second.made()
    assert result.ran == STAGES
    assert result.reason("finalize").startswith("missing or damaged in the cache, and in no remote")
    first.made()
    assert second.files() == first.files()
    assert second.ran() == []
    assert team.machine("second", WINML_DAG_REMOTE="").ran() == []


@needs_qnn
def test_completed_stages_of_failed_build_are_shared(filled: Team, tmp_path: Path) -> None:
    team = copy_of(filled, tmp_path / "team")
    second = team.sharing("second")
    team.edit(ep="qnn", precision="w8a8", quant={**QUANT, "symmetric": True}, validate={"min_cosine": 1})
    failed = second.build(out=second.out_name)
    assert failed.with_status("reused") == ["optimize", "analyze", "calibrate"]
    assert failed.with_status("failed") == ["validate"]
    assert team.sharing("first").digests_of("optimize") <= second.blobs(), "it has fetched what it has read"
    planned = team.sharing("third").plan(out="out-third")
    assert {*STAGES} - {*planned.ran} == {"optimize", "analyze", "calibrate", "quantize", "compile"}


@pytest.mark.slow
def test_read_only_machines_do_not_share_their_results(team: Team, server: FaultyServer) -> None:
    team.configure({"url": server.url, "namespace": "main"})
    first = team.machine("first", WINML_DAG_REMOTE_MODE="read-write")
    second, third = team.machine("second"), team.machine("third")
    assert first.ran() == ["optimize", "analyze", "validate", "finalize"]
    assert second.ran() == []
    assert second.files() == first.files()
    team.edit(precision="w8a8")
    quantized = ["analyze", "calibrate", "quantize", "validate", "finalize"]
    put = server.count("PUT")
    assert second.ran() == quantized
    assert third.ran() == quantized
    assert server.count("PUT") == put
    assert first.ran() == quantized
    assert team.machine("fourth").ran() == []


def test_no_request_is_sent_when_up_to_date_or_remote_is_off(team: Team, server: FaultyServer) -> None:
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


def test_caches_with_and_without_remote_coexist(team: Team, server: FaultyServer) -> None:
    machine = team.machine("both")
    with_remote = ("--remote", server.url, "--remote-mode", "read-write")
    command = ("build", "-c", "recipe.yaml", "-o", "out-both")
    assert len(machine.ran()) == 4
    before = machine.files()
    first = machine.made(*with_remote)
    assert len(first.ran) == 4
    assert f"with a remote the cache is {machine.cache / 'sha256'}, which begins empty" in first.messages
    assert machine.files() == before
    # Each time the manifest is written with the other digests; after that both are recognized by their stamps.
    for arguments in (command, (*command, *with_remote)):
        machine.says(*arguments)
        assert "Up to date" in machine.says(*arguments)


def test_pull_request_reads_main_and_writes_its_own_namespace(team: Team, server: FaultyServer) -> None:
    team.configure({"url": server.url, "namespace": "main", "mode": "read-write", "trusted": ["main"]})
    assert len(team.machine("main", **MAIN).ran()) == 4
    before = {path for path in server.content if path.startswith("/main/")}
    team.edit(precision="w8a8")
    both = {"WINML_DAG_REMOTE_KEYS": f"{KEYS['pull']},{KEYS['main']}"}
    pull = team.machine("pull", **PULL_REQUEST, **both).made()
    assert "optimize" not in pull.ran
    assert "pull request 12: what it makes is put into the namespace pull/12 only" in pull.messages
    assert {path for path in server.content if path.startswith("/main/")} == before
    # Its next run, on a fresh machine, has its own results; main does not.
    assert team.machine("again", **PULL_REQUEST, **both).ran() == []
    assert "quantize" in team.machine("main again", **MAIN).ran()


def test_far_remote_results_are_copied_to_near_remote(team: Team, server: FaultyServer) -> None:
    near = (team.folder / "near").as_uri()
    far = {"url": server.url, "mode": "read"}
    assert len(team.machine("company", WINML_DAG_REMOTE=server.url, WINML_DAG_REMOTE_MODE="read-write").ran()) == 4
    team.configure({"url": near, "mode": "read-write"}, far)
    assert team.machine("first").ran() == []
    asked = server.count("GET")
    second = team.machine("second")
    result = second.made()
    assert result.ran == []
    # Only records of intermediates came near: the far tier is asked whether it still has their blobs.
    assert server.count("GET") == asked
    assert result.value["remote"]["records_found"] == 4
    assert second.files() == team.machine("company").files()


def test_sweep_shares_results_through_remote(team: Team, server: FaultyServer) -> None:
    sweep = {"base": "recipe.yaml", "matrix": {"precision": ["fp32", "fp16"]}}
    (team.folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    command = ("build", "-c", "sweep.yaml", "--remote", server.url)
    first = team.machine("first").told(*command, "-o", "one", "--remote-mode", "read-write")
    assert first["remote"]["records_put"] == first["graph"]["by_status"]["ran"]
    second = team.machine("second").told(*command, "-o", "two")
    assert "ran" not in second["graph"]["by_status"]
    assert second["remote"]["records_found"] == first["remote"]["records_put"]
    planned = team.machine("third").says("plan", "-c", "sweep.yaml", "-o", "three", "--remote", server.url)
    assert "8 cached, nothing to do" in planned


def test_python_shares_results_through_remote(
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
def test_private_folder_remote_needs_no_key(team: Team) -> None:
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
    refused = team.machine("four", **variables).says("build", "-c", "recipe.yaml", "-o", "out-four", code=2)
    assert "There is no key to check the records of" in refused
