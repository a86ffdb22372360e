"""Tasks on models with known outputs, whose metrics equal those counted by hand, and models compared with others."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from evaluation_samples import (
    LENGTH,
    WORDS,
    evaluate,
    linear_model,
    row_of,
    table,
    text_model,
    value,
    write_processor,
)
from optimize_samples import graph

from winml_dag.errors import StageError
from winml_dag.stages.evaluate import metrics
from winml_dag.stages.evaluate.cases import Labels
from winml_dag.stages.samples.samples import chosen_numbers

CHANCE = random.Random(0)


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals are tested with the metrics."""
    monkeypatch.setattr(metrics, "RESAMPLES", 50)


TAGS = ("O", "B-PER", "I-PER")


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_processor(tmp_path_factory.mktemp("processor"), ("bad", "good", "mixed"))


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_processor(tmp_path_factory.mktemp("tagger"), TAGS)


def sentence(most: int = 8) -> str:
    return " ".join(CHANCE.choices(WORDS, k=CHANCE.randint(1, most)))


@pytest.mark.parametrize("batch", [1, "batch", 4])
def test_text_accuracy_is_share_of_correct_labels(tmp_path: Path, processor: Path, batch: int | str) -> None:
    good, poor = table(3), table(3, seed=1)
    texts = [sentence() for _ in range(30)]
    ids = [[row_of(word) for word in ("[CLS]", *text.split(), "[SEP]")] for text in texts]
    found = [int(good[row].sum(axis=0).argmax()) for row in ids]
    worse = [int(poor[row].sum(axis=0).argmax()) for row in ids]
    labels = [number if at % 5 else (number + 1) % 3 for at, number in enumerate(found)]
    names = ("bad", "good", "mixed")
    report = evaluate(
        tmp_path,
        text_model(tmp_path / "good.onnx", good, ["logits"], pooled=True, batch=batch),
        [{"sentence": text, "label": names[label]} for text, label in zip(texts, labels, strict=True)],
        "text-classification",
        batch_size=5 if batch == "batch" else 1,
        reference=text_model(tmp_path / "poor.onnx", poor, ["logits"], pooled=True, batch=batch),
        processor=processor,
    )
    assert value(report, "accuracy") == pytest.approx(np.mean([a == b for a, b in zip(labels, found, strict=True)]))
    expected = np.mean([a == b for a, b in zip(labels, worse, strict=True)])
    assert value(report, "accuracy", "reference") == pytest.approx(expected, abs=1e-5)
    assert report["metrics"]["accuracy"]["difference"]["test"] == "mcnemar"
    assert (report["samples"], report["of"], report["data"]) == (30, 30, "dataset")


def test_rows_may_hold_model_inputs_and_any_label_column(tmp_path: Path) -> None:
    weights = table(8)[:6]
    rows = np.random.default_rng(2).normal(size=(40, 6)).astype(np.float32)
    scores = rows @ weights
    labels = [int(np.argsort(-row)[at % 8]) for at, row in enumerate(scores)]
    report = evaluate(
        tmp_path,
        linear_model(tmp_path / "m.onnx", weights),
        [{"x": row.tolist(), "kind": f"c{label}"} for row, label in zip(rows, labels, strict=True)],
        "image-classification",
        columns_mapping={"label": "kind"},
        label_mapping={f"c{number}": number for number in range(8)},
    )
    assert value(report, "accuracy") == 1 / 8
    assert value(report, "top5_accuracy") == 5 / 8
    assert report["metrics"]["accuracy"]["reference"] is None


def test_arrays_may_hold_labels_beside_inputs(tmp_path: Path) -> None:
    weights = table(3)[:4]
    x = np.random.default_rng(4).normal(size=(20, 4)).astype(np.float32)
    labels = np.arange(20) % 3
    right = (x @ weights).argmax(1) == labels
    model, task = linear_model(tmp_path / "m.onnx", weights), "image-classification"
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    one, again, first = (
        evaluate(tmp_path, model, tmp_path / "data.npz", task, samples=12, seed=seed) for seed in (1, 1, None)
    )
    assert one == again, "a choice of samples is the same every time"
    assert value(one, "accuracy") == pytest.approx(right[chosen_numbers(20, 12, 1)].mean(), abs=1e-5)
    assert value(first, "accuracy") == pytest.approx(right[:12].mean(), abs=1e-5)
    assert (one["data"], one["samples"], one["of"]) == ("npz", 12, 20)
    np.savez(tmp_path / "named.npz", x=x, kind=np.array(["a", "b", "c"])[labels])
    named = {"columns_mapping": {"label": "kind"}, "label_mapping": {"a": 0, "b": 1, "c": 2}}
    found = evaluate(tmp_path, model, tmp_path / "named.npz", task, seed=1, **named)
    assert value(found, "accuracy") == pytest.approx(right.mean(), abs=1e-5)


