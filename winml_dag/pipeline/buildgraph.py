"""A build as a graph: what everything after planning works with, and all that reports say of a build.

Light on purpose: a build whose plan still stands is recalled as this value, without recipe, schema or stage
declarations being imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.graph import Graph
from winml_dag.store.artifact import Artifact


@dataclass(frozen=True)
class BuildSummary:
    """What reports and manifests say of a build.

    Attributes:
        model_id: the model as the user named it.
        origin: ``hf`` for a PyTorch model, ``onnx`` for one that is ONNX already.
        execution_provider: the full name, as onnxruntime has it; ``ep`` is the one that users write.
        settings: the recipe with everything decided, as ``winml_build_config.json`` shows it.
        notices: what the user should know before relying on the result, one sentence each.
    """

    model_id: str
    origin: str
    task: str | None
    precision: str
    execution_provider: str
    ep: str
    device: str
    output_dir: Path
    settings: JsonObject
    notices: tuple[str, ...]

    @property
    def scope(self) -> str:
        """What a build is remembered under: its output folder, which is what its user knows it by."""
        return str(self.output_dir.resolve())


@dataclass(frozen=True)
class Step:
    """One place in the line of a build: the id of a node of the graph, or the reason why there is none."""

    id: str
    stage: str
    skipped: str | None = None


@dataclass(frozen=True)
class BuildGraph:
    """A build, ready to be run.

    Attributes:
        steps: the line as people see it, stages that are left out included.
        sources: the user's files by content, by the name of the source.
        final: id of the node that puts out the model to ship.
        looked_at: files and folders outside of the sources that had a say in this plan.
    """

    summary: BuildSummary
    graph: Graph
    steps: tuple[Step, ...]
    sources: Mapping[str, Artifact]
    final: str
    looked_at: tuple[Path, ...] = ()
