"""Planning, explaining and up-to-date checks must start fast: they import nothing heavy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

HEAVY = {"torch", "transformers", "onnx", "onnxruntime", "onnxscript", "onnx_ir", "numpy", "networkx", "scipy"}
# Used by remotes, clusters and provenance documents.
HEAVY |= {"urllib3", "obstore", "distributed", "dask", "cryptography"}
HEAVY |= {"cyclonedx", "packageurl", "jsonschema", "in_toto_attestation", "google"}


STATEMENTS = """
import sys
import winml_dag.pipeline.build, winml_dag.pipeline.plan, winml_dag.api
import winml_dag.engine.schedule, winml_dag.engine.run, winml_dag.engine.execute
import winml_dag.engine.worker, winml_dag.engine.stage
import winml_dag.store.store; winml_dag.store.store.Store
from winml_dag.stages import calibrate, compile, export, finalize, optimize, quantize, validate
from winml_dag.cli import COMMANDS, run
run(["--help"])
for name in COMMANDS:
    run([name, "--help"])
print(*sorted(m.partition(".")[0] for m in sys.modules), file=sys.stderr)
"""


def test_nothing_heavy_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", STATEMENTS], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "winml_dag" in loaded
    assert not loaded & HEAVY


def test_full_build_imports_few_modules(tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,4] y) { y = MatMul(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    onnx.save(model, tmp_path / "model.onnx")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "winml_dag", "build", "model.onnx", "-p", "w8a8", "-o", "out"],
        cwd=tmp_path,
        env={**os.environ, "WINML_DAG_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    specs = [find_spec(name) for name in set(re.findall(r"\| +(winml_dag[\w.]*)", done.stderr))]
    with_content = [spec for spec in specs if spec and spec.origin and Path(spec.origin).stat().st_size]
    assert 50 < len(with_content) <= 90
