"""Arrays, images and rows of tables as samples: which are read, and that nothing is run or read without need."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.samples import samples as module
from winml_dag.stages.samples.arrays import npy_samples, npz_samples
from winml_dag.stages.samples.read import read_samples
from winml_dag.stages.samples.samples import Fed, Samples
from winml_dag.stages.samples.tables import chosen_rows, read_tables

INPUT = TensorSpec("x", "float32", (1, 4))


def save(path, array, form):
    if form == "npy":
        np.save(path / "x.npy", array)
    else:
        (np.savez if form == "npz" else np.savez_compressed)(path / "x.npz", x=array)


def opened(path, form, spec=INPUT):
    return npy_samples(path, [path / "x.npy"], [spec]) if form == "npy" else npz_samples([path / "x.npz"], [spec])


@pytest.mark.parametrize("form", ["npy", "npz", "compressed"])
@settings(max_examples=25)
@given(data=st.data())
def test_requested_samples_are_read(tmp_path_factory, form, data):
    count = data.draw(st.integers(1, 30))
    order = data.draw(st.sampled_from(["C", "F"]))
    dtype = data.draw(st.sampled_from(["<f4", ">f4", "<f2", "<i2"]))
    folder = tmp_path_factory.mktemp("arrays")
    array = np.arange(4 * count).reshape(count, 4).astype(dtype, order=order)
    save(folder, array, form)
    samples = opened(folder, form)
    numbers = sorted(data.draw(st.sets(st.integers(0, count - 1))))
    assert samples.count == count
    assert [feed["x"].tolist() for feed in samples.read(numbers)] == [[array[number].tolist()] for number in numbers]


@pytest.mark.parametrize("form", ["npy", "npz", "compressed"])
def test_samples_are_read_without_loading_whole_file(tmp_path, form):
    array = np.zeros((400, 1, 50_000), np.float32)  # 80 MB
    spec = TensorSpec("x", "float32", (1, 50_000))
    save(tmp_path, array, form)
    del array
    tracemalloc.start()
    samples = opened(tmp_path, form, spec)
    assert sum(feed["x"].size for feed in samples.held_out(2)) == 100_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000_000  # the archive is scanned in steps of 16 MiB


def test_files_with_invalid_samples_are_refused(tmp_path):
    save(tmp_path, np.zeros((5, 4), np.float32), "npy")
    samples = opened(tmp_path, "npy")
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:-3])
    with pytest.raises(StageError, match=r"x\.npy cannot be read: it ends in sample 4"):
        list(samples)
    np.save(tmp_path / "x.npy", np.zeros(3, [("a", "f4"), ("b", "f4")]))
    with pytest.raises(StageError, match="takes the shape"):
        list(opened(tmp_path, "npy"))


def test_sample_preparation_time_excludes_use(monkeypatch):
    now = [0]

    def make(number):
        now[0] += 10
        return {"x": np.array([number])}

    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    fed = Fed(Samples.one_by_one("npz", 3, make))
    for _ in range(2):
        for _ in fed.samples:
            now[0] += 1000
    assert fed.seconds == 2 * 3 * 10


def test_digest_is_that_of_arrays_of_one_pass():
    fed, same, other = (
        Fed(Samples.one_by_one(kind, 2, lambda number, add=add: {"x": np.array([number + add])}))
        for kind, add in (("npz", 0), ("npy", 0), ("npz", 1))
    )
    assert len([feed for one in (fed, fed, same, other) for feed in one.samples]) == 8
    assert fed.digest == same.digest != other.digest


PIXELS = TensorSpec("pixel_values", "float32", (1, 3, 4, 4))


def save_processor(folder: Path, size: int = 4) -> Path:
    """Save a processor that resizes, and scales bytes to -1 to 1."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "image_processor_type": "ViTImageProcessor",
        **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True),
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"height": size, "width": size},
        "rescale_factor": 1 / 255,
        "resample": 2,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.fixture
