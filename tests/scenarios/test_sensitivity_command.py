"""``winml-dag quantize --sensitivity``: its output, and the files next to the model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest
import yaml
from onnx import numpy_helper
from scenario import Project, with_status

pytestmark = pytest.mark.slow

ASKED = ("quantize", "-m", "model.onnx", "--calibration-data", "data.npz", "-o", "out/small.onnx")


@pytest.fixture(scope="module")
def shared(shared: Project) -> Project:
    _with_an_outlier(shared.folder / "model.onnx")
    return shared


def _with_an_outlier(path: Path) -> None:
    """Make one unused hidden value so large that 8 bits leave few steps for the others."""
    model = onnx.load(path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, row in (("b1", 90.0), ("w2", 0.0)):
        values = numpy_helper.to_array(constants[name]).copy()
        values[0] = row
        constants[name].CopyFrom(numpy_helper.from_array(values, name))
    onnx.save(model, path)


def test_sensitivity_ranking_is_printed_saved_and_usable_as_recipe(shared: Project) -> None:
    told = shared.says(*ASKED, "-p", "w8a8", "--sensitivity")
    files = {path.name for path in (shared.folder / "out").iterdir()}
    assert files == {"small.onnx", "small_sensitivity.json", "small_sensitivity.png"}
    report = shared.json("out", "small_sensitivity.json")
    nodes = len(report["nodes"])
    assert [node["op_type"] for node in report["nodes"]].count("MatMul") == 2
    assert f"the worst {nodes} of {nodes} nodes, on 3 held-out samples (npz)" in told

    # The advice was measured: the resulting model is as good as stated.
    section = re.search(r"^quant:\n(  .*\n)+", told, re.MULTILINE)
    assert section is not None
    chosen = yaml.safe_load(section[0])
    shared.save("spared.yaml", chosen)
    names = chosen["quant"]["node_overrides"]
    assert list(names) == [node["node"] for node in report["nodes"][: len(names)]]
    spared = shared.told(*ASKED[:-1], "out/spared.onnx", "-p", "w8a8", "-c", "spared.yaml")
    relief = next(relief for relief in report["relief"] if relief["worst_nodes"] == len(names))
    assert spared["quality"]["sqnr_db"] == pytest.approx(relief["sqnr_db"], abs=1.5)


def test_sensitivity_ranking_is_cached_and_shown_again(shared: Project) -> None:
    asked = (*ASKED, "-p", "w8a16", "--sensitivity")
    first, second = (shared.says(*asked).splitlines() for _ in range(2))
    assert any("Up to date" in line for line in second)
    assert [line for line in second if "SQNR" in line] == [
        line for line in first if "SQNR" in line and not line.startswith("quality:")
    ]
    value = shared.told(*asked)
    assert {stage["id"]: stage["status"] for stage in value["stages"]}["sensitivity"] == "reused"
    assert value["sensitivity"]["report"].endswith("small_sensitivity.json")
    assert value["sensitivity"]["nodes"]


def test_sensitivity_ranking_reuses_earlier_stages(shared: Project) -> None:
    assert "sensitivity" not in shared.told(*ASKED, "-p", "int4")
    assert with_status(shared.told(*ASKED, "-p", "int4", "--sensitivity"), "ran") == ["sensitivity"]


def test_foreign_report_is_not_overwritten(shared: Project) -> None:
    theirs = shared.folder / "other_sensitivity.json"
    theirs.write_text("mine")
    asked = ("quantize", "-m", "model.onnx", "-p", "int4", "-o", "other.onnx", "--sensitivity")
    assert "other_sensitivity.json is in the way" in shared.says(*asked, code=2)
    assert theirs.read_text() == "mine"
    assert not (shared.folder / "other.onnx").exists()
    shared.says(*asked, "--overwrite")
    assert json.loads(theirs.read_text())["nodes"]


def test_sensitivity_without_validation_is_refused(shared: Project) -> None:
    refused = shared.says(*ASKED, "-p", "w8a8", "--sensitivity", "--no-validate", code=2)
    assert "--sensitivity runs the samples that are kept back for validation" in refused


def test_chain_is_ranked_by_its_first_quantization(shared: Project, tmp_path: Path) -> None:
    shared.says(*ASKED[:-1], str(tmp_path / "chain.onnx"), "-p", "int4", "-p", "fp16", "--sensitivity")
    report = json.loads((tmp_path / "chain_sensitivity.json").read_text())
    assert (report["mode"], {node["op_type"] for node in report["nodes"]}) == ("rtn", {"MatMul"})
