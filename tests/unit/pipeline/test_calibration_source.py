"""The recipe's calibration data, under the names that stages see, in a form that they can read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from winml_dag.errors import InputError
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.pipeline.data import calibration_source
from winml_dag.stages.samples.read import read_samples

INPUT = InputSpec("input_ids", "int32", (1, 4))


@pytest.mark.parametrize("name", ["input_ids.npy", "any name.npz"])
def test_a_single_file_of_arrays_can_be_read(tmp_path: Path, name: str) -> None:
    arrays = np.arange(12, dtype=np.int32).reshape(3, 4)
    path = tmp_path / name
    np.save(path, arrays) if path.suffix == ".npy" else np.savez(path, input_ids=arrays)
    placed = tmp_path / "input"
    placed.mkdir()
    for file in calibration_source(path).files:
        shutil.copy(file.path, placed / file.name)
    assert [feed["input_ids"].tolist() for feed in read_samples(placed, [INPUT], None)] == arrays[:, None].tolist()


def test_what_tells_about_images_is_not_among_them(tmp_path: Path) -> None:
    for name in ("b.PNG", "a/c.jpeg", "metadata.csv", "notes.md", "labels.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"content")
    assert [file.name for file in calibration_source(tmp_path).files] == ["a/c.jpeg", "b.PNG"]


def test_data_of_two_kinds_are_refused_with_both_named(tmp_path: Path) -> None:
    for name in ("a.npz", "b.txt"):
        (tmp_path / name).write_bytes(b"content")
    with pytest.raises(InputError, match="several kinds: npz, text") as caught:
        calibration_source(tmp_path)
    assert "folder of their own" in caught.value.advice
