"""Peak memory of each stage for a BERT with 1 GiB of weights: ``python memory_bench.py --folder DIR [--quick]``.

One build in w8a8 for the CPU. Every stage is a process, and the build records its peak resident memory, including pages
of mapped files, which the system can reclaim. ``--quick`` uses a small model. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

_MODEL = """
import sys
from transformers import BertConfig, BertModel
width = int(sys.argv[2])
config = BertConfig(hidden_size=width, num_hidden_layers=9, num_attention_heads=12, intermediate_size=4 * width,
                    vocab_size=8192)
BertModel(config).save_pretrained(sys.argv[1])
"""
_RECIPE = {
    "model": "model",
    "loader": {"task": "feature-extraction"},
    "precision": "w8a8",
    "ep": "cpu",
    "device": "cpu",
}
_RECIPE |= {"export": {"shape_config": {"sequence_length": 128}}, "quant": {"samples": 4}, "validate": {"samples": 4}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    folder = asked.folder.absolute() / "memory"
    folder.mkdir(parents=True)
    subprocess.run([sys.executable, "-c", _MODEL, "model", "96" if asked.quick else "1536"], cwd=folder, check=True)
    (folder / "recipe.json").write_text(json.dumps(_RECIPE), encoding="utf-8")
    arguments = ["build", "-q", "-c", "recipe.json", "-o", "out", "--cache-dir", "cache", "-j", "1"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "winml_dag", *arguments]
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
    stages = json.loads((folder / "out" / "build_manifest.json").read_text(encoding="utf-8"))["stages"]
    found = {
        "weights": (folder / "model" / "model.safetensors").stat().st_size,
        "stages": {
            stage["name"]: {"peak": stage["metrics"]["peak_memory_bytes"], "seconds": stage["elapsed_seconds"]}
            for stage in stages
            if stage["metrics"]
        },
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
