"""Image files as samples, through an image processor as transformers saves it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.stages.samples.read import read_samples

SPEC = InputSpec("pixel_values", "float32", (1, 3, 4, 4))


def save_processor(folder: Path, size: int = 4) -> Path:
    """Save a processor that resizes, and scales bytes to -1 to 1."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "size": {"height": size, "width": size},
        "rescale_factor": 1 / 255,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 2,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    return folder


@pytest.fixture
def processor(tmp_path) -> Path:
    return save_processor(tmp_path / "processor")


def test_images_are_read_in_the_order_of_their_names_and_made_what_the_model_takes(photos, processor):
    for name, value in (("b.JPG", 255), ("a.png", 0), ("c/d.bmp", 51), ("e.webp", 204)):
        (photos / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((9, 7, 3), value, np.uint8)).save(photos / name)
    samples = read_samples(photos, [SPEC], processor)
    assert (samples.kind, samples.count) == ("images", 4)
    means = [float(feed["pixel_values"].mean()) for feed in samples]
    assert means == pytest.approx([-1.0, 1.0, -0.6, 0.6], abs=0.03)


def test_every_kind_of_image_becomes_colour_and_stands_upright(photos, processor):
    grey = np.zeros((6, 4), np.uint8)
    grey[:3] = 255  # the upper half is white
    Image.fromarray(grey).save(photos / "a grey.png")
    Image.fromarray(grey).convert("P").save(photos / "b palette.png")
    Image.fromarray(np.dstack([grey] * 3 + [np.full_like(grey, 9)])).save(photos / "c transparent.png")
    turned = Image.fromarray(np.rot90(grey))
    exif = turned.getexif()
    exif[0x0112] = 6  # rotate by a quarter to the right to display it upright
    turned.save(photos / "d turned.jpg", exif=exif, quality=100)
    for feed in read_samples(photos, [SPEC], processor):
        assert feed["pixel_values"][0, :, 0].mean() > 0.8
        assert feed["pixel_values"][0, :, 3].mean() < -0.8


def test_what_is_no_image_is_refused_by_its_name(photos, processor):
    (photos / "fine.png").write_bytes(b"GIF")
    with pytest.raises(StageError, match=r"no image that can be read in the file fine\.png"):
        list(read_samples(photos, [SPEC], processor))
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(photos / "fine.png")
    content = (photos / "fine.png").read_bytes()
    (photos / "fine.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(StageError, match=r"no image that can be read in the file fine\.png"):
        list(read_samples(photos, [SPEC], processor))


def test_an_image_needs_a_processor_that_makes_all_inputs_in_their_size(photos, processor, tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(photos / "a.png")
    with pytest.raises(StageError, match="without an image processor"):
        list(read_samples(photos, [SPEC], None))
    with pytest.raises(StageError, match="does not make the model's input mask"):
        list(read_samples(photos, [SPEC, InputSpec("mask", "int64", (1, 4))], processor))
    with pytest.raises(StageError, match=r"takes the shape \[1, 3, 4, 4\], but the file a\.png.*\[1, 3, 6, 6\]"):
        list(read_samples(photos, [SPEC], save_processor(tmp_path / "larger", size=6)))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(StageError, match="no image processor"):
        list(read_samples(photos, [SPEC], empty))
