"""The same model, data and config give the same bytes in any process and folder, with any order of sets."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from capability_samples import TOGETHER
from metadata_samples import describe
from optimize_samples import attention_block, graph, optimize
from quantization_samples import calibrate, image_model, outlier_model, quantize, rows, text_model, token_ids

from winml_dag.stages.quantize import NodeTypes

HERE = Path(__file__).parent


def digests(folder: Path, order: int) -> dict[str, str]:
    """Return the digest of each result of these stages in *folder*; *order* is that of the capabilities."""
    results = {
        each: calibrate(folder, text_model(), token_ids(9), samples=9, calibration_method=each)
        for each in ("minmax", "percentile")
    }
    small = graph("g (float[1, 6, 32] x) => (float[1, 6, 32] y) { y = Relu (x) }")
    # onnxruntime needs 0.2 s for the entropy of each value.
    results["entropy"] = calibrate(folder, small, rows(9), samples=9, calibration_method="entropy")
    results["random"] = calibrate(folder, image_model(17))
    results["outliers"] = calibrate(folder, outlier_model(), rows(9), samples=9)
    eight = {"weight_type": "uint8", "activation_type": "uint8"}
    sixteen = {**eight, "activation_type": "uint16"}
    mixed = (NodeTypes("q*", "int4"), NodeTypes("norm", None, "uint8"))
    for name, model, ranges, rules, fields in (
        ("image", image_model(17), "random", "qnn", sixteen),
        ("text", text_model(), "minmax", "onnxruntime", {**sixteen, "node_overrides": mixed}),
        ("w4a8", text_model(), "minmax", "qnn", {**eight, "weight_type": "int4"}),
        ("tamed", outlier_model(), "outliers", "qnn", eight),
    ):
        results[name] = quantize(folder, model, "static", results[ranges], rules, **fields)
    for mode, model in (("dynamic", text_model()), ("rtn", text_model()), ("fp16", image_model())):
        results[mode] = quantize(folder, describe(model), mode, rtn_block_size=16)
    fields = {"nodes_to_exclude": ("softmax",), "fp16_op_block_list": ("MatMul",)}
    results["w4a16"] = quantize(folder, results["rtn"].model, "fp16", **fields)
    optimized = optimize(folder / "optimized", attention_block(), *TOGETHER[::order])
    contents = {name: result.content for name, result in {**results, "optimized": optimized}.items()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


@pytest.mark.slow
def test_ranges_and_models_have_same_bytes_in_any_process_and_folder(tmp_path: Path) -> None:
    here = digests(tmp_path / "one", 1)
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "2",
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parents[1]))),
    }
    program = "import json, pathlib, test_reproducible as t; print(json.dumps(t.digests(pathlib.Path.cwd(), -1)))"
    (other := tmp_path / "a longer name").mkdir()
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=other, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == here
    assert len(set(here.values())) == len(here)
