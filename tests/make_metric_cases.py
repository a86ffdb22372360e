"""Writes ``tests/unit/stages/metric_cases.json``: results of scikit-learn, scipy and seqeval on random outcomes.

They are computed once and not in the tests: where these packages are installed, transformers imports them, and every
export of the tests takes longer. Run it in a separate environment: ``pip install scikit-learn scipy seqeval``.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
from scipy import stats
from seqeval.metrics import f1_score as entity_f1
from seqeval.metrics import precision_score, recall_score
from sklearn.metrics import accuracy_score, f1_score, top_k_accuracy_score

TO = Path(__file__).parent / "unit" / "stages" / "metric_cases.json"
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "E-LOC", "S-ORG")


def classes(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    count, number = int(rng.integers(5, 60)), int(rng.integers(2, 9))
    truth = rng.integers(0, number, count)
    scores = np.round(rng.normal(size=(count, number)) + 1.5 * np.eye(number)[truth], 6)
    found = scores.argmax(1)
    right = truth == found
    return {
        "truth": truth.tolist(),
        "scores": scores.tolist(),
        "accuracy": accuracy_score(truth, found),
        "macro_f1": f1_score(truth, found, average="macro"),
        "top5_accuracy": top_k_accuracy_score(truth, scores, k=5, labels=range(number)) if number > 5 else None,
        "wilson": list(stats.binomtest(int(right.sum()), count).proportion_ci(method="wilson")),
    }


def correlations(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(4, 60))
    # Integers with many ties, like human scores.
    first = rng.integers(0, 6, count).astype(float)
    second = np.round(first + rng.normal(scale=float(rng.uniform(0.1, 5)), size=count), int(rng.integers(0, 3)))
    return {
        "first": first.tolist(),
        "second": second.tolist(),
        "pearson": stats.pearsonr(first, second).statistic,
        "spearman": stats.spearmanr(first, second).statistic,
    }


def tags(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    true = [chance.choices(TAGS, k=chance.randint(1, 12)) for _ in range(8)]
    found = [[tag if chance.random() < 0.8 else chance.choice(TAGS) for tag in sentence] for sentence in true]
    return {
        "true": true,
        "found": found,
        "precision": precision_score(true, found, zero_division=0),
        "recall": recall_score(true, found, zero_division=0),
        "f1": entity_f1(true, found, zero_division=0),
    }


def mcnemar(seed: int) -> dict[str, Any]:
    one, other = np.random.default_rng(seed).integers(0, 40, 2).tolist()
    of = one + other
    return {"one": one, "other": other, "p_value": stats.binomtest(one, of).pvalue if of else 1.0}


def main() -> None:
    value = {
        "versions": {"scikit-learn": sklearn.__version__, "scipy": scipy.__version__},
        "classes": [classes(seed) for seed in range(12)],
        "correlations": [correlations(seed) for seed in range(12)],
        "tags": [tags(seed) for seed in range(12)],
        "mcnemar": [mcnemar(seed) for seed in range(12)],
    }
    TO.write_text(json.dumps(value) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
