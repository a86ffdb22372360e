"""The quality of a quantized model: measured on samples not used for calibration, and reported wherever a user
looks.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from scenario import Project

pytestmark = pytest.mark.slow

TOKENS = 16


def test_build_reports_quantization_and_quality(project: Project) -> None:
    # A compiled model is held against its float model, on random data.
    quality = project.manifest()["quality"]
    assert (quality["output"], quality["data"], quality["samples"]) == ("logits", "random", 3)
    assert 0.9 < quality["cosine"] < 1
    assert quality["sqnr_db"] > 5
    assert quality["max_abs_error"] > 0
    assert (quality["top1_agreed"], quality["top1_of"]) == (3, 3)
    again = project.build()
    found = again.value["builds"][0]["quantization"]
    assert (found["success"], found["cached"]) == (True, True)
    assert found["quality"].items() <= quality.items()
    assert found["nodes_quantized"] > 0 < found["calibration_time_seconds"]
    assert "quality:" not in again.messages

    # A part of the samples is held out.
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 200, (12, 1, TOKENS))
    mask = (np.arange(TOKENS) < rng.integers(4, TOKENS, (12, 1, 1))).astype(np.int64)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    np.savez(project.folder / "data.npz", **arrays)
    inputs = [{"name": name, "dtype": "int64", "shape": [1, TOKENS]} for name in arrays]
    project.edit(quant__calibration_data="data.npz", precision="w8a16", export__input_tensors=inputs)
    result = project.build()
    assert result.code == 0, result.messages
    quantized, quality = (
        next(line for line in result.messages.splitlines() if line.startswith(word))
        for word in ("quantized ", "quality: ")
    )
    assert re.fullmatch(
        r"quantized \d+ of \d+ nodes( \(left in float: .+\))?, [\d.]+ KiB -> [\d.]+ KiB,"
        r" calibration \d+\.\d s on 8 samples \(npz\), Q/DQ in \d+\.\d s",
        quantized,
    )
    assert re.fullmatch(
        r"quality: cosine (0\.9|1\.0)\d+, SQNR [\d.]+ dB, largest error [\d.e-]+ \(logits\), top-1 \d of 3,"
        r" on 3 held-out samples \(npz\)",
        quality,
    )
    manifest = project.manifest()
    assert manifest["quality"]["held_out"] is True
    stage = project.stage("quantize")
    assert f"quantized {stage['nodes_quantized']} of {stage['nodes_quantized'] + stage['nodes_skipped']} " in quantized
    sizes = [(project.out / f"{name}.onnx").stat().st_size for name in ("optimized", "quantized")]
    assert [stage["size_before_bytes"], stage["size_after_bytes"]] == sizes
    assert (stage["weight_type"], stage["activation_type"]) == ("uint8", "uint16")
    skipped = sum(count for reasons in stage["nodes_skipped_reasons"].values() for count in reasons.values())
    assert skipped == stage["nodes_skipped"]

    # A mode without calibration has a quality, too.
    project.edit(precision="dynamic", ep="cpu")
    result = project.build()
    assert result.code == 0, result.messages
    assert 0.9 < project.manifest()["quality"]["cosine"] <= 1
    assert re.search(r"^quantized .*, dynamic in [\d.]+ s$", result.messages, re.MULTILINE)