def photos(tmp_path) -> Path:
    (tmp_path / "photos").mkdir()
    return tmp_path / "photos"


@pytest.fixture
def processor(tmp_path) -> Path:
    return save_processor(tmp_path / "processor")


def test_images_are_read_in_name_order_and_processed(photos, processor):
    for name, value in (("b.JPG", 255), ("a.png", 0), ("c/d.bmp", 51), ("e.webp", 204)):
        (photos / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((9, 7, 3), value, np.uint8)).save(photos / name)
    samples = read_samples(photos, [PIXELS], processor)
    assert (samples.kind, samples.count) == ("images", 4)
    means = [float(feed["pixel_values"].mean()) for feed in samples]
    assert means == pytest.approx([-1.0, 1.0, -0.6, 0.6], abs=0.03)


def test_every_image_mode_becomes_upright_rgb(photos, processor):
    grey = np.zeros((6, 4), np.uint8)
    grey[:3] = 255  # the upper half is white
    Image.fromarray(grey).save(photos / "a grey.png")
    Image.fromarray(grey).convert("P").save(photos / "b palette.png")
    Image.fromarray(np.dstack([grey] * 3 + [np.full_like(grey, 9)])).save(photos / "c transparent.png")
    turned = Image.fromarray(np.rot90(grey))
    exif = turned.getexif()
    exif[0x0112] = 6  # rotate by a quarter to the right to display it upright
    turned.save(photos / "d turned.jpg", exif=exif, quality=100)
    for feed in read_samples(photos, [PIXELS], processor):
        assert feed["pixel_values"][0, :, 0].mean() > 0.8
        assert feed["pixel_values"][0, :, 3].mean() < -0.8


