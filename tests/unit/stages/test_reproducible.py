"""The same model, data and config give the same bytes in any process and folder, with any order of sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
_PROGRAM = """
import hashlib, json, sys
from pathlib import Path
from capability_samples import TOGETHER
from metadata_samples import describe
from optimize_samples import attention_block, optimize
from quantization_samples import calibrate, quantize, image_model, outlier_model, rows, text_model, token_ids
from winml_dag.stages.quantize import NodeTypes

folder = Path(sys.argv[1])
results = {}
for method in ("minmax", "entropy", "percentile"):
    results[method] = calibrate(folder, text_model(), token_ids(9), samples=9, calibration_method=method)
results["random"] = calibrate(folder, image_model())
types = {"weight_type": "uint8", "activation_type": "uint16"}
results["image"] = quantize(folder, image_model(), "static", results["random"], "qnn", **types)
results["random 17"] = calibrate(folder, image_model(17))
results["opset 17"] = quantize(folder, image_model(17), "static", results["random 17"], "qnn", **types)
for rules in ("qnn", "onnxruntime"):
    results[rules] = quantize(folder, text_model(), "static", results["minmax"], rules, **types)
    overrides = (NodeTypes("q*", "int4"), NodeTypes("norm", None, "uint8"))
    results[f"mixed {rules}"] = quantize(
        folder, text_model(), "static", results["minmax"], rules, node_overrides=overrides, **types
    )
    four = {"weight_type": "int4", "activation_type": "uint8"}
    results[f"w4a8 {rules}"] = quantize(folder, text_model(), "static", results["minmax"], rules, **four)
blocks = quantize(folder, text_model(), "rtn", rtn_block_size=16)
results["w4a16"] = quantize(folder, blocks.model, "fp16", nodes_to_exclude=("softmax",), fp16_op_block_list=("MatMul",))
results["outliers"] = calibrate(folder, outlier_model(), rows(9), samples=9)
bytes_ = {"weight_type": "uint8", "activation_type": "uint8"}
results["tamed"] = quantize(folder, outlier_model(), "static", results["outliers"], "qnn", **bytes_)
for mode in ("dynamic", "rtn", "fp16"):
    for make in (image_model, text_model):
        results[f"{mode} {make.__name__}"] = quantize(folder, describe(make()), mode)
results["optimized"] = optimize(folder / "optimized", attention_block(), *TOGETHER[:: int(sys.argv[2])])
print(json.dumps({name: hashlib.sha256(result.content).hexdigest() for name, result in results.items()}))
"""


def digests(folder: Path, seed: str, threads: str, order: str) -> dict[str, str]:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": seed,
        "OMP_NUM_THREADS": threads,
        "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parents[1]))),
    }
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", _PROGRAM, str(folder), order]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_ranges_and_models_have_the_same_bytes_in_every_process_and_folder(tmp_path):
    one = digests(tmp_path / "one", seed="1", threads="1", order="1")
    other = digests(tmp_path / "a longer name" / "other", seed="2", threads="2", order="-1")
    assert one == other
    assert len(set(one.values())) == len(one)
