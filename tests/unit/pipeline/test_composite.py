"""A model with several components as one build: what exists, what is rejected, and the contents of its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from pipeline_samples import save_model

from winml_dag.engine.events import FIRST_BUILD, StageResult, Status
from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import Node, Source
from winml_dag.errors import InputError, WinmlDagError
from winml_dag.pipeline.assess.builtmodel import component_file, model_file
from winml_dag.pipeline.buildgraph import BuildGraph, BuildSummary
from winml_dag.pipeline.documents import BuildManifest
from winml_dag.pipeline.layout import FinishedBuild
from winml_dag.pipeline.plan import plan_build
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.resolve import build_of
from winml_dag.stages import artifact_types
from winml_dag.stages.optimize import OPTIMIZE
from winml_dag.store.artifact import Artifact
from winml_dag.store.digest import digest_file
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.store import Store

MARIAN: dict[str, Any] = {
    "loader": {"model_type": "marian", "task": "translation", "random_weights": True},
    "ep": "cpu",
}
BERT: dict[str, Any] = {"loader": {"model_type": "bert", "task": "fill-mask", "random_weights": True}, "ep": "cpu"}
GIVEN = Source("given", artifact_types.FLOAT_MODEL, ())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def planned(recipe: Mapping[str, Any], store: Store, **options: Any) -> BuildGraph:
    path = store.folder.parent / "recipe.json"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    request = Request(path, Overrides(**options), store.folder.parent / "out")
    return plan_build(build_of(request, store.folder, download=False), store.fingerprints)


def test_components_share_export_and_have_own_lines(store: Store) -> None:
    graph = planned({**MARIAN, "precision": "w8a8", "auto": False}, store).graph
    line = ["optimize.0", "calibrate", "quantize", "validate", "finalize"]
    assert [node.id for node in graph.nodes if node.stage.name == "export"] == ["export"]
    assert {node.id for node in graph.nodes} == {
        "export",
        *(f"{name}.{stage}" for name in ("encoder", "decoder") for stage in line),
    }
    read = {node.id: node.inputs["model"] for node in graph.nodes if node.stage.name == "optimize"}
    assert read == {"encoder.optimize.0": "export.encoder_model", "decoder.optimize.0": "export.decoder_model"}


def test_single_component_plan_matches_whole_plan_after_export(store: Store) -> None:
    recipe = {**MARIAN, "precision": "w8a8", "quant": {"samples": 4}}
    whole = {node.id: node for node in planned(recipe, store).graph.nodes}
    alone = [node for node in planned(recipe, store, submodel="decoder").graph.nodes if node.stage.name != "export"]
    assert "optimize" in {node.stage.name for node in alone}
    for node in alone:
        same = whole[f"decoder.{node.id}"]
        assert (node.stage, node.toolchain, node.kinds, [*node.inputs]) == (
            *(same.stage, same.toolchain, same.kinds),
            [*same.inputs],
        )
        # Only the final file has another name.
        assert node.config == same.config or node.id == "finalize"


@pytest.mark.parametrize(
    ("loader", "lines"),
    [
        ({"model_class": "MarianEncoderWrapper", "task": "feature-extraction"}, {""}),
        ({"task": "text2text-generation"}, {"encoder", "decoder"}),
        ({"model_type": "vision-encoder-decoder", "task": "image-to-text"}, {"encoder", "decoder"}),
        ({"model_type": "clip", "task": "zero-shot-image-classification"}, {"image-encoder", "text-encoder"}),
        ({"model_type": "clip", "task": "feature-extraction"}, {""}),
        ({"model_type": "bart", "task": "text-classification"}, {""}),
        ({"module_path": "model.encoder.layers.0"}, {""}),
    ],
)
def test_all_components_are_planned_unless_one_is_named(
    store: Store, loader: Mapping[str, Any], lines: set[str]
) -> None:
    graph = planned({**MARIAN, "loader": {**MARIAN["loader"], **loader}}, store).graph
    finals = {node.id for node in graph.nodes if node.stage.name == "finalize"}
    assert finals == {f"{line}.finalize" if line else "finalize" for line in lines}


def test_component_specific_notices_name_the_component(store: Store) -> None:
    both = planned({**MARIAN, "precision": "w8a8", "auto": False}, store).summary
    assert (both.precision, len(both.notices)) == ("w8a8", 1)
    one = planned({**MARIAN, "precision": "w8a8", "auto": False, "components": {"encoder": {"quant": None}}}, store)
    assert one.summary.precision == "fp32 encoder, w8a8 decoder"
    assert [notice.partition(" ")[0] for notice in one.summary.notices] == ["decoder:"]


def test_output_names_belong_to_one_component(store: Store) -> None:
    recipe = {
        **MARIAN,
        "auto": False,
        "export": {"output_tensors": [{"name": "logits"}]},
        "components": {"decoder": {"export": {"output_tensors": [{"name": "words"}]}}},
    }
    found = planned(recipe, store)
    config = next(node for node in found.graph.nodes if node.id == "export").config
    exports = {name: own["export"]["output_tensors"] for name, own in config["components"].items()}
    assert exports == {"encoder": None, "decoder": ["words"]}
    assert [notice for notice in found.summary.notices if "return all outputs" in notice] != []


@pytest.mark.parametrize(
    ("recipe", "options", "complaint"),
    [
        ({**MARIAN, "components": {"encodr": {}}}, {}, "components.encodr.*did you mean 'encoder'"),
        (MARIAN, {"submodel": "tower"}, "It has: encoder, decoder"),
        ({**BERT, "components": {"encoder": {}}}, {}, "bert with random weights is exported in one piece"),
        (BERT, {"submodel": "encoder"}, "bert with random weights is exported in one piece"),
        (
            {**MARIAN, "stages": {"look": {"command": ["true"], "outputs": {"out": "seen.txt"}}}},
            {},
            "several components.*--submodel",
        ),
        (
            {**MARIAN, "precision": "w8a8", "quant": {"calibration_save_path": "ranges.json"}},
            {},
            "several components would go to ranges.json",
        ),
        (
            {"loader": MARIAN["loader"], "components": {"decoder": {"compile": {"execution_provider": "openvino"}}}},
            {"compile": False},
            r"encoder for \w+ExecutionProvider \(\w+\) and decoder for OpenVINOExecutionProvider.*`ep`",
        ),
    ],
)
def test_invalid_component_settings_are_refused(
    store: Store, recipe: Mapping[str, Any], options: Mapping[str, Any], complaint: str
) -> None:
    with pytest.raises(WinmlDagError, match=f"(?s){complaint}"):
        planned(recipe, store, **options)


def test_component_external_data_is_renamed_with_its_model(store: Store, tmp_path: Path) -> None:
    made = {name: _model_with_weights(tmp_path / name, value) for name, value in (("a", 1.0), ("b", 2.0))}
    results = {f"{name}.optimize.0": _optimized(name, folder, store) for name, folder in made.items()}
    graph = Graph.of([result.node for result in results.values()], [GIVEN])
    summary = BuildSummary(
        *("m", "hf", "t", "fp32", "CPUExecutionProvider", "cpu", "cpu"),
        output_dir=tmp_path / "out",
        settings={},
        notices=(),
        components={name: {"task": "t", "precision": "fp32"} for name in made},
    )
    visible = FinishedBuild(BuildGraph(summary, graph, (), {}, "b.finalize"), results, store).published
    folder = tmp_path / "out"
    folder.mkdir()
    store.fetch(Artifact.of(visible.results), folder)
    for name, content in visible.rewritten.items():
        (folder / name).write_bytes(content)
    assert {entry.name: entry.digest for entry in visible.files} == {
        path.name: digest_file(path) for path in folder.iterdir()
    }
    assert sorted(path.name for path in folder.iterdir()) == [
        *("a_optimized.onnx", "a_optimized.onnx.data", "b_optimized.onnx", "b_optimized.onnx.data")
    ]
    for name, value in (("a", 1.0), ("b", 2.0)):
        weights = onnx.load(folder / f"{name}_optimized.onnx").graph.initializer[0]
        assert numpy_helper.to_array(weights).max() == value


def _model_with_weights(folder: Path, value: float) -> Path:
    folder.mkdir()
    model = onnx.load(save_model(folder / "optimized.onnx", "Add", [64], np.full(64, value)))
    onnx.save_model(
        model, folder / "optimized.onnx", save_as_external_data=True, location="optimized.onnx.data", size_threshold=0
    )
    return folder


def _optimized(component: str, folder: Path, store: Store) -> StageResult:
    node = Node(f"{component}.optimize.0", OPTIMIZE, {}, {"model": GIVEN.name})
    key = hashlib.sha256(component.encode()).hexdigest()
    record = Record(key, "", KeyInputs("optimize", 1, {}, {}, {}), {})
    return StageResult(node, Status.RAN, FIRST_BUILD, key, store.publish(record, {"model": folder}))


def test_manifest_identifies_component_of_file() -> None:
    value = {
        "precision": "fp32 encoder, fp16 decoder",
        "final_artifact": None,
        "components": {
            "encoder": {"precision": "fp32", "final_artifact": "encoder_model.onnx"},
            "decoder": {"precision": "fp16", "final_artifact": "decoder_model.onnx"},
        },
    }
    told = BuildManifest.model_validate(value)
    assert told.final_artifacts == ("encoder_model.onnx", "decoder_model.onnx")
    assert told.component_of_file("decoder_optimized.onnx") == "decoder"
    assert told.of("decoder_optimized.onnx").precision == "fp16"
    assert told.of("build_manifest.json") is told


def test_folder_of_several_models_requires_a_choice(tmp_path: Path) -> None:
    names = [f"{name}_model.onnx" for name in ("encoder", "decoder")]
    for name in (*names, "encoder_optimized.onnx"):
        (tmp_path / name).write_bytes(b"")
    components = {name.removesuffix("_model.onnx"): {"final_artifact": name} for name in names}
    manifest = {"schema_version": 1, "stages": [], "files": [], "final_artifact": None, "components": components}
    (tmp_path / "build_manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(InputError, match=r"encoder_model.onnx, decoder_model.onnx.*--submodel"):
        model_file(tmp_path, submodel=True)
    with pytest.raises(InputError, match=r"encoder_model.onnx, decoder_model.onnx. Give one of them") as asked:
        model_file(tmp_path)
    assert "--submodel" not in str(asked.value)
    assert component_file(tmp_path, "decoder") == tmp_path / "decoder_model.onnx"
    with pytest.raises(InputError, match=r"no model of a component 'encodr'.*encoder_model.onnx"):
        component_file(tmp_path, "encodr")
