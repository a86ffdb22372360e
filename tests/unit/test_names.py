"""One rule for file names from others, wherever they come from: a record, a journal, a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from winml_dag.errors import InputError, StoreError
from winml_dag.onnxmodel.sidecar import sidecar_name
from winml_dag.store.files import check_name

UNSAFE = ["..", "a/../b", "/a", "nul", "COM1.txt", "conin$", "a/CONOUT$", "a\ud800", "a.", "a ", "a:b", "a\\b", "a\x00"]


@pytest.mark.parametrize("name", UNSAFE)
def test_an_unsafe_name_is_refused_in_a_record_and_in_a_model(name: str) -> None:
    with pytest.raises(StoreError):
        check_name(name)
    with pytest.raises(InputError):
        sidecar_name(Path("model.onnx"), name)


@pytest.mark.parametrize("name", ["a", "a.onnx.data", "a/b.bin", "console.txt", "größe.bin"])
def test_an_ordinary_name_is_taken_by_both(name: str) -> None:
    assert check_name(name) == name
    assert sidecar_name(Path("model.onnx"), name) == name
