"""The documents that tell others of an output folder: one statement for each build, or one bill of materials for all.

A statement of in-toto has one predicate, which is about one run: so each build of a sweep has a statement of its own. A
bill has a model for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import UsageError
from winml_dag.report.provenance.facts import BuildFacts
from winml_dag.report.provenance.gathered import gather
from winml_dag.report.provenance.modelcard import Measured

SLSA, CYCLONEDX = "slsa", "cyclonedx"
_EXTRA = {SLSA: ("in_toto_attestation", "google.protobuf"), CYCLONEDX: ("cyclonedx.validation.json", "jsonschema")}


@dataclass(frozen=True)
class Document:
    """``build``: the folder of the build that it is about, below the one that was given; empty for that itself, and of
    a bill of all.
    """

    build: str
    text: str


def documents_of(folder: Path, format_: str) -> tuple[Document, ...]:
    """What there is to tell of *folder*, as ``slsa`` or ``cyclonedx``.

    Raises:
        UsageError: when the libraries for it are not installed.
        InputError: when there is no build, or it is not as it was built.
    """
    require(format_)
    builds = gather(folder, apart=format_ == SLSA)
    if format_ == SLSA:
        from winml_dag.report.provenance.statement import statement_of

        return tuple(Document(build.name, statement_of(build)) for build in builds)
    from winml_dag.report.provenance.bom import bom_of

    measured, name = _measured(folder, builds)
    return (Document("", bom_of(name, builds, measured)),)


def require(format_: str) -> None:
    """Raise UsageError when the libraries for *format_* are not installed."""
    import importlib

    for module in _EXTRA[format_]:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(
                f"The format {format_} takes libraries that are not installed ({error}).",
                advice="pip install winml_dag[provenance]",
            ) from error


def _measured(folder: Path, builds: tuple[BuildFacts, ...]) -> tuple[Mapping[str, Measured], str]:
    """What a sweep knows of its builds, and what they are called together."""
    from winml_dag.report.collect import collect, place_of
    from winml_dag.report.found import find

    found = find(folder)
    rows = {place_of(Path(row.folder)): row for row in collect([folder]).rows}
    measured = {
        build.name: Measured(row.latency, row.accuracy)
        for build in found.builds
        if (row := rows.get(place_of(build.folder))) is not None
    }
    sweeps = [sweep.result.name for sweep in found.sweeps]
    models = dict.fromkeys(build.model or "stages of a recipe" for build in builds)
    return measured, sweeps[0] if len(sweeps) == 1 else ", ".join(models)
