"""A rewrite from an installed package: the example of docs/architecture.md, listed, applied and in the key."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx_samples import save
from scenario import with_status

ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    page = ARCHITECTURE.read_text(encoding="utf-8").partition("## Adding a rewrite")[2]
    files = re.split(r"^ --- (\S+)$", page.partition("```diff")[2].partition("```")[0], flags=re.MULTILINE)[1:]
    rule, entry = (re.sub(r"^\+", "", text.lstrip("\n"), flags=re.MULTILINE) for text in files[1::2])
    site = tmp_path / "site"
    metadata = site / "tidy_rewrites-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / files[0]).write_text(rule, encoding="utf-8")
    # An installer writes the lines of pyproject.toml in this form.
    points = entry.replace('[project.entry-points."', "[").replace('"', "")
    (metadata / "entry_points.txt").write_text(points, encoding="utf-8")
    save(tmp_path / "plain.onnx", "g (float[2] x) => (float[2] y) { a = Neg(x) b = Neg(a) y = Relu(b) }")
    return site


def run(site: Path, *arguments: str) -> tuple[int, Any]:
    """Run a command in a process of its own, as a process imports a package once."""
    found = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": found, "WINML_DAG_CACHE_DIR": str(site.parent / "cache")}
    command = [sys.executable, "-m", "winml_dag", *arguments, "--format", "json"]
    done = subprocess.run(command, cwd=site.parent, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def test_rewrite_of_package_is_listed_applied_and_in_key(site: Path) -> None:
    listed = run(site, "optimize", "--list-rewrites")[1]["capabilities"]
    assert [entry["default"] for entry in listed if entry["name"] == "double_neg_elimination"] == [False]

    recipe = {"model": "plain.onnx", "auto": False, "optim": {"double_neg_elimination": True}}
    (site.parent / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    code, value = run(site, "build", "-c", "recipe.json", "-o", "out")
    assert code == 0, value
    assert [node.op_type for node in onnx.load(site.parent / "out" / "model.onnx").graph.node] == ["Relu"]
    assert with_status(run(site, "optimize", "-m", "plain.onnx", "--enable", "double-neg-elimination")[1], "reused")
    assert with_status(run(site, "build", "-c", "recipe.json", "-o", "out")[1], "ran") == []

    (site / "tidy_rewrites-1.0.dist-info").rename(site / "tidy_rewrites-1.1.dist-info")
    assert "optimize" in with_status(run(site, "plan", "-c", "recipe.json", "-o", "out")[1], "ran")

    code, value = run(site, "optimize", "-m", "plain.onnx", "--enable", "double_neg")
    assert code == 2
    assert "did you mean 'double_neg_elimination'" in json.dumps(value["error"])


@pytest.mark.parametrize(
    ("declared", "name", "complaint"),
    [
        ("DOUBLE_NEG = 1", "double_neg_elimination", "is not a rewrite that is off by default"),
        (
            "from winml_dag.recipe.capabilities import Capability\nDOUBLE_NEG = Capability('', rewrite='a:b')",
            "gelu_fusion",
            "has the name 'gelu_fusion', which is taken",
        ),
    ],
)
def test_invalid_declaration_is_refused(site: Path, declared: str, name: str, complaint: str) -> None:
    (site / "tidy_rewrites.py").write_text(declared, encoding="utf-8")
    points = f"[winml_dag.rewrites]\n{name} = tidy_rewrites:DOUBLE_NEG\n"
    (site / "tidy_rewrites-1.0.dist-info" / "entry_points.txt").write_text(points, encoding="utf-8")
    code, value = run(site, "plan", "-m", "plain.onnx", "-o", "out")
    assert code == 2
    assert f"tidy_rewrites:DOUBLE_NEG of tidy_rewrites {complaint}" in json.dumps(value)
