"""``build --link``: its outputs, programs that read them, and the effect of an edit through a link."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from oneprocess import OneProcess
from onnx import TensorProto, helper, numpy_helper
from scenario import Project

from winml_dag import build_onnx_model
from winml_dag.onnxmodel.inspect import EXTERNAL_DATA_THRESHOLD
from winml_dag.store.store import Store


def save_model(folder: Path, width: int) -> None:
    """Save ``small.onnx``: one product with *width* times *width* weights."""
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((width, width), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, width])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "small.onnx")


@pytest.fixture
def small(tmp_path: Path, commands: OneProcess | None) -> Project:
    """A project with one small ONNX model."""
    save_model(tmp_path, 64)
    return Project(tmp_path, commands)


def build(project: Project, *arguments: str, out: str | Path = "out") -> str:
    """Run a build that must succeed, and return its output."""
    finished = project.run("build", "--onnx", "small.onnx", "-o", str(out), *arguments)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def outputs(model: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    ones = np.ones(session.get_inputs()[0].shape, np.float32)
    return np.asarray(session.run(None, {"x": ones})[0])


def test_every_file_of_a_stage_is_a_link_that_the_next_build_leaves_alone(small: Project) -> None:
    build(small, "--link")
    linked = {path.name for path in small.out.iterdir() if path.stat().st_nlink > 1}
    assert linked == {"analyze_result.json", "model.onnx", "optimized.onnx"}
    times = small.times()
    assert "Up to date" in build(small)
    assert small.times() == times


@pytest.mark.slow
def test_onnxruntime_reads_linked_weights_and_onnx_refuses_them(tmp_path: Path, commands: OneProcess | None) -> None:
    width = 1 + int((EXTERNAL_DATA_THRESHOLD / 4) ** 0.5)
    save_model(tmp_path, width)
    project = Project(tmp_path, commands)
    build(project, "--link", "--no-analyze", "--no-validate")
    assert (project.out / "model.onnx.data").stat().st_nlink > 1
    np.testing.assert_allclose(outputs(project.out / "model.onnx"), outputs(tmp_path / "small.onnx"), rtol=1e-5)
    with pytest.raises(onnx.checker.ValidationError, match="multiple hard links"):
        onnx.load(project.out / "model.onnx")


def test_an_edit_through_a_link_damages_the_cache_which_notices_and_heals(small: Project) -> None:
    build(small, "--link")
    before = {name: data for name, data in small.contents().items() if name.endswith(".onnx")}
    model = small.out / "model.onnx"
    model.chmod(0o644)
    with model.open("r+b") as file:
        file.seek(200)
        file.write(b"\0\0\0\0")
    said = build(small, "--link")
    assert "missing or damaged in the cache: " in said
    assert "restored changed or deleted files: " in said
    assert {name: data for name, data in small.contents().items() if name.endswith(".onnx")} == before
    assert small.run("cache", "verify").returncode == 0


def test_where_no_link_can_be_made_the_build_says_in_a_line_that_it_copied(small: Project) -> None:
    if not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == small.folder.stat().st_dev:
        pytest.skip("needs a second file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        out = Path(folder) / "out"
        said = build(small, "--link", "-q", out=out)
        names = "analyze_result.json, model.onnx, optimized.onnx"
        assert f"note: copied, because the cache cannot be linked to {out}: {names}\n" in said
        assert {path.stat().st_nlink for path in out.iterdir()} == {1}


def test_links_can_be_asked_for_from_python(small: Project) -> None:
    done = build_onnx_model(small.folder / "small.onnx", small.out, cache_dir=small.cache, link=True)
    assert done.final_artifact is not None
    assert done.final_artifact.stat().st_nlink > 1
    assert done.published.not_linked == ()


def test_bytes_that_two_stages_put_out_are_in_the_cache_once(small: Project) -> None:
    """Nothing is left to optimize, so the optimized model equals the final one."""
    build(small)
    model = small.contents()["model.onnx"]
    assert small.contents()["optimized.onnx"] == model
    store = Store(small.cache)
    assert [blob.path.read_bytes() for blob in store.blobs.all()].count(model) == 1
    store.close()
