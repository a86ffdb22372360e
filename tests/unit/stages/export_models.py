"""Tiny models of the supported architectures, and ways to run the stages of an export as in the engine."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.stages.export import (
    MODEL_SOURCE,
    ExportConfig,
    ExportFields,
    LoaderFields,
    RandomWeights,
    SignatureConfig,
)

_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_TEXT = {"vocab_size": 100, "max_position_embeddings": 40}

SMALL: Mapping[str, Mapping[str, Any]] = {
    "bert": {**_LAYERS, **_TEXT},
    "roberta": {**_LAYERS, **_TEXT, "type_vocab_size": 1},
    "distilbert": {**_TEXT, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    "gpt2": {"vocab_size": 100, "n_positions": 40, "n_embd": 32, "n_layer": 2, "n_head": 2},
    "vit": {**_LAYERS, "image_size": 32, "patch_size": 8},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32},
}


def made(
    task: str, model_type: str | None, model_class: str | None = None, seed: int = 0, **config: Any
) -> LoaderFields:
    """Return a model with random weights."""
    return LoaderFields(task, model_type, model_class, random_weights=RandomWeights(seed, config))


def random_model(model_type: str, task: str, seed: int = 0, **overrides: Any) -> LoaderFields:
    return made(task, model_type, seed=seed, **{**SMALL[model_type], **overrides})


@dataclass(frozen=True)
class Exported:
    model: Path
    metrics: JsonObject
    hierarchy: Mapping[str, Any]


class Bench:
    """Runs a stage in a fresh scratch folder each time, with relative folders only."""

    def __init__(self, folder: Path) -> None:
        self._scratches = (folder / f"scratch-{number}" for number in range(100))

    def run(
        self, work: Callable[[Any, Workspace], JsonObject], config: object, slots: Iterable[str], **inputs: Path
    ) -> tuple[Path, JsonObject]:
        """Return the folder with the outputs, and the metrics."""
        scratch = next(self._scratches)
        for slot in slots:
            (scratch / "outputs" / slot).mkdir(parents=True)
        for slot, folder in inputs.items():
            shutil.copytree(folder, scratch / "inputs" / slot)
        with contextlib.chdir(scratch):
            workspace = Workspace(
                {slot: Path("inputs") / slot for slot in inputs}, {slot: Path("outputs") / slot for slot in slots}
            )
            return scratch / "outputs", work(config, workspace)

    def export(
        self, loader: LoaderFields, fields: ExportFields | None = None, folder: Path | None = None, slot: str = "model"
    ) -> Exported:
        """Export with *folder* as the input *slot*."""
        config = ExportConfig(loader, fields or ExportFields())
        inputs = {} if folder is None else {slot: folder}
        outputs, metrics = self.run(_stage(), config, ("model", "hierarchy"), **inputs)
        [hierarchy] = (outputs / "hierarchy").iterdir()
        return Exported(outputs / "model/export.onnx", metrics, json.loads(hierarchy.read_text(encoding="utf-8")))


@functools.cache
def _stage() -> Callable[[ExportConfig, Workspace], JsonObject]:
    """Return the stage, and exclude its modules from garbage collection."""
    from winml_dag.stages.export.conversion import run

    gc.freeze()
    return run


_SHARED: dict[str, Exported] = {}


def exported_once(loader: LoaderFields, fields: ExportFields | None = None) -> Exported:
    """Return an export that tests only read, made once in this process."""
    key = repr((loader, fields or ExportFields()))
    if key not in _SHARED:
        _SHARED[key] = Bench(_folder_until_exit() / str(len(_SHARED))).export(loader, fields)
    return _SHARED[key]


@functools.cache
def _folder_until_exit() -> Path:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


def signature(loader: LoaderFields, fields: ExportFields | None = None, folder: Path | None = None) -> Any:
    """Return the tensors of an export without exporting: ``input_tensors`` and ``output_tensors``, as in a recipe."""
    from winml_dag.stages.export.conversion import run_signature

    facts = {} if folder is None else {MODEL_SOURCE: str(folder)}
    return run_signature(SignatureConfig(loader, fields or ExportFields()), Workspace({}, {}, machine_facts=facts))


def names(tensors: Iterable[Mapping[str, Any]]) -> list[str]:
    return [each["name"] for each in tensors]
