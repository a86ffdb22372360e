"""``build --final-only``: the contents of the folder, and what a machine without cached results fetches."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import yaml
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project
from servers.faulty import FaultyServer

RECIPE = {
    "model": "model.onnx",
    "ep": "cpu",
    "quant": {"calibration_data": "data.npz", "samples": 4},
    "matrix": {"precision": ["w8a8"]},
}
ALL = ["analyze_result.json", "build_manifest.json", "model.onnx", "optimized.onnx", "quantized.onnx"]
FINAL = ["analyze_result.json", "build_manifest.json", "model.onnx"]
SETTINGS = "winml_build_config.json"


class Machine(Project):
    """A machine with its own cache, a common sweep, and a server between the machines."""

    def __init__(self, folder: Path, commands: OneProcess | None, server: FaultyServer, name: str) -> None:
        super().__init__(folder, commands)
        self.cache = folder / f"cache-{name}"
        self._url = server.url

    def environment(self) -> dict[str, str]:
        remote = {"REMOTE": self._url, "REMOTE_MODE": "read-write", "REMOTE_KEYS": f"main:{'A' * 43}="}
        return {**super().environment(), **{f"WINML_DAG_{name}": text for name, text in remote.items()}}

    def made(self, out: str, *options: str) -> dict[str, int]:
        """Build and return the traffic with the server; ``stages`` is the number of stages run."""
        done = self.run("build", "-c", "recipe.yaml", "-o", out, "-f", "json", *options)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        ran = {stage["cache_key"] for cell in told["cells"] for stage in cell["stages"] if stage["status"] == "ran"}
        return {**told.get("remote", {}), "stages": len(ran)}

    def names(self, cell: str) -> list[str]:
        return sorted(path.name for path in (self.folder / cell).iterdir() if path.name != SETTINGS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    perceptron(tmp_path / "model.onnx")
    samples(tmp_path / "data.npz")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    return tmp_path


def digests(folder: Path) -> set[str]:
    """Return the digests of all files from stages."""
    own = ("build_manifest.json", SETTINGS, "sweep.json")
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.*") if path.name not in own}


def test_final_only_machine_fetches_only_records_and_final_outputs(
    folder: Path, server: FaultyServer, commands: OneProcess | None
) -> None:
    first, second, third = (Machine(folder, commands, server, name) for name in ("one", "two", "three"))
    assert first.made("out1", "--final-only")["stages"] > 0
    server.requests.clear()

    went = second.made("out2", "--final-only")
    fetched = {
        request.path.rpartition("/")[2]
        for request in server.requests
        if request.method == "GET" and "/cas/" in request.path
    }
    assert (went["stages"], went["records_put"], went["blobs_put"]) == (0, 0, 0)
    assert fetched == digests(folder / "out2")
    assert (went["blobs_fetched"], second.names("out2/w8a8")) == (len(fetched), FINAL)
    assert went["bytes_fetched"] == sum(len(server.content[f"/cas/{digest}"]) for digest in fetched)
    assert server.count("PUT") == 0

    assert third.made("out3")["bytes_fetched"] > went["bytes_fetched"]
    assert third.names("out3/w8a8") == ALL
    assert (folder / "out3/w8a8/model.onnx").read_bytes() == (folder / "out2/w8a8/model.onnx").read_bytes()


def test_toggling_final_only_adds_and_removes_intermediates(
    folder: Path, server: FaultyServer, commands: OneProcess | None
) -> None:
    machine = Machine(folder, commands, server, "one")
    machine.made("out", "--final-only")
    for options, names in (((), ALL), (("--final-only",), FINAL), (("--final-only",), FINAL)):
        assert machine.made("out", *options)["stages"] == 0
        assert machine.names("out/w8a8") == names
        done = machine.run("verify", "out/w8a8")
        assert done.returncode == 0, done.stdout + done.stderr
    told = {stage["id"]: stage["filename"] for stage in machine.manifest("out/w8a8")["stages"] if "filename" in stage}
    assert (told["quantize"], told["optimize.0"], told["finalize"]) == (None, None, "model.onnx")
