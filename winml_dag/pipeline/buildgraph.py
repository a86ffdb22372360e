"""A build as a graph: what everything after planning works with, and all that reports say of a build.

Light on purpose: a build whose plan still stands is recalled as this value, without recipe, schema or stage
declarations being imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine.graph import Graph
from winml_dag.pipeline.layout import MODEL, prefixed
from winml_dag.store.artifact import Artifact, FileEntry

if TYPE_CHECKING:
    from winml_dag.engine.stage import Node
    from winml_dag.pipeline.uptodate import CurrentPlan


@dataclass(frozen=True)
class BuildSummary:
    """What reports and manifests say of a build.

    Attributes:
        model_id: the model as the user named it.
        origin: ``hf`` for a PyTorch model, ``onnx`` for one that is ONNX already, ``stages`` for a build without a
            model, of a recipe's own stages; what tells of a model is None then.
        execution_provider: the full name, as onnxruntime has it; ``ep`` is the one that users write.
        output_dir: where the manifest goes, and all files of a model; a recipe's own stages put theirs where they say.
        settings: the recipe with everything decided, as ``winml_build_config.json`` shows it.
        declared: how many stages of its own the recipe has.
        output_file: the one file in ``output_dir`` that the build is for, with its weights beside it; None when the
            whole folder is.
        also: further models beside ``output_file``, with which it shares a binary.
        notices: what the user should know before relying on the result, one sentence each.
        components: of a composite model, ``task`` and ``precision`` of each component by its name.
        asked: the recipe and the options that led here, for the manifest; empty where nobody noted them.
        final_only: whether of the models only the finished one lies in ``output_dir``.
    """

    model_id: str | None
    origin: str
    task: str | None
    precision: str | None
    execution_provider: str | None
    ep: str | None
    device: str | None
    output_dir: Path
    settings: JsonObject
    notices: tuple[str, ...]
    declared: int = 0
    output_file: str | None = None
    also: tuple[str, ...] = ()
    components: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    asked: JsonObject = field(default_factory=dict)
    final_only: bool = False

    @property
    def scope(self) -> str:
        """What a build is remembered under: its output folder or file, which is what its user knows it by."""
        return str(self.output_dir.resolve() / (self.output_file or ""))

    @property
    def place(self) -> Path:
        """What is as it was when a build has failed: the folder, or the one file."""
        return self.output_dir / (self.output_file or "")

    @property
    def model(self) -> Path:
        """Where the model to ship lies in the end; of a composite model, that of the first component."""
        return self.models[0]

    @property
    def models(self) -> tuple[Path, ...]:
        """Where all models to ship lie: one for each component, or that share a binary."""
        if self.output_file is not None:
            names: Iterable[str] = (self.output_file, *self.also)
        else:
            names = (prefixed(MODEL, name) for name in self.components or ("",))
        return tuple(self.output_dir / name for name in names)

    @property
    def models_by_component(self) -> Mapping[str, Path]:
        """The same, of a composite model; empty of any other."""
        return dict(zip(self.components, self.models, strict=True)) if self.components else {}

    def part(self, component: str) -> BuildSummary:
        """What there is to say of *component* alone."""
        own = self.components[component]
        file = None if self.output_file is None else self.models_by_component[component].name
        return replace(
            self,
            task=own["task"],
            precision=own["precision"],
            output_file=file,
            also=(),
            components={component: own},
        )

    @property
    def headline(self) -> str:
        """What is built, for the line that sums up a run."""
        if self.origin == "stages":
            return "1 stage" if self.declared == 1 else f"{self.declared} stages"
        where = self.ep if self.ep == self.device else f"{self.ep} {self.device}"
        first, *others = self.models
        return f"{', '.join([str(first), *(path.name for path in others)])} ({self.precision}, {where})"

    @property
    def up_to_date(self) -> str:
        """What that line begins with when there is nothing to do."""
        return f"Up to date: {self.headline}"


@dataclass(frozen=True)
class Step:
    """One place in the line of a build: the id of a node of the graph, or the reason why there is none."""

    id: str
    stage: str
    skipped: str | None = None


@dataclass(frozen=True)
class BuildGraph:
    """A build, ready to be run, or the part of one that an edit can have reached.

    Attributes:
        steps: the line as people see it, stages that are left out included.
        sources: the user's files by content, by the name of the source.
        final: id of the node that puts out the model to ship; None in a build without a model.
        looked_at: files and folders outside of the sources that had a say in this plan.
        absent: paths where nothing was, and where a file would have had a say.
        programs: of those that had a say, files that are programs, or are none yet: whether they may be run counts too.
        given: artifacts that stages outside of this part have put out, by name.
        placed: of a part, by stage, what the build before has put into the recipe's folder.
        others: how many stages there are outside of this part, all of them up to date.
        current_plan: the note that it was recalled from, or noted in; None when it cannot be noted.
    """

    summary: BuildSummary
    graph: Graph
    steps: tuple[Step, ...]
    sources: Mapping[str, Artifact]
    final: str | None
    looked_at: tuple[Path, ...] = ()
    absent: tuple[Path, ...] = ()
    programs: tuple[Path, ...] = ()
    given: Mapping[str, Artifact] = field(default_factory=dict)
    placed: Mapping[str, tuple[FileEntry, ...]] = field(default_factory=dict)
    others: int = 0
    current_plan: CurrentPlan | None = None

    @property
    def finals(self) -> tuple[str, ...]:
        """The ids of all nodes that put out a model to ship: one for each component."""
        if self.final is None:
            return ()
        _, _, name = self.final.rpartition(".")
        return tuple(f"{component}.{name}" for component in self.summary.components) or (self.final,)

    def shows(self, node: Node, slot: str) -> bool:
        """Whether what *node* puts out in *slot*, which users may see, lies in the output folder of this build."""
        return not (self.summary.final_only and slot.endswith("model") and node.id not in self.finals)

    @property
    def folder(self) -> Path | None:
        """The recipe's folder, in which stages of its own work; None when it has none."""
        return next((node.folder for node in self.graph.nodes if node.folder is not None), None)