def test_invalid_image_is_refused_by_name(photos, processor):
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(photos / "fine.png")
    whole = (photos / "fine.png").read_bytes()
    for content in (b"GIF", whole[: len(whole) // 2]):
        (photos / "fine.png").write_bytes(content)
        with pytest.raises(StageError, match=r"no image that can be read in the file fine\.png"):
            list(read_samples(photos, [PIXELS], processor))


def test_image_requires_processor_with_matching_inputs_and_size(photos, processor, tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(photos / "a.png")
    with pytest.raises(StageError, match="without an image processor"):
        list(read_samples(photos, [PIXELS], None))
    with pytest.raises(StageError, match="does not make the model's input mask"):
        list(read_samples(photos, [PIXELS, TensorSpec("mask", "int64", (1, 4))], processor))
    with pytest.raises(StageError, match=r"takes the shape \[1, 3, 4, 4\], but the file a\.png.*\[1, 3, 6, 6\]"):
        list(read_samples(photos, [PIXELS], save_processor(tmp_path / "larger", size=6)))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(StageError, match="no image processor"):
        list(read_samples(photos, [PIXELS], empty))


ROW = TensorSpec("x", "float32", (1, 3))
FORMATS = ("parquet", "arrow stream", "arrow file", "jsonl", "json", "csv")


def write(folder: Path, form: str, rows: list[dict[str, Any]], name: str = "rows") -> Path:
    """Save *rows* to a file of that format, with batches of three rows where the format has batches."""
    path = folder / f"{name}.{form.split()[0]}"
    if form == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    elif form == "json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif form == "csv":
        lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        table = pa.Table.from_pylist(rows)
        if form == "parquet":
            pa.parquet.write_table(table, path, row_group_size=3)
        else:
            make = pa.ipc.new_stream if form == "arrow stream" else pa.ipc.new_file
            with make(str(path), table.schema) as writer:
                writer.write_table(table, max_chunksize=3)
    return path


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=25)
@given(data=st.data())
def test_requested_rows_are_read_in_every_format(tmp_path_factory, form, data):
    folder = tmp_path_factory.mktemp("rows")
    counts = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
    files, number = [], 0
    for at, count in enumerate(counts):
        rows = [{"number": number + index, "word": f"w{number + index}"} for index in range(count)]
        files.append(write(folder, form, rows, f"part{at}"))
        number += count
    table = read_tables(files)
    assert (table.count, set(table.columns)) == (number, {"number", "word"})
    wanted = sorted(data.draw(st.sets(st.integers(0, number - 1))))
    found = [(at, row["word"]) for at, row in chosen_rows(table, wanted, ["word"])]
    assert found == [(at, f"w{at}") for at in wanted]


@pytest.mark.parametrize("form", ["parquet", "arrow stream", "jsonl", "json"])
def test_column_named_like_an_input_feeds_it(tmp_path, form):
    write(tmp_path, form, [{"x": [float(index)] * 3, "label": index} for index in range(5)])
    samples = read_samples(tmp_path, [ROW], None)
    assert (samples.kind, samples.count) == ("dataset", 5)
    assert [feed["x"].tolist() for feed in samples] == [[[float(index)] * 3] for index in range(5)]
    assert [feed["x"][0, 0] for feed in samples.held_out(2)] == [3, 4]
    # A mapping says so of other columns.
    samples = read_samples(tmp_path, [TensorSpec("y", "float32", ())], None, {"y": "label"})
    assert [float(feed["y"]) for feed in samples] == [0, 1, 2, 3, 4]


def test_npy_file_of_another_name_is_refused_with_how_files_are_called(tmp_path):
    np.save(tmp_path / "z.npy", np.zeros((5, 3), np.float32))
    with pytest.raises(StageError, match="x missing and z not an input") as refused:
        read_samples(tmp_path, [ROW], None)
    assert "called after its input" in refused.value.advice


@pytest.mark.parametrize(
    ("rows", "mapping", "message"),
    [
        ([], {}, "no sample in the data"),
        ([{"y": [1.0] * 3}], {}, "None of the columns"),
        ([{"x": [1.0] * 3}], {"x": "z"}, "no column 'z'"),
        ([{"x": [1.0] * 3}], {"z": "x"}, "'z' is neither an input"),
        ([{"x": None}], {}, "no value in row 0"),
        ([{"x": [[1.0], [1.0, 2.0]]}], {}, "no array for input 'x' in row 0"),
        ([{"x": "three"}], {}, "no array for input 'x' in row 0"),
        ([{"x": [1.0] * 4}], {}, r"takes the shape \[1, 3\], but .*row 0"),
        ([{"text": "red fish"}], {}, "without a tokenizer"),
        ([{"image": "photo.png"}], {}, "no image in row 0"),
    ],
)
def test_rows_that_do_not_fit_the_model_are_refused(tmp_path, rows, mapping, message):
    write(tmp_path, "jsonl", rows)
    with pytest.raises(StageError, match=message):
        list(read_samples(tmp_path, [ROW], None, mapping))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl", ".json", ".csv"])
def test_damaged_table_is_refused_by_name(tmp_path, suffix):
    (tmp_path / f"rows{suffix}").write_bytes(b"[\xff\xfe not a table")
    with pytest.raises(StageError, match=rf"rows\{suffix}"):
        list(read_samples(tmp_path, [ROW], None, {"x": "x"}))


def test_data_files_must_share_columns(tmp_path):
    for name, column in (("a", "x"), ("b", "y")):
        write(tmp_path, "jsonl", [{column: [1.0] * 3}], name)
    with pytest.raises(StageError, match=r"b\.jsonl has no column 'x'"):
        read_samples(tmp_path, [ROW], None)


def test_png_bytes_in_a_row_are_an_image(tmp_path):
    content = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), 255, np.uint8)).save(content, "PNG")
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", "parquet", [{"photo": {"bytes": content.getvalue(), "path": None}}])
    processor = save_processor(tmp_path / "processor")
    (feed,) = read_samples(tmp_path / "data", [PIXELS], processor, {"image": "photo"})
    assert feed["pixel_values"].shape == (1, 3, 4, 4)
    assert np.allclose(feed["pixel_values"], 1)
