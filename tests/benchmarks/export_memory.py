"""Memory use of export: a BERT with 1 GiB of weights, by exporter.

    python tests/benchmarks/export_memory.py --folder FOLDER [--quick]

Each number is for the stage in a separate process, as in a build. Pages of the mapped checkpoint count as resident,
though the system can reclaim them at any time, so memory not backed by files (``RssAnon``, Linux only) is reported as
well, sampled every 20 ms. ``--quick`` uses a small model. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_MODEL = """
import sys
from transformers import BertConfig, BertModel
width = int(sys.argv[2])
config = BertConfig(hidden_size=width, num_hidden_layers=9, num_attention_heads=12, intermediate_size=4 * width,
                    vocab_size=8192)
BertModel(config).save_pretrained(sys.argv[1])
"""

_STAGE = """
import json, os, re, resource, sys, threading, time
from pathlib import Path
from winml_dag.engine.stage import Workspace
from winml_dag.stages.export import ExportConfig, ExportFields, LoaderFields
from winml_dag.stages.export.conversion import run
import torch, transformers

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

def watch():
    while True:
        largest[0] = max(largest[0], anonymous())
        time.sleep(0.02)

imported, largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, [0]
threading.Thread(target=watch, daemon=True).start()
dynamo, work = sys.argv[1] == "dynamo", Path(sys.argv[2])
work.mkdir(); os.chdir(work); Path("out").mkdir(); Path("hierarchy").mkdir()
outputs = {"model": Path("out"), "hierarchy": Path("hierarchy")}
started = time.perf_counter()
config = ExportConfig(LoaderFields(task="feature-extraction", model_type="bert"), ExportFields(dynamo=dynamo))
run(config, Workspace({"model": Path("../model")}, outputs))
seconds = time.perf_counter() - started
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, largest[0], imported, seconds]))
"""


def _run(folder: Path, program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if finished.returncode:
        sys.exit(finished.stderr)
    return finished.stdout


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    folder = asked.folder.absolute() / "export-memory"
    folder.mkdir(parents=True)
    _run(folder, _MODEL, "model", "96" if asked.quick else "1536")
    found: dict[str, Any] = {"weights": (folder / "model" / "model.safetensors").stat().st_size, "exporters": {}}
    for exporter in ("torchscript", "dynamo"):
        peak, anonymous, imports, seconds = json.loads(_run(folder, _STAGE, exporter, exporter).splitlines()[-1])
        found["exporters"][exporter] = {
            "peak": peak,
            "anonymous": anonymous,
            "imports": imports,
            "seconds": round(seconds, 1),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
