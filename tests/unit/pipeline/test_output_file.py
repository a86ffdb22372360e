"""The single output file of a command: owned files are replaced, foreign ones are left alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from winml_dag.engine.keys import cache_key, config_hash
from winml_dag.errors import StoreError, UsageError
from winml_dag.pipeline.commit import PublishedChange
from winml_dag.pipeline.publish import OutputFile
from winml_dag.store.artifact import FileEntry
from winml_dag.store.below import Below
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.store import Store

NAME = "small.onnx"
KILLED = 9


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    return folder


class Puts:
    """Puts results into the store and then into the folder."""

    def __init__(self, folder: Path, store: Store, scratch: Path) -> None:
        self.folder, self.store, self._scratch = folder, store, scratch

    def publish(self, files: Mapping[str, bytes]) -> tuple[FileEntry, ...]:
        made = KeyInputs("finalize", 1, {}, {name: data.hex() for name, data in files.items()}, {})
        folder = self._scratch / cache_key(made)[:8]
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return self.store.publish(Record(cache_key(made), config_hash({}), made, {}), {"model": folder}).files()

    def output(self, *, read: Iterable[Path] = (), overwrite: bool = False) -> OutputFile:
        return OutputFile(self.folder, NAME, read, self.store, overwrite=overwrite)

    def put(self, files: Mapping[str, bytes], *, overwrite: bool = False) -> PublishedChange:
        wanted = self.publish(files)
        output = self.output(overwrite=overwrite)
        output.refuse_foreign()
        return output.publish(wanted)

    def contents(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}


@pytest.fixture
def puts(folder: Path, store: Store, tmp_path: Path) -> Puts:
    return Puts(folder, store, tmp_path / "scratch")


def _model(*, external: bool) -> dict[str, bytes]:
    """Return a model, with its weights in an external file or without weights."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    if not external:
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [result])
        return {NAME: helper.make_model(graph).SerializeToString()}
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=f"{NAME}.data")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [value], [result], [weight])
    return {NAME: helper.make_model(graph).SerializeToString(), f"{NAME}.data": bytes(16)}


def test_a_file_is_put_and_left_alone_while_it_is_right(puts: Puts) -> None:
    first = _model(external=True)
    assert set(puts.put(first).written) == first.keys()
    times = {path.name: path.stat().st_mtime_ns for path in puts.folder.iterdir()}
    assert puts.put(first) == PublishedChange()
    assert times == {path.name: path.stat().st_mtime_ns for path in puts.folder.iterdir()}
    assert puts.contents() == {"notes.txt": b"mine", **first}


def test_one_of_ours_makes_way_and_so_do_its_weights(puts: Puts) -> None:
    puts.put(_model(external=True))
    second = _model(external=False)
    assert puts.put(second).removed == (f"{NAME}.data",)
    assert puts.contents() == {"notes.txt": b"mine", **second}


def test_weights_of_somebody_elses_model_stay(puts: Puts) -> None:
    (puts.folder / f"{NAME}.data").write_bytes(b"of another model")
    puts.put(_model(external=False))
    puts.put({NAME: b"another"})
    assert puts.contents()[f"{NAME}.data"] == b"of another model"


