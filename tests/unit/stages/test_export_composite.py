"""Several components of one model: loaded once, each in a separate file that computes the same as the model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.stages.export import (
    ComponentFields,
    ComponentsConfig,
    ExportConfig,
    ExportFields,
    InputTensor,
    LoaderFields,
    RandomWeights,
    export_stage,
)

_LAYERS = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_CLIP = {
    "projection_dim": 8,
    "text_config": {**_LAYERS, "vocab_size": 64, "max_position_embeddings": 12, "eos_token_id": 2},
    "vision_config": {**_LAYERS, "image_size": 16, "patch_size": 8},
}
LOADER = LoaderFields("zero-shot-image-classification", model_type="clip", random_weights=RandomWeights(0, _CLIP))
TEXT, IMAGE = "text-encoder", "image-encoder"
_TASKS = {TEXT: "feature-extraction", IMAGE: "image-feature-extraction"}
_CLASSES = {TEXT: "CLIPTextModelWithProjection", IMAGE: "CLIPVisionModelWithProjection"}

# For both towers: each ignores the other's tensor.
FIELDS = ExportFields(
    input_tensors=(
        InputTensor("input_ids", shape=(1, 6)),
        InputTensor("attention_mask", shape=(1, 6)),
        InputTensor("pixel_values", shape=(1, 3, 16, 16)),
    ),
    dynamic_axes={"pixel_values": {"0": "batch"}},
)
SHARED = ("attention_mask", "input_ids", "pixel_values")


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Workspace]:
    folder.mkdir()
    with contextlib.chdir(folder):
        outputs = {slot: Path("outputs") / slot for slot in export_stage((TEXT, IMAGE)).outputs}
        for output in outputs.values():
            output.mkdir(parents=True)
        yield Workspace({}, outputs)


def config(fields: ExportFields = FIELDS, shared: tuple[str, ...] = SHARED) -> ComponentsConfig:
    components = {name: ComponentFields(_CLASSES[name], _TASKS[name], fields, shared) for name in (TEXT, IMAGE)}
    return ComponentsConfig(LOADER, components)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, JsonObject, list[LoaderFields]]:
    """The outputs of one run, its metrics, and what it loaded."""
    from winml_dag.stages.export import conversion, loading

    loaded: list[LoaderFields] = []

    def load(loader: LoaderFields, *arguments: Any) -> loading.LoadedModel:
        loaded.append(loader)
        return loading.load_pytorch_model(loader, *arguments)

    folder = tmp_path_factory.mktemp("composite") / "scratch"
    with pytest.MonkeyPatch.context() as patch, scratch(folder) as workspace:
        patch.setattr(conversion, "load_pytorch_model", load)
        metrics = conversion.run_components(config(), workspace)
    return folder / "outputs", metrics, loaded


def test_the_model_is_loaded_once_for_all_components(
    exported: tuple[Path, JsonObject, list[LoaderFields]],
) -> None:
    outputs, metrics, loaded = exported
    assert loaded == [LOADER]
    assert sorted(path.name for path in outputs.iterdir()) == sorted(export_stage((TEXT, IMAGE)).outputs)
    measured = metrics["components"]
    assert isinstance(measured, Mapping)
    assert {name: round(each["cosine"], 6) for name, each in measured.items()} == {TEXT: 1, IMAGE: 1}


def test_a_component_alone_has_the_bytes_that_it_has_among_others(
    exported: tuple[Path, JsonObject, list[LoaderFields]], tmp_path: Path
) -> None:
    from winml_dag.stages.export.conversion import run

    text = replace(FIELDS, input_tensors=FIELDS.input_tensors and FIELDS.input_tensors[:2], dynamic_axes=None)
    loader = replace(LOADER, model_class=_CLASSES[TEXT], task=_TASKS[TEXT])
    outputs = {slot: tmp_path / slot for slot in ("model", "hierarchy")}
    for output in outputs.values():
        output.mkdir()
    with contextlib.chdir(tmp_path):
        run(ExportConfig(loader, text), Workspace({}, outputs))
    alone = (outputs["model"] / "export.onnx").read_bytes()
    assert alone == (exported[0] / f"{TEXT}_model" / "export.onnx").read_bytes()


def test_each_takes_its_own_of_the_tensors_that_are_named_for_all(
    exported: tuple[Path, JsonObject, list[LoaderFields]],
) -> None:
    found = {}
    for name in (TEXT, IMAGE):
        graph = onnx.load(exported[0] / f"{name}_model" / "export.onnx").graph
        found[name] = {
            value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
            for value in graph.input
        }
    assert found == {
        TEXT: {"input_ids": [1, 6], "attention_mask": [1, 6]},
        IMAGE: {"pixel_values": ["batch", 3, 16, 16]},
    }


@pytest.mark.parametrize(
    ("fields", "shared", "complaint"),
    [
        (
            replace(FIELDS, dynamic_axes={"pixel_value": {"0": "batch"}}),
            (*SHARED, "pixel_value"),
            "'pixel_value', which no component takes. Did you mean 'pixel_values'",
        ),
        (FIELDS, (), "names 'pixel_values', which the model does not take"),
    ],
    ids=["of none", "of another"],
)
def test_a_tensor_that_no_component_takes_is_refused(
    tmp_path: Path, fields: ExportFields, shared: tuple[str, ...], complaint: str
) -> None:
    from winml_dag.stages.export.conversion import run_components

    with scratch(tmp_path / "scratch") as workspace, pytest.raises(StageError, match=complaint):
        run_components(config(fields, shared), workspace)
