"""The single output file of a command: owned files are replaced, foreign ones are left alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from onnx import TensorProto, helper
from pipeline_samples import changed_before, publish, save_compiled_model, save_model

from winml_dag.errors import UsageError
from winml_dag.pipeline.publish import OutputFile
from winml_dag.store import commit
from winml_dag.store.commit import PublishedChange
from winml_dag.store.store import Store

NAME = "small.onnx"
DATA = f"{NAME}.data"
NOTES = {"notes.txt": b"mine"}


class Puts:
    """Puts results into the store and then into a folder."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder, self.place, self.store = folder, place, Store(place / "cache")

    def output(self, *read: Path, overwrite: bool = False) -> OutputFile:
        return OutputFile(self.folder, NAME, read, self.store, overwrite=overwrite)

    def put(self, files: Mapping[str, bytes], *, overwrite: bool = False) -> PublishedChange:
        wanted = publish(self.store, self.place, files)
        output = self.output(overwrite=overwrite)
        output.refuse_foreign()
        return output.publish(wanted)

    def contents(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}


@pytest.fixture
def puts(tmp_path: Path) -> Puts:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_bytes(b"mine")
    return Puts(tmp_path / "out", tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, bytes]:
    return {NAME: save_model(tmp_path / "plain.onnx").read_bytes()}


@pytest.fixture
def with_weights() -> dict[str, bytes]:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=DATA)
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    return {NAME: helper.make_model(graph).SerializeToString(), DATA: bytes(16)}


def compiled(folder: Path, binary: str) -> dict[str, bytes]:
    model = save_compiled_model(folder / "compiled.onnx", embed_mode=0, ep_cache_context=binary)
    return {NAME: model.read_bytes(), binary: b"binary"}


def test_output_is_written_and_unchanged_while_correct(puts: Puts, with_weights: Mapping[str, bytes]) -> None:
    assert set(puts.put(with_weights).written) == with_weights.keys()
    times = {path.name: path.stat().st_mtime_ns for path in puts.folder.iterdir()}
    assert puts.put(with_weights) == PublishedChange()
    assert times == {path.name: path.stat().st_mtime_ns for path in puts.folder.iterdir()}
    assert puts.contents() == {**NOTES, **with_weights}


def test_replaced_model_loses_its_weights_and_binary(
    puts: Puts, plain: Mapping[str, bytes], with_weights: Mapping[str, bytes], tmp_path: Path
) -> None:
    for before, goes in ((with_weights, DATA), (compiled(tmp_path, "small_qnn.bin"), "small_qnn.bin")):
        puts.put(before)
        assert puts.contents() == {**NOTES, **before}
        assert puts.put(plain).removed == (goes,)
        assert puts.contents() == {**NOTES, **plain}


def test_foreign_weights_are_kept(puts: Puts, plain: Mapping[str, bytes]) -> None:
    (puts.folder / DATA).write_bytes(b"of another model")
    puts.put(plain)
    puts.put({NAME: b"another"})
    assert puts.contents()[DATA] == b"of another model"


@pytest.mark.parametrize("binary", ["other_shared_qnn.bin", "small_shared_qnn.bin"])
def test_possibly_shared_binary_is_kept(puts: Puts, plain: Mapping[str, bytes], tmp_path: Path, binary: str) -> None:
    puts.put(compiled(tmp_path, binary))
    assert puts.put(plain).removed == ()
    assert puts.contents()[binary] == b"binary"


def test_outdated_report_is_removed_if_owned(puts: Puts, plain: Mapping[str, bytes], tmp_path: Path) -> None:
    puts.put({**plain, "small_report.json": b"{}"})
    wanted = publish(puts.store, tmp_path, plain)
    assert puts.output().publish(wanted, ["small_report.json"]).removed == ("small_report.json",)
    assert puts.output().publish(wanted, ["notes.txt", "nothing.json"]) == PublishedChange()
    assert puts.contents() == {**NOTES, **plain}


@pytest.mark.parametrize("name", [NAME, DATA, "small_qnn.bin"])
def test_foreign_or_edited_file_is_refused_without_overwrite(
    puts: Puts, with_weights: Mapping[str, bytes], tmp_path: Path, name: str
) -> None:
    files = compiled(tmp_path, name) if name.endswith(".bin") else with_weights
    (puts.folder / name).write_bytes(b"mine")
    with pytest.raises(UsageError, match=rf"{name} is in the way: .*--overwrite"):
        puts.put(files)
    assert puts.contents() == {**NOTES, name: b"mine"}
    puts.put(files, overwrite=True)
    assert puts.contents() == {**NOTES, **files}
    # So is an output that was edited.
    (puts.folder / NAME).write_bytes(b"edited")
    with pytest.raises(UsageError, match="is in the way"):
        puts.put(files)
    assert puts.contents()[NAME] == b"edited"


@pytest.mark.parametrize("overwrite", [False, True])
def test_input_model_and_folder_are_never_replaced(
    puts: Puts, plain: Mapping[str, bytes], with_weights: Mapping[str, bytes], tmp_path: Path, overwrite: bool
) -> None:
    puts.put(plain)
    with pytest.raises(UsageError, match="is the model that is read"):
        puts.output(puts.folder / NAME, overwrite=overwrite).refuse_foreign()
    with pytest.raises(UsageError, match="is the model that is read"):
        puts.output(puts.folder / DATA, overwrite=overwrite).publish(publish(puts.store, tmp_path, with_weights))
    (puts.folder / NAME).unlink()
    (puts.folder / NAME).mkdir()
    with pytest.raises(UsageError, match=r"small\.onnx is a folder"):
        puts.put(plain, overwrite=overwrite)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_link_is_replaced_and_not_followed(puts: Puts, plain: Mapping[str, bytes], tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.onnx"
    target.write_bytes(b"mine")
    (puts.folder / NAME).symlink_to(target)
    with pytest.raises(UsageError, match="is in the way"):
        puts.put(plain)
    puts.put(plain, overwrite=True)
    assert not (puts.folder / NAME).is_symlink()
    assert target.read_bytes() == b"mine"


def test_interrupted_change_is_completed_by_the_next(
    puts: Puts, plain: Mapping[str, bytes], with_weights: Mapping[str, bytes]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    puts.put(with_weights)
    with pytest.raises(KeyboardInterrupt), changed_before(commit._Changing, "carry_out", interrupt):
        puts.put(plain)
    assert puts.contents().items() >= with_weights.items()
    assert puts.put(plain) == PublishedChange()
    assert puts.contents() == {**NOTES, **plain}
