"""An execution provider from an installed package, and a build for it, which onnxruntime runs on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx_samples import perceptron
from scenario import with_status

_DECLARATION = """\
from winml_dag.ep.provider import SIGNED, ExecutionProvider, Integers, Option


class _Acme(ExecutionProvider):
    def option_table(self, device):
        return {"speed": Option(values=("slow", "fast"))}

    def with_defaults(self, device, given):
        return {"speed": "fast", **given}


ACME = _Acme(
    name="AcmeExecutionProvider",
    alias="acme",
    devices=("npu",),
    places={"npu": 9},
    how_to_get="Buy one.",
    ihv_type="Acme",
    runs_as="CPUExecutionProvider",
    integers=Integers(SIGNED, SIGNED, activation_symmetric=True, source="https://example.org", reason="signed only"),
)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    metadata = site / "acme_provider-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "acme_provider.py").write_text(_DECLARATION, encoding="utf-8")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-provider\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[winml_dag.providers]\nacme = acme_provider:ACME\n")
    perceptron(tmp_path / "plain.onnx")
    return site


def run(site: Path, *arguments: str) -> tuple[int, Any, str]:
    """Run a command in a process of its own, as a process imports a package once."""
    found = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": found, "WINML_DAG_CACHE_DIR": str(site.parent / "cache")}
    command = [sys.executable, "-m", "winml_dag", *arguments, "--format", "json"]
    done = subprocess.run(command, cwd=site.parent, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout), done.stderr


def test_plugin_provider_is_listed_quantized_for_and_run(site: Path) -> None:
    _, value, _ = run(site, "sys")
    assert "AcmeExecutionProvider" in json.dumps(value)
    build = ("-m", "plain.onnx", "--ep", "acme", "-p", "w8a8", "--no-optimize", "--no-analyze", "-o", "out")
    code, value, messages = run(site, "build", *build)
    assert code == 0, messages
    assert with_status(value, "ran") == ["calibrate", "quantize", "validate", "finalize"]
    model = onnx.load(site.parent / "out" / "model.onnx")
    types = {tensor.data_type for tensor in model.graph.initializer if tensor.name.endswith("_zero_point")}
    assert types <= {onnx.TensorProto.INT8, onnx.TensorProto.INT32}
    assert types

    assert with_status(run(site, "build", *build)[1], "ran") == []
    # The package's declaration is in the keys: another version of it is different work.
    (site / "acme_provider-1.0.dist-info").rename(site / "acme_provider-1.1.dist-info")
    (site / "acme_provider-1.1.dist-info" / "METADATA").write_text("Name: acme-provider\nVersion: 1.1\n")
    code, value, _ = run(site, "plan", *build)
    assert code == 0
    assert "quantize" in with_status(value, "reused")
    assert "validate" in with_status(value, "ran")

    # It checks its options.
    (site.parent / "recipe.json").write_text(
        json.dumps({"model": "plain.onnx", "ep": "acme", "compile": {"provider_options": {"sped": "fast"}}})
    )
    code, value, messages = run(site, "plan", "-c", "recipe.json")
    assert code == 2
    assert "'speed'" in json.dumps(value) + messages

    (site / "acme_provider.py").write_text("ACME = 1\n", encoding="utf-8")
    code, value, messages = run(site, "plan", "-c", "recipe.json")
    assert code == 2
    assert "acme_provider:ACME of acme_provider is not an execution provider" in json.dumps(value) + messages
