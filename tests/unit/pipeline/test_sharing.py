"""What is planned and what is rejected when `compile` gets several models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pipeline_samples import put_sdk, save_model

from winml_dag.engine.stage import Node
from winml_dag.errors import UsageError
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.store.store import Store

pytest.importorskip("onnxruntime_qnn", reason="a plan for QNN needs onnxruntime-qnn")


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    return [save_model(tmp_path / f"length{length}.onnx", shape=(1, length)) for length in (4, 8)]


def planned(models: list[Path], folder: Path, **settings: object) -> BuildGraph:
    overrides = Overrides(onnx=models[0], ep="qnn", settings={"compile": settings})
    output = folder / "out" / f"{models[0].stem}_compiled.onnx"
    request = Request(None, overrides, command="compile", output_file=output, also=tuple(models[1:]))
    return plan_request(request, Store(folder / "cache"), download=False)


def node(graph: BuildGraph, node_id: str) -> Node:
    return next(each for each in graph.graph.nodes if each.id == node_id)


def test_one_compile_reads_all_models_and_one_finalize_names_them(models: list[Path], tmp_path: Path) -> None:
    graph = planned(models, tmp_path, require_full_offload=True)
    assert [each.id for each in graph.graph.nodes] == ["compile", "finalize"]
    assert node(graph, "compile").inputs == {"model_0": str(models[0]), "model_1": str(models[1])}
    config = node(graph, "finalize").config
    assert list(config["files"]) == ["length4_compiled.onnx", "length8_compiled.onnx"]
    assert config["compile"] == {"require_full_offload": True}
    assert graph.summary.also == ("length8_compiled.onnx",)
    assert any("emulator" in notice for notice in graph.summary.notices)


def test_compile_config_is_equal_for_one_and_several_models(models: list[Path], tmp_path: Path) -> None:
    one, several = planned(models[:1], tmp_path, soc_model=57), planned(models, tmp_path, soc_model=57)
    assert node(one, "compile").config == node(several, "compile").config
    assert node(one, "compile").toolchain == node(several, "compile").toolchain


def test_incompatible_models_cannot_share(models: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="given twice"):
        planned([*models, models[0]], tmp_path)
    with pytest.raises(UsageError, match="cannot have it inside"):
        planned(models, tmp_path, embed_context=True)
    with pytest.raises(UsageError, match="one model at a time"):
        planned(models, tmp_path, compiler="qairt", qnn_sdk_root=str(put_sdk(tmp_path / "sdk")))
    (tmp_path / "other").mkdir()
    same_name = Path(shutil.copy(models[1], tmp_path / "other" / models[0].name))
    with pytest.raises(UsageError, match=r"would both become length4_compiled\.onnx"):
        planned([models[0], same_name], tmp_path)
