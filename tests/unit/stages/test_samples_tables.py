"""Rows of tables as samples: which rows and columns, and that nothing is run or read without need."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.stages.samples.read import read_samples
from winml_dag.stages.samples.tables import chosen_rows, read_tables

INPUT = InputSpec("x", "float32", (1, 3))
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
@given(data=st.data())
def test_the_rows_that_are_asked_for_are_read_whatever_the_format(tmp_path_factory, form, data):
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
def test_a_column_called_like_an_input_is_that_input(tmp_path, form):
    write(tmp_path, form, [{"x": [float(index)] * 3, "label": index} for index in range(5)])
    samples = read_samples(tmp_path, [INPUT], None)
    assert (samples.kind, samples.count) == ("dataset", 5)
    assert [feed["x"].tolist() for feed in samples] == [[[float(index)] * 3] for index in range(5)]
    assert [feed["x"][0, 0] for feed in samples.held_out(2)] == [3, 4]


def test_a_mapping_says_which_column_is_which_input(tmp_path):
    write(tmp_path, "csv", [{"a": 1.5, "b": 2}, {"a": 2.5, "b": 3}])
    scalar = InputSpec("x", "float32", ())
    assert [float(feed["x"]) for feed in read_samples(tmp_path, [scalar], None, {"x": "a"})] == [1.5, 2.5]


@pytest.mark.parametrize(
    ("rows", "mapping", "message"),
    [
        ([{"y": [1.0] * 3}], {}, "None of the columns"),
        ([{"x": [1.0] * 3}], {"x": "z"}, "no column 'z'"),
        ([{"x": [1.0] * 3}], {"z": "x"}, "'z' is neither an input"),
        ([{"x": None}], {}, "no value in row 0"),
        ([{"x": [[1.0], [1.0, 2.0]]}], {}, "no array for input 'x' in row 0"),
        ([{"x": "three"}], {}, "no array for input 'x' in row 0"),
        ([{"x": [1.0] * 4}], {}, r"\[1, 3\].*row 0.*\[4\]|row 0"),
        ([{"text": "red fish"}], {}, "without a tokenizer"),
        ([{"image": "photo.png"}], {}, "no image in row 0"),
    ],
)
def test_rows_that_do_not_fit_the_model_are_refused(tmp_path, rows, mapping, message):
    write(tmp_path, "jsonl", rows)
    with pytest.raises(StageError, match=message):
        list(read_samples(tmp_path, [INPUT], None, mapping))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl", ".json", ".csv"])
def test_a_damaged_file_is_refused_by_its_name(tmp_path, suffix):
    (tmp_path / f"rows{suffix}").write_bytes(b"[\xff\xfe not a table")
    with pytest.raises(StageError, match=rf"rows\{suffix}"):
        list(read_samples(tmp_path, [INPUT], None, {"x": "x"}))


def test_files_of_one_data_set_have_the_same_columns(tmp_path):
    write(tmp_path, "jsonl", [{"x": [1.0] * 3}], "a")
    write(tmp_path, "jsonl", [{"y": [1.0] * 3}], "b")
    with pytest.raises(StageError, match=r"b\.jsonl has no column 'x'"):
        read_samples(tmp_path, [INPUT], None)


def test_a_png_in_a_row_is_an_image(tmp_path):
    from PIL import Image
    from test_samples_images import SPEC, save_processor

    content = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), 255, np.uint8)).save(content, "PNG")
    pa.parquet.write_table(
        pa.Table.from_pylist([{"photo": {"bytes": content.getvalue(), "path": None}}]), tmp_path / "rows.parquet"
    )
    processor = save_processor(tmp_path / "processor")
    (feed,) = read_samples(tmp_path_of(tmp_path), [SPEC], processor, {"image": "photo"})
    assert feed["pixel_values"].shape == (1, 3, 4, 4)
    assert np.allclose(feed["pixel_values"], 1)


def tmp_path_of(folder: Path) -> Path:
    """Return a folder with only the table."""
    alone = folder / "alone"
    alone.mkdir()
    (folder / "rows.parquet").rename(alone / "rows.parquet")
    return alone
