"""The CI files in action: main writes, the next machine runs nothing, pull requests affect nobody else."""

from __future__ import annotations

import json
import socketserver
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from oneprocess import OneProcess
from play import SYSTEMS, Played, Team
from servers.nginx import Nginx, nginx_server

# The replacement of winml-dag on the machines: it runs commands in one long-lived process.
_TOOL = """#!{python} -IS
import json, os, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as connection, connection.makefile("rw") as stream:
    stream.write(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]) + "\\n")
    stream.flush()
    code, out, messages = json.loads(stream.readline())
sys.stdout.write(out)
sys.stderr.write(messages)
sys.exit(code)
"""
QUANTIZED_ANEW = ("w8a8 calibrate", "w8a8 finalize", "w8a8 quantize", "w8a8 validate")


RUNS = {
    "github": "https://github.com/contoso/models/actions/runs/77/attempts/1",
    "azure": "https://dev.azure.com/contoso/models/_build/results?buildId=88",
}


def made_by(team: Team, played: Played) -> set[tuple[str, str]]:
    """Return the signing keys of the records that a run has uploaded, with the runs they name."""
    texts = [data.split(b"\n") for path, data in team.on_server.items() if path in played.put and "/ac/" in path]
    return {(json.loads(head)["signed_by"], json.loads(body)["maker"]["run"]) for head, body, _ in texts}


class _Commands(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        arguments, folder, environment = json.loads(self.rfile.readline())
        with self.server.lock:
            said = self.server.process.run(arguments, Path(folder), environment)
        self.wfile.write(json.dumps([said.code, said.out, said.messages]).encode() + b"\n")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, process: OneProcess) -> None:
        super().__init__(("127.0.0.1", 0), _Commands)
        self.process, self.lock = process, threading.Lock()


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess) -> Iterator[Path]:
    if sys.platform != "linux":
        yield Path(sys.executable).parent  # the real one: only Linux has a current folder per thread
        return
    folder = tmp_path_factory.mktemp("tools")
    with _Server(commands) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        program = folder / "winml-dag"
        program.write_text(_TOOL.format(python=sys.executable, port=server.server_address[1]), encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        yield folder
        server.shutdown()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Nginx]:
    with nginx_server(tmp_path / "nginx") as nginx:
        yield nginx


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the steps of both files are for bash")
@pytest.mark.parametrize("system", SYSTEMS)
def test_main_fills_cache_and_pull_requests_are_isolated(
    system: str, tools: Path, server: Nginx, tmp_path: Path
) -> None:
    team = Team(tmp_path, SYSTEMS[system], server, tools)

    first = team.push()
    assert set(first.ran) >= {*QUANTIZED_ANEW, "fp32 optimize.0", "fp32 finalize"}
    assert {path.partition("/")[0] for path in first.put} == {"main"}
    assert made_by(team, first) == {("main", RUNS[system])}

    again = team.push()
    assert (again.ran, again.put) == ((), frozenset())
    assert again.files == first.files

    team.edit(calibrated_on=6)
    pull = team.pull_request(12)
    assert pull.ran == QUANTIZED_ANEW
    assert {path.split("/")[:2] == ["pull", "12"] for path in pull.put} == {True}
    assert made_by(team, pull) == {("pull", RUNS[system])}
    assert team.pull_request(12).ran == ()

    fork = team.pull_request(13, is_fork=True)
    assert (fork.reused, fork.put) == ((), frozenset())
    assert fork.files == pull.files, "what it makes by itself is the same"

    merged = team.push()
    assert merged.ran == QUANTIZED_ANEW, "nothing that a pull request made is taken for main"
    assert {path.partition("/")[0] for path in merged.put} == {"main"}


@pytest.mark.skipif(sys.platform == "win32", reason="the steps of both files are for bash")
@pytest.mark.parametrize("system", SYSTEMS)
def test_ci_run_fails_when_plan_fails(system: str, tools: Path, server: Nginx, tmp_path: Path) -> None:
    team = Team(tmp_path, SYSTEMS[system], server, tools)
    team.break_the_recipe()
    with pytest.raises(RuntimeError, match=r"ended with 2:\n.*models\.yaml"):
        team.push()