def test_images_are_labelled_by_folder(tmp_path: Path) -> None:
    from PIL import Image
    from transformers import ViTImageProcessor

    names = ("blue", "green", "red")
    folder = write_processor(tmp_path / "processor", names)
    (folder / "tokenizer.json").unlink()
    # Independent of the processor: the channel with the highest mean names the class, in byte order.
    ViTImageProcessor(size={"height": 4, "width": 4}).save_pretrained(folder)
    for number, name in enumerate(names):
        for shade in range(3):
            colour = [60, 60, 60]
            colour[2 - number] = 200 + shade
            if shade == 0 and name == "red":
                colour = [0, 250, 0]
            into = tmp_path / "data" / name / f"{shade}.png"
            into.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (5, 7), tuple(colour)).save(into)
    colours = graph(
        """g (float[1, 3, 4, 4] pixel_values) => (float[1, 3] logits)
        <int64[2] axes = {2, 3}, float[3, 3] turned = {0, 0, 1, 0, 1, 0, 1, 0, 0}>
        { rgb = ReduceMean <keepdims = 0> (pixel_values, axes) logits = MatMul (rgb, turned) }"""
    )
    onnx.save(colours, tmp_path / "m.onnx")
    report = evaluate(tmp_path, tmp_path / "m.onnx", tmp_path / "data", "image-classification", processor=folder)
    assert (value(report, "accuracy"), report["data"]) == (pytest.approx(8 / 9, abs=1e-5), "images")


def test_entity_metrics_skip_padding_and_untagged_words(tmp_path: Path, tagger: Path) -> None:
    rows = table(3)
    # Padding would be an entity if it were read.
    rows[row_of("[PAD]")] = [0, 9, 0]
    data, right, words = [], 0, 0
    for at in range(12):
        text = sentence(LENGTH - 2).split()
        tags: list[int] = [int(rows[row_of(word)].argmax()) for word in text]
        if at % 3 == 0:
            tags[-1] = 0 if tags[-1] else 1
        counted = [tag == int(rows[row_of(word)].argmax()) for tag, word in zip(tags, text, strict=True)]
        if at % 4 == 0:
            tags[0], counted = -100, counted[1:]
        right, words = right + sum(counted), words + len(counted)
        data.append({"tokens": text, "ner_tags": tags})
    model = text_model(tmp_path / "m.onnx", rows, ["logits"])
    report = evaluate(tmp_path, model, data, "token-classification", processor=tagger)
    assert value(report, "token_accuracy") == pytest.approx(right / words, abs=1e-5)
    assert 0 < value(report, "entity_f1") < 1
    assert report["metrics"]["entity_f1"]["candidate"]["interval"] == "bootstrap"


def test_plain_tags_are_counted_and_truncated_words_skipped(tmp_path: Path, processor: Path) -> None:
    rows = table(3)
    data = [{"words": text, "tags": " ".join("good" for _ in text.split())} for text in (sentence() for _ in range(4))]
    model = text_model(tmp_path / "m.onnx", rows, ["logits"])
    report = evaluate(tmp_path, model, data, "token-classification", processor=processor)
    every = [int(rows[row_of(word)].argmax()) == 1 for row in data for word in row["words"].split()]
    assert value(report, "token_accuracy") == pytest.approx(np.mean(every), abs=1e-5)
    assert list(report["metrics"]) == ["token_accuracy", "token_macro_f1"]
    assert report["full_texts"] == 0
    found = int(rows[row_of("w1")].argmax())
    tags = [found] * (LENGTH - 2) + [(found + 1) % 3] * (32 - LENGTH)
    long = [{"tokens": ["w1"] * 30, "tags": tags}, {"tokens": ["w1"], "tags": [found]}]
    report = evaluate(tmp_path, model, long, "token-classification", processor=processor)
    assert (value(report, "token_accuracy"), report["full_texts"]) == (1.0, 1)


def test_nan_scores_are_always_wrong(tmp_path: Path, processor: Path, tagger: Path) -> None:
    """Neither that no word is an entity, nor that there is no answer: NaN used as a score looks like that."""
    rows = np.full_like(table(3), np.nan)
    tags = evaluate(
        tmp_path / "tags",
        text_model(tmp_path / "tags.onnx", rows, ["logits"]),
        [{"tokens": ["w1", "w2"], "ner_tags": [0, 0]}],
        "token-classification",
        processor=tagger,
    )
    assert value(tags, "token_accuracy") == 0
    answers = evaluate(
        tmp_path / "answers",
        text_model(tmp_path / "answers.onnx", rows[:, :2], ["start_logits", "end_logits"]),
        [{"question": "w2", "context": "w1 w1", "answers": {"text": []}}],
        "question-answering",
        processor=processor,
    )
    assert (value(answers, "exact_match"), value(answers, "f1")) == (0, 0)


