"""Real builds of a real model: what changed is named before a build, in its log and in its manifest."""

from __future__ import annotations

import json
import os
import re

import pytest
from scenario import Project

pytestmark = pytest.mark.slow

CHANGED = r"input model: model\.safetensors changed \(xxh3-128:[0-9a-f]{8} -> [0-9a-f]{8}\)"


def test_one_byte_of_the_model_is_named_before_the_build_in_its_log_and_in_its_manifest(project: Project) -> None:
    """Even with size and time unchanged: the change time reveals it, since writing sets it and nothing resets it."""
    weights = project.folder / "model" / "model.safetensors"
    status = weights.stat()
    with weights.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\x3c")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert weights.stat().st_size == status.st_size
    why = project.run("why", "finalize", "-c", "recipe.yaml", "-o", "out").stdout
    assert re.search(rf"^  export would run: {CHANGED}$", why, re.MULTILINE), why
    planned = project.plan().reason("export")
    assert re.fullmatch(CHANGED, planned)
    built = project.run("build", "-c", "recipe.yaml", "-o", "out").stdout
    assert re.search(rf"^export +ran in [0-9.]+ s: {re.escape(planned)}$", built, re.MULTILINE)
    assert re.search(r": input model: export\.onnx changed \(xxh3-128:", built)
    assert project.manifest()["stages"][0]["reason"] == planned
    ran = set(re.findall(r"^(\w+)(?:\.0)? +ran in ", built, re.MULTILINE))
    assert ran >= {"export", "optimize", "quantize", "compile", "validate", "finalize"}


def test_a_variant_in_a_new_folder_is_compared_with_the_build_that_is_there(project: Project) -> None:
    key = next(stage["cache_key"] for stage in project.manifest()["stages"] if stage["name"] == "quantize")
    project.edit(precision="w8a16")
    quantize = next(stage for stage in project.plan(out="other").stages if stage["stage"] == "quantize")
    assert quantize["kind"] == "first build"
    assert quantize["nearest"]["cache_key"] == key
    (change,) = quantize["nearest"]["changes"]
    assert change == {"kind": "config", "name": "quant.activation_type", "old": "uint8", "new": "uint16"}
    said = project.run("why", "-c", "recipe.yaml", "-o", "other", "--format", "json")
    stages = json.loads(said.stdout)["builds"][0]["stages"]
    assert [stage["stage"] for stage in stages] == ["analyze", "quantize", "compile", "validate", "finalize"]
    assert [stage.get("roots") for stage in stages] == [None, None, *[["quantize"]] * 3]
