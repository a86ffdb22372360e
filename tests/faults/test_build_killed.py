"""A build that is killed while it writes its output folder: the next one takes over, the same build or another."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from winml_dag.api import build_onnx_model
from winml_dag.pipeline.manifest import read_manifest
from winml_dag.store.digest import digest_file

KILLED = 9

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a cache with the results of both of its builds."""
    folder = tmp_path_factory.mktemp("killed")
    vector = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Relu", ["same"], ["y"])]
    graph = helper.make_graph(nodes, "small", vector[:1], vector[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / "in.onnx")
    for optimize in (True, False):
        build(folder, f"known{optimize}", optimize=optimize)
    return folder


def build(folder: Path, out: str, *, optimize: bool) -> None:
    build_onnx_model(folder / "in.onnx", folder / out, optimize=optimize, cache_dir=folder / "cache")


def build_killed_at(folder: Path, out: str, at: int) -> bool:
    """Build in a fork that is killed before it moves file number *at* in the output folder."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
    moves = 0

    def at_move(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal moves
        # Inside an open folder, its descriptor is the last argument, and names are relative.
        if event == "os.rename" and (str(folder / out) in str(arguments[1]) or arguments[3] != -1):
            moves += 1
            if moves > at:
                os._exit(KILLED)

    sys.addaudithook(at_move)
    try:
        build(folder, out, optimize=True)
    finally:
        os._exit(0)


def is_of_one_piece(out: Path) -> bool:
    """Return whether the folder has exactly the files in the manifest."""
    manifest = read_manifest(out)
    assert manifest is not None
    digests = {path.name: digest_file(path) for path in out.iterdir()}
    del digests["build_manifest.json"], digests["winml_build_config.json"]
    return digests == {file.name: file.digest for file in manifest.files}


def test_another_build_takes_over_the_folder_of_one_that_was_killed(folder: Path) -> None:
    at, killed = 0, True
    while killed:
        killed = build_killed_at(folder, f"out{at}", at)
        build(folder, f"out{at}", optimize=False)
        assert is_of_one_piece(folder / f"out{at}")
        assert not (folder / f"out{at}" / "optimized.onnx").exists()
        at += 1
    assert at > 4


def test_the_same_build_finishes_what_was_begun(folder: Path) -> None:
    at, killed = 0, True
    while killed:
        killed = build_killed_at(folder, f"same{at}", at)
        build(folder, f"same{at}", optimize=True)
        assert is_of_one_piece(folder / f"same{at}")
        at += 1