def test_answer_is_found_in_any_window(tmp_path: Path, processor: Path) -> None:
    rows = np.zeros((len(table(1)), 2), np.float32)
    rows[row_of("w7")] = [5, 0]
    rows[row_of("w8")] = [0, 5]
    filler = " ".join(["w1"] * 40)
    data = [
        {"question": "w2", "context": f"{filler} w7 w3 w8 w1", "answers": {"text": ["w7 w3 w8"], "answer_start": [0]}},
        {"question": "w7 w8", "context": "w7 w8 w1", "answers": ["w7 w8", "w1"]},
        {"question": "w2", "context": "w7 w3 w8", "answers": "w7 w8"},
    ]
    model = text_model(tmp_path / "m.onnx", rows, ["start_logits", "end_logits"])
    report = evaluate(tmp_path, model, data, "question-answering", processor=processor)
    assert value(report, "exact_match") == pytest.approx(2 / 3, abs=1e-5)
    assert value(report, "f1") == pytest.approx((1 + 1 + 2 * 2 / 5) / 3, abs=1e-5)


def test_question_may_have_no_answer(tmp_path: Path, processor: Path) -> None:
    rows = np.zeros((len(table(1)), 2), np.float32)
    rows[row_of("w7")] = [5, 5]
    rows[row_of("[CLS]")] = [2, 2]
    data = [
        {"question": "w2", "context": "w1 w7", "answers": {"text": ["w7"]}},
        {"question": "w2", "context": "w1 w1", "answers": {"text": []}},
        {"question": "w2", "context": "w7 w1", "answers": {"text": []}},
    ]
    model = text_model(tmp_path / "m.onnx", rows, ["start_logits", "end_logits"])
    report = evaluate(tmp_path, model, data, "question-answering", processor=processor)
    assert value(report, "exact_match") == pytest.approx(2 / 3, abs=1e-5)


@pytest.mark.parametrize("pooling", [None, "mean", "cls"])
def test_text_similarity_uses_embeddings(tmp_path: Path, processor: Path, pooling: str | None) -> None:
    rows = table(6)
    rows[row_of("[PAD]")] = 100
    pairs = [(sentence(), sentence()) for _ in range(20)]

    def embedding(text: str) -> Any:
        tokens = rows[[row_of(word) for word in ("[CLS]", *text.split(), "[SEP]")]].astype(np.float64)
        return tokens[0] if pooling == "cls" else tokens.mean(axis=0)

    def cosine(first: str, second: str) -> float:
        a, b = embedding(first), embedding(second)
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    # Labels agree with the model for all pairs but the last two.
    cosines = [cosine(*pair) for pair in pairs]
    scores = sorted(range(20), key=cosines.__getitem__)
    people = [float(scores.index(at)) for at in range(20)]
    people[-1], people[-2] = people[-2], people[-1]
    report = evaluate(
        tmp_path,
        text_model(tmp_path / "m.onnx", rows, ["last_hidden_state"]),
        [{"text1": a, "text2": b, "score": score} for (a, b), score in zip(pairs, people, strict=True)],
        "feature-similarity",
        pooling=pooling,
        processor=processor,
    )
    if pooling == "cls":  # all begin with the same token: there is nothing to correlate
        assert report["metrics"]["spearman"]["candidate"]["value"] is None
        return
    swapped = 2 * (people[-1] - people[-2]) ** 2
    assert value(report, "spearman") == pytest.approx(1 - 6 * swapped / (20 * (20**2 - 1)), abs=1e-5)
    assert value(report, "pearson") == pytest.approx(np.corrcoef(people, cosines)[0, 1], abs=1e-5)


X = np.zeros((2, 2), np.float32)


