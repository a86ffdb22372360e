"""The documents that tell others of an output folder: one statement for each build, or one bill of materials for all.

A statement of in-toto has one predicate, which is about one run: so each build of a sweep has a statement of its own. A
bill has a model for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import UsageError
from winml_dag.report.found import find
from winml_dag.report.provenance.facts import BuildFacts
from winml_dag.report.provenance.gathered import gather

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

    return (Document("", bom_of(_name(folder, builds), builds)),)


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


def _name(folder: Path, builds: tuple[BuildFacts, ...]) -> str:
    """What *builds* are called together: the sweep that they are of, else their models."""
    sweeps = [sweep.result.name for sweep in find(folder).sweeps]
    models = dict.fromkeys(build.model or "stages of a recipe" for build in builds)
    return sweeps[0] if len(sweeps) == 1 else ", ".join(models)