def _compiled(binary: str) -> dict[str, bytes]:
    """Return a compiled model with its binary in the file *binary*."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    context = {"embed_mode": 0, "ep_cache_context": binary, "source": "QNN"}
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **context)
    model = helper.make_model(helper.make_graph([node], "g", [value], [result]))
    return {NAME: model.SerializeToString(), binary: b"binary"}


def test_a_binary_goes_with_the_compiled_model_that_makes_way(puts: Puts) -> None:
    first = _compiled("small_qnn.bin")
    puts.put(first)
    assert puts.contents() == {"notes.txt": b"mine", **first}
    assert puts.put(_model(external=False)).removed == ("small_qnn.bin",)
    assert puts.contents() == {"notes.txt": b"mine", **_model(external=False)}


@pytest.mark.parametrize("binary", ["other_shared_qnn.bin", "small_shared_qnn.bin"])
def test_a_binary_that_several_models_may_share_stays(puts: Puts, binary: str) -> None:
    """Other models may refer to it besides the replaced one."""
    puts.put(_compiled(binary))
    assert puts.put(_model(external=False)).removed == ()
    assert puts.contents()[binary] == b"binary"


def test_a_binary_of_somebody_elses_is_in_the_way(puts: Puts) -> None:
    (puts.folder / "small_qnn.bin").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"small_qnn\.bin is in the way"):
        puts.put(_compiled("small_qnn.bin"))
    assert puts.contents() == {"notes.txt": b"mine", "small_qnn.bin": b"mine"}


def test_a_report_that_is_outdated_goes_if_it_is_ours(puts: Puts) -> None:
    model = _model(external=False)
    report = {"small_report.json": b"{}"}
    puts.put({**model, **report})
    wanted = puts.publish(model)
    assert puts.output().publish(wanted, ["small_report.json"]).removed == ("small_report.json",)
    assert puts.contents() == {"notes.txt": b"mine", **model}
    assert puts.output().publish(wanted, ["notes.txt", "nothing.json"]) == PublishedChange()
    assert puts.contents() == {"notes.txt": b"mine", **model}


def test_a_file_that_the_cache_does_not_know_is_in_the_way(puts: Puts) -> None:
    (puts.folder / NAME).write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"small\.onnx is in the way: .*--overwrite"):
        puts.put(_model(external=False))
    assert puts.contents()[NAME] == b"mine"
    puts.put(_model(external=False), overwrite=True)
    assert puts.contents()[NAME] == _model(external=False)[NAME]


def test_weights_that_the_cache_does_not_know_are_in_the_way_of_ours(puts: Puts) -> None:
    (puts.folder / f"{NAME}.data").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"small\.onnx\.data is in the way"):
        puts.put(_model(external=True))
    assert puts.contents() == {"notes.txt": b"mine", f"{NAME}.data": b"mine"}


def test_one_of_ours_that_was_edited_is_somebodys(puts: Puts) -> None:
    puts.put(_model(external=False))
    (puts.folder / NAME).write_bytes(b"edited")
    with pytest.raises(UsageError, match="is in the way"):
        puts.put(_model(external=True))
    assert puts.contents()[NAME] == b"edited"


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_model_that_is_read_is_never_replaced(puts: Puts, overwrite: bool) -> None:
    puts.put(_model(external=False))
    with pytest.raises(UsageError, match="is the model that is read"):
        puts.output(read=[puts.folder / NAME], overwrite=overwrite).refuse_foreign()
    weights = puts.folder / f"{NAME}.data"
    with pytest.raises(UsageError, match="is the model that is read"):
        puts.output(read=[weights], overwrite=overwrite).publish(puts.publish(_model(external=True)))


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_is_never_replaced(puts: Puts, overwrite: bool) -> None:
    (puts.folder / NAME).mkdir()
    with pytest.raises(UsageError, match=r"small\.onnx is a folder"):
        puts.put(_model(external=False), overwrite=overwrite)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_link_is_replaced_not_followed(puts: Puts, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.onnx"
    target.write_bytes(b"mine")
    (puts.folder / NAME).symlink_to(target)
    with pytest.raises(UsageError, match="is in the way"):
        puts.put(_model(external=False))
    puts.put(_model(external=False), overwrite=True)
    assert not (puts.folder / NAME).is_symlink()
    assert target.read_bytes() == b"mine"


def test_a_folder_that_is_not_there_is_made(store: Store, tmp_path: Path) -> None:
    puts = Puts(tmp_path / "a" / "b", store, tmp_path / "scratch")
    puts.put(_model(external=False))
    assert puts.contents() == _model(external=False)


def test_a_folder_that_cannot_be_written_is_named(puts: Puts, monkeypatch: pytest.MonkeyPatch) -> None:
    puts.put({NAME: b"first"})

    move = Below.move

    def full(below: Below, name: str, to: str) -> None:
        if to == NAME and "/new/" in name:
            raise OSError(28, "No space left on device", str(puts.folder))
        move(below, name, to)

    monkeypatch.setattr(Below, "move", full)
    with pytest.raises(StoreError, match=r"out cannot be written: No space left on device.*as it was"):
        puts.put({NAME: b"second"})
    assert puts.contents()[NAME] == b"first"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes to kill them at every step")
def test_a_process_that_is_killed_at_any_step_leaves_the_old_or_what_the_next_one_completes(
    store: Store, tmp_path: Path
) -> None:
    """Killed before each move of a file in turn: then the next one, which wants the old model, finds or restores it."""
    old, new = _model(external=True), _model(external=False)
    at = 0
    while True:
        puts = Puts(tmp_path / f"out{at}", store, tmp_path / "scratch")
        puts.put(old)
        killed = _put_killed_at(puts, new, at)
        files = puts.contents()
        assert files[NAME] in (old[NAME], new[NAME]), "there is always one of the two"
        puts.put(old)
        assert puts.contents() == old
        if not killed:
            break
        at += 1
    assert at > 3
    assert onnx.load(puts.folder / NAME).graph.node[0].op_type == "Add"


def _put_killed_at(puts: Puts, files: Mapping[str, bytes], at: int) -> bool:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
    moves = 0

    def at_move(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal moves
        # For moves within an open folder, its descriptor is the last argument.
        ours = (str(puts.folder), str(puts.store.changes))
        if event == "os.rename" and (str(arguments[1]).startswith(ours) or arguments[3] != -1):
            moves += 1
            if moves > at:
                os._exit(KILLED)

    sys.addaudithook(at_move)
    try:
        puts.put(files)
    finally:
        os._exit(0)
