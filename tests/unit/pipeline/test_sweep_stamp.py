"""An up-to-date sweep is recognized by its stamp, without false positives."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipeline_samples import save_model

from winml_dag import file_reading
from winml_dag.cli import run, sweep

AT_A_GLANCE = "2 cells in 0.0 s: 2 up to date."


class Recipes:
    """A folder of recipes with one user-defined stage each, and the command line next to it."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capture = capture
        for name in ("one", "two"):
            self.write(name, name)

    def write(self, name: str, text: str) -> None:
        place = self.folder / "recipes" / name
        place.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write(sys.argv[2])", "{outputs.out}", text]
        value = {"stages": {"say": {"command": command, "outputs": {"out": "said.txt"}}}}
        (place / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")

    def said(self, name: str) -> Path:
        return self.folder / "recipes" / name / "said.txt"

    def build(self, *more: str, code: int = 0) -> str:
        """Build and return the line with the totals, with seconds set to 0.0; stderr on failure."""
        got = run(["build", "-c", "recipes", "-o", "out", "--cache-dir", "cache", "-q", *more])
        lines = self._capture.readouterr()
        assert got == code, lines.err
        if code:
            return lines.err
        (total,) = [line for line in lines.out.splitlines() if " in " in line and "cell" in line]
        before, _, after = total.partition(" in ")
        return f"{before} in 0.0 s:{after.partition(':')[2]}"


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Recipes:
    """After two builds, of which the second found everything up to date."""
    monkeypatch.chdir(tmp_path)
    # What was written a moment ago would be doubted.
    monkeypatch.setattr(file_reading, "SETTLED_NS", -(10**18))
    recipes = Recipes(tmp_path, capsys)
    assert recipes.build().startswith("2 cells in 0.0 s: 2 built; 2 stages run")
    assert recipes.build() == AT_A_GLANCE
    return recipes


def test_every_change_is_detected(recipes: Recipes) -> None:
    def then(expected: str) -> None:
        assert recipes.build().startswith(expected)
        assert recipes.said("two").is_file()
        assert (recipes.folder / "out" / "sweep.json").is_file()
        # Results rebuilt under an old plan are checked once more.
        recipes.build()
        assert recipes.build().endswith(" up to date.")

    recipes.write("two", "something else")
    then("2 cells in 0.0 s: 1 built, 1 up to date; 1 stage run")
    recipes.said("two").unlink()
    then("2 cells in 0.0 s: 1 built, 1 up to date; 0 stages run")
    (recipes.folder / "out" / "sweep.json").unlink()
    then("2 cells in 0.0 s: 2 up to date; 0 stages run")
    for note in (recipes.folder / "cache" / "standing").glob("*.note"):
        note.write_bytes(note.read_bytes()[:-7])
    then("2 cells in 0.0 s: 2 up to date; 0 stages run")
    for path in (recipes.folder / "cache" / "blobs").rglob("*"):
        if path.is_file():
            path.unlink()
    then("2 cells in 0.0 s: 2 built; 2 stages run")
    recipes.write("three", "three")
    then("3 cells in 0.0 s: 1 built, 2 up to date; 1 stage run")


def test_different_request_is_checked_again(recipes: Recipes) -> None:
    one = "1 cell in 0.0 s: 1 up to date"
    assert recipes.build("--filter", "one").startswith(f"{one};")
    assert recipes.build("--filter", "one") == f"{one}."
    assert recipes.build() == AT_A_GLANCE
    assert recipes.build("--rebuild").startswith("2 cells in 0.0 s: 2 built; 2 stages run")
    # What somebody else has put there is seen.
    (recipes.folder / "out" / "sweep.json").write_text("{}", encoding="utf-8")
    assert "is not what a sweep has left there" in recipes.build(code=2)
    assert (recipes.folder / "out" / "sweep.json").read_text(encoding="utf-8") == "{}"


def test_edited_measurement_data_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(file_reading, "SETTLED_NS", -(10**18))
    save_model(Path("model.onnx"))
    sweep = {
        "optim": None,
        "measure": ["perf"],
        "perf": {"iterations": 2, "warmup": 0, "loads": 1, "input_data": "inputs.npz"},
        "matrix": {"model": ["model.onnx"]},
    }
    Path("sweep.json").write_text(json.dumps(sweep), encoding="utf-8")

    def kept(value: float) -> bytes:
        """Return what is recorded of the sweep after a build."""
        np.savez("inputs.npz", x=np.full((1, 4), value, np.float32))
        few = ("--no-validate", "--no-analyze", "--no-optimize")
        assert run(["build", "-c", "sweep.json", "-o", "out", "--cache-dir", "cache", *few]) == 0
        assert "no perf" not in capsys.readouterr().out
        return Path("out/sweep.json").read_bytes()

    assert kept(1) != kept(2)


def test_sweep_file_replaced_during_build_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However old the file is that replaced the one that was read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(file_reading, "SETTLED_NS", -(10**18))
    save_model(Path("one.onnx"))
    save_model(Path("two.onnx"))
    for name, models in (("sweep.json", ["one.onnx"]), ("other.json", ["one.onnx", "two.onnx"])):
        Path(name).write_text(json.dumps({"optim": None, "matrix": {"model": models}}), encoding="utf-8")
    kept = sweep.keep_sweep_stamp

    def replace_and_keep(*arguments: Any, **options: Any) -> None:
        Path("other.json").replace("sweep.json")
        kept(*arguments, **options)

    build = ["build", "-c", "sweep.json", "-o", "out", "--cache-dir", "cache", "--no-validate", "--no-analyze"]
    with monkeypatch.context() as patched:
        patched.setattr(sweep, "keep_sweep_stamp", replace_and_keep)
        assert run(build) == 0
    capsys.readouterr()
    assert run(build) == 0
    assert "2 cells" in capsys.readouterr().out
