"""Where a model file in an output folder comes from, as its manifest tells, and whether it still is that file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.pipeline.assess.verification import FileCheck, check_file, load_manifest
from winml_dag.pipeline.documents import Stage
from winml_dag.pipeline.layout import MANIFEST


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


_OF_THE_MODEL = ("model_id", "task", "precision", "execution_provider", "device")


def provenance_of(model: Path) -> Provenance | None:
    """What the manifest in the folder of *model* tells of it; None when there is none. Reads the file once.

    Raises:
        InputError: when there is a manifest and it cannot be read.
    """
    folder = model.parent
    if not (folder / MANIFEST).exists():
        return None
    manifest = load_manifest(folder)
    told = manifest.told
    own, component = told.of(model.name), told.component_of_file(model.name)
    entry = next((entry for entry in manifest.files if entry.name == model.name), None)
    return Provenance(
        folder / MANIFEST,
        {**{name: getattr(own, name) or None for name in _OF_THE_MODEL}, "timestamp": told.timestamp or None},
        own.quality,
        tuple(told.notices),
        tuple(_told(stage) for stage in told.stages if told.component_of(stage) in ("", component)),
        next((stage.id for stage in told.stages if model.name in (stage.filename, *stage.filenames)), ""),
        None if entry is None else check_file(model, entry),
    )


def _told(stage: Stage) -> StageTold:
    return StageTold(
        stage.id or stage.name, stage.elapsed_seconds or 0.0, stage.reason if stage.status == "skipped" else ""
    )
