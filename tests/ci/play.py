"""Simulates two fresh machines of main and a pull request, in sequence, from the files in ``docs/how-to/ci``.

    python tests/ci/play.py github

runs them with nginx as in ``docs/how-to/share-a-cache.md``, and prints what ran and was transferred. Every job has its
own machine, with only the installed programs.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import yaml

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("", "scenarios")]

import azurefile
import githubfile
from cimachine import Event, Run
from onnx_samples import perceptron, samples
from servers.nginx import Nginx, nginx_server

SYSTEMS: Mapping[str, ModuleType] = {"github": githubfile, "azure": azurefile}
_MAIN, _PULL = (f"{name}:{base64.b64encode(name.encode() * 8).decode()}" for name in ("main", "pull"))


@dataclass(frozen=True)
class Played:
    """The result of one run.

    Attributes:
        ran: the stages that ran, as ``cell stage``, each once.
        reused: those that did not.
        moved: messages of the machines about remotes.
        put: paths that are new on the server.
        files: the digest of each finished model, by its cell.
    """

    ran: tuple[str, ...]
    reused: tuple[str, ...]
    moved: tuple[str, ...]
    put: frozenset[str]
    files: Mapping[str, str]


class Team:
    """A repository, a server, and a CI system.

    Args:
        system: the module that runs its file.
        tools: a folder with ``winml-dag``.
    """

    def __init__(self, folder: Path, system: ModuleType, server: Nginx, tools: Path) -> None:
        self.repository = folder / "repository"
        self.repository.mkdir(parents=True)
        perceptron(self.repository / "model.onnx")
        samples(self.repository / "samples.npz")
        self._folder, self._system, self._server, self._tools = folder, system, server, tools
        self._runs = 0
        self.edit(calibrated_on=4)

    def edit(self, *, calibrated_on: int) -> None:
        """Commit another number of samples, which only changes quantized models."""
        recipe = {
            "model": "model.onnx",
            "ep": "cpu",
            "quant": {"calibration_data": "samples.npz", "samples": calibrated_on},
            "matrix": {"precision": ["fp32", "w8a8"]},
        }
        (self.repository / "models.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")

    def break_the_recipe(self) -> None:
        """Commit an invalid recipe."""
        with (self.repository / "models.yaml").open("a", encoding="utf-8") as file:
            file.write("modle: model.onnx\n")

    def push(self) -> Played:
        """Push to main."""
        return self._play(Event("4f1c2a9"))

    def pull_request(self, number: int, *, is_fork: bool = False) -> Played:
        return self._play(Event("8d0e771", number, is_fork))

    @property
    def on_server(self) -> dict[str, bytes]:
        """Return all files on the server, such as ``main/ac/…``."""
        folder = self._server.folder
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def _play(self, event: Event) -> Played:
        self._runs += 1
        run = Run(event, self.repository, self._folder / f"run{self._runs}", self._tools)
        before = self.on_server
        secrets = {
            "cache-main": {"CACHE_URL": self._server.url_of("main"), "CACHE_KEYS": _MAIN},
            "cache-pull": {"CACHE_URL": self._server.url_of("pull"), "CACHE_KEYS": f"{_PULL},{_MAIN}"},
        }
        self._system.play(run, secrets)
        after = self.on_server
        assert before.items() <= after.items(), "the first writer wins"
        said = "\n".join(machine.said for machine in run.machines)
        moved = tuple(line for line in said.splitlines() if line.startswith("remote: "))
        return _played(run, moved, frozenset(after.keys() - before.keys()))


def _played(run: Run, moved: tuple[str, ...], put: frozenset[str]) -> Played:
    ran, reused, files = set[str](), set[str](), dict[str, str]()
    for manifest in sorted(run.artifacts.rglob("build_manifest.json")):
        told = json.loads(manifest.read_text(encoding="utf-8"))
        cell = manifest.parent.name
        for stage in told["stages"]:
            if stage["status"] == "completed":
                (reused if stage["cached"] else ran).add(f"{cell} {stage['id']}")
        files[cell] = (manifest.parent / "model.onnx").read_bytes().hex()
    return Played(tuple(sorted(ran)), tuple(sorted(reused)), moved, put, files)


def main(system: str) -> None:
    """Run it with real processes, and print a line or two per run."""
    tools = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as name, nginx_server(Path(name) / "nginx") as server:
        team = Team(Path(name), SYSTEMS[system], server, tools)
        _tell("main, nothing there yet", team.push())
        _tell("main again, machines that know nothing", team.push())
        team.edit(calibrated_on=6)
        _tell("pull request 12 calibrates on 6 samples", team.pull_request(12))
        _tell("pull request 12 again", team.pull_request(12))
        _tell("pull request 13, from a fork", team.pull_request(13, is_fork=True))
        _tell("main, where 12 was merged", team.push())


def _tell(what: str, played: Played) -> None:
    where = sorted({path.rsplit("/", 2)[0] for path in played.put})
    print(f"{what}: {len(played.ran)} stages ran, {len(played.reused)} did not", end="")
    print(f", {len(played.put)} files put into {', '.join(where)}" if where else ", nothing was put")
    for line in played.moved:
        print(f"    {line}")


if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in SYSTEMS]:
        sys.exit(f"usage: python tests/ci/play.py {'|'.join(SYSTEMS)}")
    if shutil.which("bash") is None:
        sys.exit("The steps of both files are for bash.")
    main(sys.argv[1])
