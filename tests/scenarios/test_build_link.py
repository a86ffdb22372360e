"""``build --link`` and weights beside a model: outputs, programs that read them, and an edit through a link."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from oneprocess import OneProcess
from onnx import numpy_helper
from onnx_samples import save
from scenario import Project, with_status

from winml_dag import build_onnx_model
from winml_dag.onnxmodel.inspect import EXTERNAL_DATA_THRESHOLD
from winml_dag.store.store import Store


def save_model(folder: Path, width: int) -> np.ndarray:
    """Save ``small.onnx``, one product with *width* times *width* weights, and return those."""
    weights = np.random.default_rng(0).standard_normal((width, width), np.float32)
    text = f"small (float[1, {width}] x) => (float[1, {width}] y) {{ y = MatMul(x, w) }}"
    save(folder / "small.onnx", text, w=weights)
    return weights


@pytest.fixture
def small(tmp_path: Path, commands: OneProcess | None) -> Project:
    """A project with one small ONNX model."""
    save_model(tmp_path, 64)
    return Project(tmp_path, commands)


def build(project: Project, *arguments: str, out: str | Path = "out") -> str:
    return project.says("build", "--onnx", "small.onnx", "-o", str(out), *arguments)


def outputs(model: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    ones = np.ones(session.get_inputs()[0].shape, np.float32)
    return np.asarray(session.run(None, {"x": ones})[0])


def test_linked_outputs_are_untouched_by_next_build(small: Project) -> None:
    build(small, "--link")
    linked = {path.name for path in small.out.iterdir() if path.stat().st_nlink > 1}
    assert linked == {"analyze_result.json", "model.onnx", "optimized.onnx"}
    times = small.times()
    assert "Up to date" in build(small)
    assert small.times() == times


@pytest.mark.slow
def test_large_weights_are_linked_and_stored_once(tmp_path: Path, commands: OneProcess | None) -> None:
    weights = save_model(tmp_path, 1 + int((EXTERNAL_DATA_THRESHOLD / 4) ** 0.5))
    project = Project(tmp_path, commands)
    few = ("--no-analyze", "--no-validate", "-d", "cpu")
    build(project, "--link", *few)
    assert {path.name for path in project.out.glob("*.onnx*")} == {
        *("optimized.onnx", "optimized.onnx.data", "model.onnx", "model.onnx.data")
    }
    info = project.told("cache", "info")
    assert info["unique_bytes"] < 1.5 * weights.nbytes < info["apparent_bytes"]

    # onnxruntime reads linked weights, and onnx refuses them.
    data = project.out / "model.onnx.data"
    assert data.stat().st_nlink > 1
    np.testing.assert_allclose(outputs(project.out / "model.onnx"), outputs(tmp_path / "small.onnx"), rtol=1e-5)
    with pytest.raises(onnx.checker.ValidationError, match="multiple hard links"):
        onnx.load(project.out / "model.onnx")
    (weight,) = onnx.load(project.out / "model.onnx", load_external_data=False).graph.initializer
    assert {entry.key: entry.value for entry in weight.external_data}["location"] == "model.onnx.data"
    weight.CopyFrom(numpy_helper.from_array(weights, weight.name))
    assert data.read_bytes() == weight.raw_data

    # A command finds what a build has made of such a model, under the name in it.
    build(project, "-p", "dynamic", *few, out="dynamic")
    quantize = ("quantize", "-m", "dynamic/optimized.onnx", "-p", "dynamic", "-d", "cpu", "--no-validate")
    assert "in the way" in project.refused(*quantize, "-o", "small.onnx")
    assert with_status(project.told(*quantize, "-o", "quantized.onnx"), "reused") == ["quantize"]


def test_edit_through_link_is_detected_and_repaired(small: Project) -> None:
    build(small, "--link")
    before = small.models()
    model = small.out / "model.onnx"
    model.chmod(0o644)
    with model.open("r+b") as file:
        file.seek(200)
        file.write(b"\0\0\0\0")
    said = build(small, "--link")
    assert "missing or damaged in the cache: " in said
    assert "restored changed or deleted files: " in said
    assert small.models() == before
    small.says("cache", "verify")


def test_impossible_link_falls_back_to_copy_with_note(small: Project) -> None:
    if not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == small.folder.stat().st_dev:
        pytest.skip("needs a second file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        out = Path(folder) / "out"
        said = build(small, "--link", "-q", out=out)
        names = "analyze_result.json, model.onnx, optimized.onnx"
        assert f"note: copied, because the cache cannot be linked to {out}: {names}\n" in said
        assert {path.stat().st_nlink for path in out.iterdir()} == {1}


def test_python_links_outputs_and_equal_files_are_stored_once(small: Project) -> None:
    """Nothing is left to optimize, so the optimized model equals the final one."""
    done = build_onnx_model(small.folder / "small.onnx", small.out, cache_dir=small.cache, link=True)
    assert done.final_artifact is not None
    assert done.final_artifact.stat().st_nlink > 1
    assert done.published.not_linked == ()
    model = small.models()["model.onnx"]
    assert small.models()["optimized.onnx"] == model
    store = Store(small.cache)
    assert [blob.path.read_bytes() for blob in store.blobs.all()].count(model) == 1
    store.close()
