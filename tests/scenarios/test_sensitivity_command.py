"""``winml-dag quantize --sensitivity``: its output, and the files next to the model."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import yaml
from oneprocess import OneProcess
from onnx import numpy_helper
from onnx_samples import perceptron, samples
from scenario import Project

pytestmark = pytest.mark.slow

ASKED = ("quantize", "-m", "model.onnx", "--calibration-data", "data.npz", "-o", "out/small.onnx")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    project = Project(tmp_path_factory.mktemp("sensitivity"), commands)
    perceptron(project.folder / "model.onnx")
    _with_an_outlier(project.folder / "model.onnx")
    samples(project.folder / "data.npz")
    return project


def _with_an_outlier(path: Path) -> None:
    """Make one unused hidden value so large that 8 bits leave few steps for the others."""
    model = onnx.load(path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, row in (("b1", 90.0), ("w2", 0.0)):
        values = numpy_helper.to_array(constants[name]).copy()
        values[0] = row
        constants[name].CopyFrom(numpy_helper.from_array(values, name))
    onnx.save(model, path)


def snippet(output: str) -> str:
    """Return the printed lines of a recipe."""
    lines = output.splitlines()
    first = lines.index("quant:")
    return "\n".join([lines[first], *(line for line in lines[first + 1 :] if line.startswith("  "))])


def test_the_ranking_is_printed_and_lies_beside_the_model_and_its_advice_is_a_recipe(shared: Project) -> None:
    first = shared.run(*ASKED, "-p", "w8a8", "--sensitivity")
    assert first.returncode == 0, first.stderr
    out = shared.folder / "out"
    assert {path.name for path in out.iterdir()} == {
        "small.onnx",
        "small_sensitivity.json",
        "small_sensitivity.png",
    }
    report = json.loads((out / "small_sensitivity.json").read_text())
    assert [node["op_type"] for node in report["nodes"]].count("MatMul") == 2
    assert (
        f"the worst {len(report['nodes'])} of {len(report['nodes'])} nodes, on 3 held-out samples (npz)" in first.stdout
    )

    # The advice was measured: the resulting model is as good as stated.
    chosen = yaml.safe_load(snippet(first.stdout))
    (shared.folder / "spared.yaml").write_text(yaml.safe_dump(chosen))
    names = chosen["quant"]["node_overrides"]
    assert list(names) == [node["node"] for node in report["nodes"][: len(names)]]
    spared = shared.run(*ASKED[:-1], "out/spared.onnx", "-p", "w8a8", "-c", "spared.yaml", "--format", "json")
    assert spared.returncode == 0, spared.stderr
    relief = next(relief for relief in report["relief"] if relief["worst_nodes"] == len(names))
    assert json.loads(spared.stdout)["quality"]["sqnr_db"] == pytest.approx(relief["sqnr_db"], abs=1.5)


def test_the_ranking_is_made_once_and_shown_whenever_it_is_asked_for(shared: Project) -> None:
    asked = (*ASKED, "-p", "w8a16", "--sensitivity")
    first = shared.run(*asked)
    second = shared.run(*asked)
    assert "Up to date" in second.stdout
    assert [line for line in second.stdout.splitlines() if "SQNR" in line] == [
        line for line in first.stdout.splitlines() if "SQNR" in line and not line.startswith("quality:")
    ]
    third = shared.run(*asked, "--format", "json")
    value = json.loads(third.stdout)
    assert {stage["id"]: stage["status"] for stage in value["stages"]}["sensitivity"] == "reused"
    assert value["sensitivity"]["report"].endswith("small_sensitivity.json")
    assert value["sensitivity"]["nodes"]


def test_ranking_runs_no_stage_again_that_was_run_without_it(shared: Project) -> None:
    plain = json.loads(shared.run(*ASKED, "-p", "int4", "--format", "json").stdout)
    assert "sensitivity" not in plain
    ranked = json.loads(shared.run(*ASKED, "-p", "int4", "--sensitivity", "--format", "json").stdout)
    assert [stage["id"] for stage in ranked["stages"] if stage["status"] == "ran"] == ["sensitivity"]


def test_a_report_of_somebody_else_is_not_overwritten(shared: Project) -> None:
    theirs = shared.folder / "other_sensitivity.json"
    theirs.write_text("mine")
    asked = ("quantize", "-m", "model.onnx", "-p", "int4", "-o", "other.onnx", "--sensitivity")
    refused = shared.run(*asked)
    assert (refused.returncode, theirs.read_text()) == (2, "mine")
    assert "other_sensitivity.json is in the way" in refused.stderr
    assert not (shared.folder / "other.onnx").exists()
    assert shared.run(*asked, "--overwrite").returncode == 0
    assert json.loads(theirs.read_text())["nodes"]


def test_without_samples_that_are_kept_back_there_is_no_ranking(shared: Project) -> None:
    refused = shared.run(*ASKED, "-p", "w8a8", "--sensitivity", "--no-validate")
    assert refused.returncode == 2
    assert "--sensitivity runs the samples that are kept back for validation" in refused.stderr


def test_a_chain_is_ranked_by_its_first_quantization(shared: Project, tmp_path: Path) -> None:
    done = shared.run(*ASKED[:-1], str(tmp_path / "chain.onnx"), "-p", "int4", "-p", "fp16", "--sensitivity")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "chain_sensitivity.json").read_text())
    assert (report["mode"], {node["op_type"] for node in report["nodes"]}) == ("rtn", {"MatMul"})
