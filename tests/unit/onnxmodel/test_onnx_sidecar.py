from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.errors import InputError
from winml_dag.onnxmodel.sidecar import sidecar_name, sidecar_path

MODEL = Path("folder/model.onnx")


@pytest.mark.parametrize(
    "location",
    [
        "",
        ".",
        "..",
        "../model.data",
        "weights/../../model.data",
        "/etc/passwd",
        "//server/share/file",
        "C:/model.data",
        "C:model.data",
        "weights\\model.data",
        "\\\\server\\share",
        "nul",
        "NUL.data",
        "weights/com1.bin",
        "model.data.",
        "model.data ",
        "model.data:stream",
        "model\x00.data",
        "*/_ORT_MEM_ADDR_/*",
    ],
)
def test_names_that_could_leave_the_folder_are_refused(location: str) -> None:
    with pytest.raises(InputError, match=r"model\.onnx"):
        sidecar_name(MODEL, location)


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("model.onnx.data", "model.onnx.data"),
        ("./model.data", "model.data"),
        ("weights//part-1.bin", "weights/part-1.bin"),
        ("Grüße.bin", "Grüße.bin"),
    ],
)
def test_plain_names_are_taken(location: str, name: str) -> None:
    assert sidecar_name(MODEL, location) == name


@given(st.text(alphabet=st.sampled_from("ab./\\:~ \x00"), max_size=12))
def test_an_accepted_name_stays_in_its_folder(location: str) -> None:
    try:
        name = sidecar_name(MODEL, location)
    except InputError:
        return
    folder = MODEL.parent.absolute()
    assert folder in (folder / name).resolve().parents


def test_a_link_is_refused_wherever_it_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "w.bin").write_bytes(b"1")
    try:
        (tmp_path / "link.bin").symlink_to(tmp_path / "real" / "w.bin")
        (tmp_path / "folder").symlink_to(tmp_path / "real", target_is_directory=True)
    except OSError:
        pytest.skip("this user may not make links")
    for location in ("link.bin", "folder/w.bin"):
        with pytest.raises(InputError, match="is a link"):
            sidecar_path(tmp_path / "model.onnx", location)
    assert sidecar_path(tmp_path / "model.onnx", "real/w.bin") == tmp_path / "real" / "w.bin"


def test_a_missing_file_is_named_with_its_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.onnx\.data, which model\.onnx needs"):
        sidecar_path(tmp_path / "model.onnx", "model.onnx.data")
