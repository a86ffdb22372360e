"""An up-to-date build is recognized with one stat per file, without false positives."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from pipeline_samples import save_model

from winml_dag import file_reading
from winml_dag.api import build_onnx_model
from winml_dag.pipeline import uptodate as module
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.uptodate import CurrentPlan, check


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a finished build: ``m.onnx``, ``out`` and ``cache``."""
    project = tmp_path_factory.mktemp("project")
    save_model(project / "m.onnx", "MatMul", weight=np.ones((4, 4)))
    build(project)
    return project


def build(project: Path) -> list[str]:
    """Build and return the stages that ran."""
    with chdir(project):
        result = build_onnx_model("m.onnx", "out", precision="fp32", ep="cpu", cache_dir="cache")
    return [view.stage for view in result.stages if view.status == "ran"]


@pytest.fixture
def project(built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project, brought up to date, as the current folder."""
    monkeypatch.chdir(built)
    build(built)
    assert is_up_to_date()
    return built


REQUEST = Request(None, Overrides(onnx=Path("m.onnx"), precision="fp32", ep="cpu"), Path("out"))


def stands() -> CurrentPlan | None:
    return check(str(Path("cache").absolute()), str(REQUEST.words))


def is_up_to_date() -> bool:
    current_plan = stands()
    return current_plan is not None and current_plan.is_up_to_date


def blobs() -> list[Path]:
    return sorted(path for path in Path("cache/blobs").rglob("*") if path.is_file())


def same_size_and_time(path: Path) -> None:
    """Edit a file in a way that ordinary tools do not notice."""
    before = path.stat()
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


EDITS: dict[str, Callable[[], None]] = {
    "an output is edited": lambda: same_size_and_time(Path("out/model.onnx")),
    "an output is deleted": lambda: Path("out/optimized.onnx").unlink(),
    "the manifest is edited": lambda: Path("out/build_manifest.json").write_text("{}"),
    "the output folder is gone": lambda: Path("out").rename("away"),
    "a blob is deleted": lambda: blobs()[0].unlink(),
    "the model is edited": lambda: same_size_and_time(Path("m.onnx")),
    "the model is gone": lambda: Path("m.onnx").unlink(),
    "the cache has another format": lambda: Path("cache/FORMAT").write_text("9\n"),
    "the note is gone": lambda: next(Path("cache/standing").glob("*.note")).unlink(),
}


def test_every_edit_is_detected_and_reverting_is_up_to_date(project: Path) -> None:
    keep = {path: (path.read_bytes(), path.stat()) for path in project.rglob("*") if path.is_file()}
    for name, edit in EDITS.items():
        edit()
        assert not is_up_to_date(), name
        if Path("away").exists():
            Path("away").rename("out")
        for path, (data, status) in keep.items():
            if not path.exists() or path.read_bytes() != data:
                path.unlink(missing_ok=True)
                path.write_bytes(data)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert is_up_to_date(), name


def test_touched_file_is_reread_and_up_to_date(project: Path) -> None:
    for path in ("m.onnx", "out/model.onnx", "out/build_manifest.json"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    assert is_up_to_date()
    assert build(project) == []


@pytest.mark.usefixtures("project")
def test_recent_file_is_reread_despite_equal_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write within one tick of the file system's clock does not show in its times."""
    monkeypatch.setattr(file_reading, "SETTLED_NS", 10**12)
    monkeypatch.setattr(file_reading, "settled_ns", lambda _: 10**12)
    os.utime("out/model.onnx")
    assert is_up_to_date()  # and records that this file is young
    current_plan = stands()
    assert current_plan is not None
    seen = current_plan.seen
    data = Path("out/model.onnx").read_bytes()
    same_size_and_time(Path("out/model.onnx"))
    monkeypatch.setattr(module, "look", lambda paths: seen if len(list(paths)) > 1 else seen[:0])
    assert not is_up_to_date()
    Path("out/model.onnx").write_bytes(data)


@pytest.mark.usefixtures("project")
def test_read_only_cache_is_tolerated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr("winml_dag.store.files.write_whole", refuse)
    os.utime("out/model.onnx")
    assert is_up_to_date()
    assert is_up_to_date()


@pytest.mark.usefixtures("project")
def test_other_builds_in_same_cache_do_not_matter() -> None:
    build_onnx_model("m.onnx", "other", precision="fp16", ep="cpu", cache_dir="cache")
    assert is_up_to_date()


def test_rebuild_after_each_edit_is_up_to_date(project: Path) -> None:
    Path("out/model.onnx").unlink()
    assert build(project) == []
    assert is_up_to_date()
    Path("out/model.onnx").write_bytes(b"edited")
    assert build(project) == []
    assert is_up_to_date()
