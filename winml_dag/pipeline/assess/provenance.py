"""Where a model file in an output folder comes from, as its manifest tells, and whether it still is that file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.pipeline.assess.verification import FileCheck, check_file, load_manifest
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.manifest import component_in, component_names, told_of


@dataclass(frozen=True)
class StageTold:
    """A stage of the build: ``seconds`` is how long its work took when it was done; ``why_not`` why it was left out."""

    name: str
    seconds: float
    why_not: str


@dataclass(frozen=True)
class Provenance:
    """What a manifest tells of one file in its folder.

    Attributes:
        manifest: the file that tells.
        build: fields of the manifest about the build: model_id, task, precision, execution_provider, device, timestamp.
        quality: as the manifest has it; None when nothing was measured.
        notices: what to know before relying on the result.
        stages: the line of the build.
        made_by: the stage whose result the file is; empty when several or none claim it.
        check: whether it has the bytes that the manifest says; None when the manifest does not list it.
    """

    manifest: Path
    build: Mapping[str, str | None]
    quality: JsonObject | None
    notices: tuple[str, ...]
    stages: tuple[StageTold, ...]
    made_by: str
    check: FileCheck | None


_OF_THE_BUILD = ("model_id", "task", "precision", "execution_provider", "device", "timestamp")


def provenance_of(model: Path) -> Provenance | None:
    """What the manifest in the folder of *model* tells of it; None when there is none. Reads the file once.

    Raises:
        InputError: when there is a manifest and it cannot be read.
    """
    folder = model.parent
    if not (folder / MANIFEST).exists():
        return None
    manifest = load_manifest(folder)
    value = told_of(manifest.value, model.name)
    stages = value["stages"]
    assert isinstance(stages, list)
    entry = next((entry for entry in manifest.files if entry.name == model.name), None)
    quality = value.get("quality")
    return Provenance(
        folder / MANIFEST,
        {name: _text(value.get(name)) for name in _OF_THE_BUILD},
        quality if isinstance(quality, Mapping) else None,
        tuple(map(str, _list(value.get("notices")))),
        tuple(_told(stage) for stage in stages if not _is_of_another(stage, manifest.value, model.name)),
        next((str(stage.get("id")) for stage in stages if model.name in _filenames(stage)), ""),
        None if entry is None else check_file(model, entry),
    )


def _is_of_another(stage: JsonObject, value: JsonObject, file: str) -> bool:
    """Whether *stage* is about another component than *file* is."""
    component, _, _ = str(stage.get("id") or "").partition(".")
    return component in component_names(value) and component != component_in(value, file)


def _filenames(stage: JsonObject) -> list[JsonValue]:
    return [stage.get("filename"), *_list(stage.get("filenames"))]


def _told(stage: JsonObject) -> StageTold:
    seconds = stage.get("elapsed_seconds")
    why_not = str(stage.get("reason")) if stage.get("status") == "skipped" else ""
    return StageTold(
        str(stage.get("id") or stage.get("name")), float(seconds) if isinstance(seconds, int | float) else 0.0, why_not
    )


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
