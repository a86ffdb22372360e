"""Where a model file in an output folder comes from, according to its manifest, and whether it is unchanged."""

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
    """A stage of the build: ``seconds`` is how long it took when it ran; ``why_not`` is why it was skipped."""

    name: str
    seconds: float
    why_not: str


@dataclass(frozen=True)
class Provenance:
    """What a manifest records about one file in its folder.

    Attributes:
        manifest: the path of the manifest.
        build: fields of the manifest about the build: model_id, task, precision, execution_provider, device, timestamp.
        quality: as in the manifest; None when nothing was measured.
        notices: what to know before relying on the result.
        stages: the stages of the build, in order.
        made_by: the stage that made the file; empty if several or none did.
        check: whether it has the recorded digest; None when the manifest does not list it.
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
    """Return what the manifest in the folder of *model* records about it; None without a manifest. Reads the file once.

    Raises:
        InputError: when the manifest cannot be read.
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
