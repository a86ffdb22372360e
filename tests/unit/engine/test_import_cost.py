"""Planning, explaining and up-to-date checks must start fast: they import nothing heavy."""

from __future__ import annotations

import subprocess
import sys

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