@pytest.mark.parametrize(
    ("data", "fields", "message"),
    [
        ([{"x": [0, 0], "label": "dog"}], {}, "'dog' of row 0 is not a number, and the model has no names"),
        ([{"x": [0, 0], "label": 7}], {}, "row 0 is class 7, and the model has 3 classes"),
        ([{"x": [0, 0], "label": -1}], {}, "row 0 is class -1, and the model has 3 classes"),
        ([{"x": [0, 0], "label": "dog"}], {"label_mapping": {"cat": 0}}, "'dog' of row 0 is not in label_mapping"),
        ([{"x": [0, 0]}], {}, "no column label or labels"),
        ([{"x": [0, 0], "label": 1}], {"columns_mapping": {"label": "kind"}}, "no column kind"),
        ([{"x": [0, 0], "label": None}], {}, "Column 'label' has no value in row 0"),
        ([{"x": [0, 0], "label": 1}], {"batch_size": 4}, "takes 1 at once, and a batch of 4"),
        ({"x": X}, {}, "no column label or labels"),
        ({"x": X, "label": np.arange(3)}, {}, "different numbers of samples: label 3, x 2"),
        ({"x": X, "label": np.array(1)}, {}, "data of 'label' is a single number"),
        ({"x": X, "label": np.array([0, 7])}, {}, "sample 1 is class 7, and the model has 3 classes"),
        ({"x": X, "label": np.array([0, 1]), "y": np.zeros(2)}, {}, "y not an input"),
        (X, {}, "only one .npz file can have them"),
    ],
)
def test_unsuitable_data_is_refused_by_name(tmp_path: Path, data: Any, fields: dict[str, Any], message: str) -> None:
    model = linear_model(tmp_path / "m.onnx", np.ones((2, 3), np.float32))
    if not isinstance(data, list):
        file = tmp_path / ("data.npz" if isinstance(data, dict) else "data.npy")
        np.savez(file, **data) if isinstance(data, dict) else np.save(file, data)
        data = file
    with pytest.raises(StageError) as caught:
        evaluate(tmp_path, model, data, "text-classification", **fields)
    assert message in str(caught.value)


def test_labels_accept_any_number_form_and_case(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "NEGATIVE", "1": "POSITIVE"}}))
    labels = Labels.of(None, tmp_path)
    assert [labels.number(one, "row 0") for one in (1, 1.0, True, "1", "positive", "POSITIVE ")] == [1] * 6
    assert [Labels.of({"O": 0, "B-X": 1}, None).name(number) for number in (0, 1, 2)] == ["O", "B-X", "2"]
    with pytest.raises(StageError, match=r"'neutral' of row 3 .* has: NEGATIVE, POSITIVE"):
        labels.number("neutral", "row 3")


def test_random_inputs_are_compared_without_data_in_batches_too(tmp_path: Path) -> None:
    model = linear_model(tmp_path / "m.onnx", table(8)[:6], batch="batch")
    alone, together = (evaluate(tmp_path, model, None, samples=7, batch_size=size, reference=model) for size in (1, 3))
    assert alone == together
    assert alone["outputs"]["logits"]["cosine"] == 1.0
    assert (alone["data"], alone["of"]) == ("random", None)


def test_nan_reference_values_are_skipped_and_counted(tmp_path: Path) -> None:
    rows = table(3)[:4]
    rows[0, 0] = np.nan
    model = linear_model(tmp_path / "m.onnx", rows)
    report = evaluate(tmp_path, model, None, samples=5, reference=model)
    (output,) = report["outputs"].values()
    assert (output["cosine"], output["nan_count"], output["reference_nan_count"]) == (1.0, 0, 5)


def test_models_may_have_different_batch_sizes(tmp_path: Path) -> None:
    weights = table(3)[:4]
    rows = np.random.default_rng(5).normal(size=(7, 4)).astype(np.float32)
    labels = (rows @ weights).argmax(1)
    np.savez(tmp_path / "data.npz", x=rows, label=labels)
    models = {size: linear_model(tmp_path / f"{size}.onnx", weights, batch=size) for size in (1, 4, "batch")}
    for one, other in ((1, 4), (4, "batch"), ("batch", 1)):
        data, task = tmp_path / "data.npz", "text-classification"
        report = evaluate(tmp_path, models[one], data, task, reference=models[other])
        assert value(report, "accuracy") == value(report, "accuracy", "reference") == 1.0


def test_open_sizes_come_from_the_other_model(tmp_path: Path) -> None:
    fixed = text_model(tmp_path / "fixed.onnx", table(3), ["logits"])
    free = text_model(tmp_path / "free.onnx", table(3), ["logits"], length="length")
    for candidate, reference in ((fixed, free), (free, fixed)):
        report = evaluate(tmp_path, candidate, None, samples=2, reference=reference)
        assert report["outputs"]["logits"]["cosine"] == 1.0


def test_reference_gets_full_precision_inputs(tmp_path: Path) -> None:
    """In float16 both columns are equal, so a reference with float16 inputs finds no class."""
    weights = np.array([[1, -1], [-1, 1]], np.float32)
    rows = [{"x": [1.0001, 1.0], "label": 0}, {"x": [1.0, 1.0001], "label": 1}]
    report = evaluate(
        tmp_path,
        linear_model(tmp_path / "half.onnx", weights.astype(np.float16)),
        rows,
        "text-classification",
        reference=linear_model(tmp_path / "float.onnx", weights),
    )
    assert value(report, "accuracy", "reference") == 1.0
    assert value(report, "accuracy") == 0.5
