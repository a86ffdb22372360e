"""How perf, eval and inspect interpret a path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pipeline_samples import save_compiled_model as compiled_model
from pipeline_samples import save_model as float_model

from winml_dag.ep.registry import CPU, QNN, Target
from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.assess.builtmodel import find_built_model, measured_on, request_for
from winml_dag.pipeline.assess.builtmodel import float_model as float_model_of
from winml_dag.store.store import Store


def output_folder(folder: Path, files: dict[str, Path], settings: dict[str, Any], **said: Any) -> Path:
    manifest = {
        "schema_version": 1,
        "stages": [],
        "files": [{"name": name, "digest": "xxh3-128:" + "0" * 32, "size": 1} for name in files],
        **said,
    }
    (folder / "build_manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (folder / "winml_build_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """The output folder of a build for QNN from an ONNX model."""
    out = tmp_path / "out"
    out.mkdir()
    files = {
        "model.onnx": compiled_model(out / "model.onnx"),
        "compiled.onnx": compiled_model(out / "compiled.onnx"),
        "quantized.onnx": float_model(out / "quantized.onnx"),
        "optimized.onnx": float_model(out / "optimized.onnx"),
    }
    options = {"soc_model": "60", "op_affinity": "affinity.json"}
    settings = {"model": "../mine.onnx", "compile": {"provider_options": options}}
    float_model(tmp_path / "mine.onnx")
    said = {"execution_provider": QNN.name, "device": "npu", "precision": "w8a16", "task": "fill-mask"}
    return output_folder(out, files, settings, **said)


def test_output_folder_provides_all_build_decisions(built: Path) -> None:
    found = find_built_model(built)

    assert found.model.path == built / "model.onnx"
    assert found.target == Target(QNN, "npu")
    assert (found.precision, found.task) == ("w8a16", "fill-mask")
    assert found.provider_options == {"soc_model": "60"}, "an option that names a file is no option of a session"
    assert found.uncompiled is not None
    assert found.uncompiled.path.name == "quantized.onnx"
    reference = float_model_of(found, Store(built / "cache"))
    assert reference is not None
    assert reference.path == built / "optimized.onnx"


def test_file_in_output_folder_is_matched_to_its_build(built: Path) -> None:
    found = find_built_model(built / "optimized.onnx")
    assert (found.target, found.precision, found.uncompiled) == (Target(QNN, "npu"), None, None)
    found = find_built_model(float_model(built / "strange.onnx"))
    assert (found.manifest, found.target) == (None, Target(CPU, "cpu"))


def test_missing_output_files_fall_back_to_sources(built: Path) -> None:
    for name in ("quantized.onnx", "optimized.onnx"):
        (built / name).unlink()

    found = find_built_model(built)

    mine = (built.parent / "mine.onnx").resolve()
    assert found.uncompiled is not None
    assert found.uncompiled.path.resolve() == mine
    reference = float_model_of(found, Store(built / "cache"))
    assert reference is not None
    assert reference.path.resolve() == mine


@pytest.mark.parametrize(("source", "told"), [("QNN", Target(QNN, "npu")), ("", Target(CPU, "cpu"))])
def test_compiled_binary_overrides_manifest_target(tmp_path: Path, source: str, told: Target) -> None:
    files = {"model.onnx": compiled_model(tmp_path / "model.onnx", source=source)}
    output_folder(tmp_path, files, {}, execution_provider=CPU.name, device="cpu")

    assert find_built_model(tmp_path).target == told


def test_compiled_model_alone_runs_on_its_own_provider_only(tmp_path: Path) -> None:
    only = compiled_model(tmp_path / "anything.onnx")
    (tmp_path / "folder.onnx").mkdir()
    found = find_built_model(tmp_path)

    assert found.model.path == only, "the only model of a folder is meant"
    assert (found.target, found.uncompiled) == (Target(QNN, "npu"), None)
    assert measured_on(found, None, "npu") == Target(QNN, "npu")
    with pytest.raises(UsageError, match="is compiled for QNNExecutionProvider and runs nowhere else"):
        measured_on(found, "cpu", None)


def test_user_target_overrides_build_target(built: Path) -> None:
    found = find_built_model(built / "quantized.onnx")

    assert measured_on(found, None, None) == Target(QNN, "npu")
    assert measured_on(found, None, "gpu") == Target(QNN, "gpu")
    assert measured_on(found, "cpu", None) == Target(CPU, "cpu")
    assert measured_on(found, None, "cpu") == Target(CPU, "cpu")


@pytest.mark.parametrize(
    ("files", "path", "error", "wrong"),
    [
        ((), "", InputError, "has no ONNX model"),
        (("a.onnx", "b.onnx"), "", InputError, r"several models: a.onnx, b.onnx. Give one of them"),
        (("config.json",), "", InputError, "is a PyTorch model.*Build it first"),
        (("build_manifest.json",), "", UsageError, "makes no model"),
        ((), "org/name", InputError, r"org/name does not exist.*winml-dag build -m"),
        (("recipe.yaml",), "recipe.yaml", UsageError, "give it with -c"),
    ],
    ids=["nothing", "several", "PyTorch", "a build without a model", "not there", "a recipe"],
)
def test_missing_or_ambiguous_model_is_refused_with_advice(
    tmp_path: Path, files: tuple[str, ...], path: str, error: type[Exception], wrong: str
) -> None:
    for name in files:
        float_model(tmp_path / name) if name.endswith(".onnx") else (tmp_path / name).write_text("{}")

    with pytest.raises(error, match=wrong):
        find_built_model(tmp_path / path)


def test_recipe_without_model_is_refused_and_cache_is_default_output(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    for text, in_cache in (("model: m\n", True), ("model: m\noutput_dir: out\n", False)):
        recipe.write_text(text)
        assert request_for(recipe).use_cache is in_cache
    recipe.write_text("stages: {note: {command: [echo], outputs: {text: note.txt}}}\n")
    with pytest.raises(UsageError, match="builds no model, but stages of its own"):
        request_for(recipe)
