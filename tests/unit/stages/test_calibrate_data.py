from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantization_samples import SEQUENCE, VOCABULARY, calibrate, image_model, pixels, text_model, token_ids

from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.ranges import Ranges
from winml_dag.stages.samples.read import read_samples
from winml_dag.stages.samples.samples import Samples, random_samples

WORDS = ["[PAD]", "[UNK]", "red", "green", "blue", "fish", "bird", "sings", "swims", "and"]


def ranges_of(result):
    return Ranges.read(result.path).bounds


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def processor(tmp_path_factory):
    """A tokenizer of ten words as transformers saves it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("processor")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    return folder


def test_all_array_layouts_give_the_same_ranges(tmp_path, data):
    ids = token_ids(4)
    stacked = calibrate(tmp_path, text_model(), ids)
    for form in ("npz per sample", "npz with batch axis", "npy stacked", "npy per sample"):
        folder = data / form
        folder.mkdir()
        if form == "npz per sample":
            for index in range(4):
                np.savez(folder / f"{index}.npz", **{name: array[index] for name, array in ids.items()})
        elif form == "npz with batch axis":
            np.savez(folder / "all.npz", **{name: array[:, np.newaxis] for name, array in ids.items()})
        elif form == "npy stacked":
            for name, array in ids.items():
                np.save(folder / f"{name}.npy", array)
        else:
            for name, array in ids.items():
                (folder / name).mkdir()
                for index in range(4):
                    np.save(folder / name / f"{index}.npy", array[index])
        result = calibrate(tmp_path, text_model(), folder)
        assert ranges_of(result) == ranges_of(stacked), form
        assert result.metrics["samples"] == 4
        assert result.metrics["data"] == form[:3]


def test_held_out_samples_are_not_calibrated_on(tmp_path):
    data = pixels(6)
    data["pixels"][4:] *= 1000
    result = calibrate(tmp_path, image_model(), data, samples=100, keep_back=2)
    assert result.metrics["samples"] == 4
    assert ranges_of(result)["pixels"] == (data["pixels"][:4].min(), data["pixels"][:4].max())
    assert calibrate(tmp_path, image_model(), data, samples=100, keep_back=5).metrics["samples"] == 3
    one = {name: array[:1] for name, array in data.items()}
    assert calibrate(tmp_path, image_model(), one, keep_back=3).metrics["samples"] == 1


@given(count=st.integers(1, 50), samples=st.integers(1, 60), keep_back=st.integers(0, 60))
def test_calibration_and_validation_samples_are_disjoint(count, samples, keep_back):
    all_samples = Samples.one_by_one("npz", count, lambda number: {"x": np.array(number)})
    seen = [int(feed["x"]) for feed in all_samples.to_calibrate(samples, keep_back)]
    held_out = [int(feed["x"]) for feed in all_samples.held_out(keep_back)]
    assert seen == list(range(len(seen)))
    assert seen
    assert held_out
    assert (count == 1) == (seen == held_out == [0]) if keep_back else held_out
    assert count == 1 or not keep_back or not set(seen) & set(held_out)
    assert len(seen) == min(samples, count - min(keep_back, count // 2))


def test_random_validation_samples_differ_from_calibration_samples():
    inputs = [TensorSpec("x", "float32", (1, 4))]
    seen = [feed["x"].tobytes() for feed in random_samples(inputs, 5, 0, "uniform")]
    others = [feed["x"].tobytes() for feed in random_samples(inputs, 5, 0, "uniform", purpose="validate")]
    assert len({*seen, *others}) == 10


def test_dynamic_dimension_takes_data_size(tmp_path, data):
    for index, length in enumerate((2, 5, 3)):
        ids = np.arange(length)
        np.savez(data / f"{index}.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    result = calibrate(tmp_path, text_model(batch="batch", length="length"), data)
    assert (result.metrics["data"], result.metrics["samples"]) == ("npz", 3)


def test_integer_width_may_differ_but_values_must_fit(tmp_path):
    ids = token_ids(2)
    narrow = {name: array.astype(np.int32) for name, array in ids.items()}
    assert ranges_of(calibrate(tmp_path, text_model(), narrow)) == ranges_of(calibrate(tmp_path, text_model(), ids))
    with pytest.raises(StageError, match="do not fit"):
        calibrate(tmp_path, text_model(), {name: array + 0.5 for name, array in ids.items()})


def test_text_is_tokenized_padded_and_truncated_to_model_length(tmp_path, data, processor):
    (data / "texts.txt").write_text("red fish\n\nblue bird sings and swims and sings and swims\n", encoding="utf-8")
    by_text = calibrate(tmp_path, text_model(), data, processor)
    red_fish = [WORDS.index(word) for word in ("red", "fish")]
    bird = [WORDS.index(word) for word in ("blue", "bird", "sings", "and", "swims", "and")]
    arrays = {
        "input_ids": np.array([red_fish + [0] * (SEQUENCE - 2), bird]),
        "attention_mask": np.array([[1, 1] + [0] * (SEQUENCE - 2), [1] * SEQUENCE]),
    }
    assert (by_text.metrics["data"], by_text.metrics["samples"]) == ("text", 2)
    assert ranges_of(by_text) == ranges_of(calibrate(tmp_path, text_model(), arrays))


def test_text_columns_equal_text_lines_and_form_pairs(data, processor):
    inputs = [TensorSpec(name, "int64", (1, 6)) for name in ("input_ids", "attention_mask")]
    rows = [{"sentence": "red fish", "other": "sings"}, {"sentence": "blue bird", "other": "swims"}]
    (data / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    by_row = list(read_samples(data, inputs, processor, {"text": "sentence"}))
    pairs = list(read_samples(data, inputs, processor, {"text": "sentence", "text_pair": "other"}))
    (data / "rows.jsonl").unlink()
    (data / "texts.txt").write_text("".join(f"{row['sentence']}\n" for row in rows), encoding="utf-8")
    by_line = list(read_samples(data, inputs, processor))
    assert [feed["input_ids"].tolist() for feed in by_row] == [feed["input_ids"].tolist() for feed in by_line]
    assert [feed["attention_mask"].sum() for feed in by_row] == [2, 2]
    assert [feed["attention_mask"].sum() for feed in pairs] == [3, 3]
    assert pairs[0]["input_ids"][0, :3].tolist() == [WORDS.index(word) for word in ("red", "fish", "sings")]


def test_ranges_record_provenance_of_samples(tmp_path, data):
    ids = token_ids(4)
    stacked = calibrate(tmp_path, text_model(), ids)
    provenance = Ranges.read(stacked.path).provenance
    assert (provenance.data, provenance.samples, provenance.seed, provenance.distribution) == ("npz", 4, None, None)
    np.savez_compressed(data / "packed.npz", **{name: array[:, np.newaxis] for name, array in ids.items()})
    assert calibrate(tmp_path, text_model(), data).content == stacked.content
    (data / "packed.npz").unlink()
    np.savez(data / "other.npz", **{name: array[::-1] for name, array in ids.items()})
    assert Ranges.read(calibrate(tmp_path, text_model(), data).path).provenance.digest != provenance.digest
    other = calibrate(tmp_path, text_model(mask=-40), ids)
    assert Ranges.read(other.path).provenance.model != provenance.model
    random = Ranges.read(calibrate(tmp_path, image_model(), seed=3, distribution="normal").path).provenance
    assert (random.data, random.seed, random.distribution) == ("random", 3, "normal")


def test_seed_selects_among_samples_not_held_out():
    samples = Samples.one_by_one("npz", 50, lambda number: {"x": np.array(number)})
    chosen = {seed: samples.to_calibrate(5, 10, seed).numbers for seed in range(20)}
    assert all(len(numbers) == 5 and max(numbers) < 40 for numbers in chosen.values())
    assert all(list(numbers) == sorted(set(numbers)) for numbers in chosen.values())
    assert chosen[3] == samples.to_calibrate(5, 10, 3).numbers
    assert len({tuple(numbers) for numbers in chosen.values()}) > 10
    assert list(samples.to_calibrate(5, 10).numbers) == [0, 1, 2, 3, 4]
    assert list(samples.to_calibrate(99, 10, 1).numbers) == list(range(40))


def test_text_requires_tokenizer_that_makes_all_inputs(tmp_path, data, processor):
    (data / "texts.txt").write_text("red fish\n", encoding="utf-8")
    with pytest.raises(StageError, match="without a tokenizer"):
        calibrate(tmp_path, text_model(), data)
    with pytest.raises(StageError, match="does not make the model's input pixels"):
        calibrate(tmp_path, image_model(), data, processor)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(StageError, match="no tokenizer"):
        calibrate(tmp_path, text_model(), data, empty)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"input_ids": np.zeros((2, SEQUENCE), np.int64)}, "attention_mask missing"),
        ({**token_ids(2), "labels": np.zeros(2)}, "labels not an input"),
        ({name: array[:, :3] for name, array in token_ids(2).items()}, rf"\[1, {SEQUENCE}\].*\[1, 3\]"),
        (
            {"input_ids": np.zeros((2, SEQUENCE), np.int64), "attention_mask": np.ones((3, SEQUENCE), np.int64)},
            "input_ids 2",
        ),
        ({name: array[:0] for name, array in token_ids(2).items()}, "no sample"),
        ({name: np.array(1) for name in token_ids(1)}, "single number"),
        ({name: array + VOCABULARY for name, array in token_ids(1).items()}, "failed on calibration sample 0"),
    ],
)
def test_arrays_that_do_not_fit_the_model_are_refused(tmp_path, arrays, message):
    with pytest.raises(StageError, match=message):
        calibrate(tmp_path, text_model(), arrays)


def test_unreadable_data_files_are_refused(tmp_path, data):
    with pytest.raises(StageError, match="no file"):
        calibrate(tmp_path, image_model(), data)
    (data / "notes.md").write_text("none")
    with pytest.raises(StageError, match=r"\.md"):
        calibrate(tmp_path, image_model(), data)
    (data / "notes.md").rename(data / "pixels.npz")
    with pytest.raises(StageError, match=r"pixels\.npz cannot be read"):
        calibrate(tmp_path, image_model(), data)
    (data / "pixels.npz").unlink()
    (data / "texts.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(StageError, match=r"texts\.txt cannot be read: 'utf-8'"):
        calibrate(tmp_path, text_model(), data)


def test_pickled_data_is_refused(tmp_path, data):
    np.savez(data / "pixels.npz", pixels=np.array([{"code": "runs"}], dtype=object))
    with pytest.raises(StageError, match="Python objects"):
        calibrate(tmp_path, image_model(), data)
