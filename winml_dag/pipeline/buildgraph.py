"""A planned build: what reports say about it, and its graph, the input of everything after planning.

This module is light on purpose: a build whose plan is current is loaded as a graph, without importing recipe, schema
or stage declarations.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from winml_dag.canonical import JsonObject
from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import Node
from winml_dag.store.artifact import Artifact, FileEntry

if TYPE_CHECKING:
    from winml_dag.pipeline.plan_text import CachedPlan
    from winml_dag.pipeline.uptodate import CurrentPlan

T = TypeVar("T")

MODEL = "model.onnx"


def prefixed(name: str, component: str) -> str:
    """Return the file name of *name* for *component* in a folder of several; without a component, *name*."""
    return f"{component}_{name}" if component else name


@dataclass(frozen=True)
class BuildSummary:
    """What reports and manifests say about a build.

    Attributes:
        model_id: the model as the user named it.
        origin: ``hf`` for a PyTorch model, ``onnx`` for an ONNX model, ``stages`` for a build of a recipe's own stages
            without a model; fields about the model are then None.
        execution_provider: the full name in onnxruntime; ``ep`` is the one that users write.
        output_dir: the folder for the manifest and all files of a model; a recipe's stages choose their own output
            paths.
        settings: the frozen recipe, as in ``winml_build_config.json``.
        declared: how many stages the recipe declares.
        output_file: the only file in ``output_dir`` that the build makes, with its weights next to it; None if it owns
            the whole folder.
        also: further models next to ``output_file`` that share a binary with it.
        notices: what the user should know before relying on the result, one sentence each.
        components: ``task`` and ``precision`` of each component of a composite model, by name.
        asked: the recipe and the options of this build, for the manifest; empty if not recorded.
        final_only: whether ``output_dir`` gets only the final model, no intermediate ones.
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

    @cached_property
    def scope(self) -> str:
        """The name that a build is recorded under: its output folder or file, by which the user identifies it."""
        folder = os.path.realpath(self.output_dir)
        return folder if self.output_file is None else os.path.join(folder, self.output_file)  # noqa: PTH118

    @property
    def on_options(self) -> tuple[str, ...]:
        """The notices on options of this run that had no effect, which are printed even if nothing ran."""
        return tuple(text for text in self.notices if text.startswith("--") or " has no effect: " in text)

    @property
    def place(self) -> Path:
        """The path that a failed build leaves unchanged: the folder, or the one file."""
        return self.output_dir / (self.output_file or "")

    @property
    def model(self) -> Path:
        """The final path of the model to ship; that of the first component in a composite model."""
        return self.models[0]

    @property
    def models(self) -> tuple[Path, ...]:
        """The final paths of all models to ship: one for each component, or those that share a binary."""
        if self.output_file is not None:
            names: Iterable[str] = (self.output_file, *self.also)
        else:
            names = (prefixed(MODEL, name) for name in self.components or ("",))
        return tuple(self.output_dir / name for name in names)

    @property
    def final_artifact(self) -> Path | None:
        """The one model to ship; None without a model, or if each component has one."""
        several = self.output_file is None and len(self.models) > 1
        return None if self.origin == "stages" or several else self.model

    @property
    def models_by_component(self) -> Mapping[str, Path]:
        """:attr:`models` by component for a composite model, else empty."""
        return dict(zip(self.components, self.models, strict=True)) if self.components else {}

    def part(self, component: str) -> BuildSummary:
        """Return the summary of *component* alone."""
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
        """What is built, for the summary line of a run."""
        if self.origin == "stages":
            return "1 stage" if self.declared == 1 else f"{self.declared} stages"
        where = self.ep if self.ep == self.device else f"{self.ep} {self.device}"
        first, *others = self.models
        return f"{', '.join([str(first), *(path.name for path in others)])} ({self.precision}, {where})"

    @property
    def up_to_date(self) -> str:
        """The start of that line when there is nothing to do."""
        return f"Up to date: {self.headline}"


@dataclass(frozen=True)
class Step:
    """One step in the line of a build: the id of its graph node, and the reason if it is skipped."""

    id: str
    stage: str
    skipped: str | None = None


@dataclass(frozen=True)
class BuildGraph:
    """A build ready to run, or the part of one that an edit can affect.

    Attributes:
        steps: the line that users see, including skipped stages.
        sources: the user's files by content, by the name of the source.
        final: the id of the node that outputs the model to ship; None in a build without a model.
        looked_at: files and folders other than sources that influenced this plan.
        absent: paths that did not exist, where a file would have influenced this plan.
        programs: those of these paths that are executables or may become one: their execute permission matters, too.
        given: artifacts that stages outside of this part have output, by name.
        placed: for a part, the files that the previous build wrote to the recipe's folder, by stage.
        others: how many stages are outside of this part, all of them up to date.
        current_plan: the plan cache entry that it was loaded from or saved in; None when it cannot be saved.
        cached_plan: the same entry's plan, if it was loaded from there.
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
    cached_plan: CachedPlan | None = None

    @property
    def finals(self) -> tuple[str, ...]:
        """The ids of all nodes that output a model to ship: one for each component."""
        if self.final is None:
            return ()
        _, _, name = self.final.rpartition(".")
        return tuple(f"{component}.{name}" for component in self.summary.components) or (self.final,)

    def shows(self, node: Node, slot: str) -> bool:
        """Whether the output of *node* in *slot*, a published slot, is in the output folder of this build."""
        return not (self.summary.final_only and slot.endswith("model") and node.id not in self.finals)

    @property
    def folder(self) -> Path | None:
        """The recipe's folder, in which its own stages work; None if there is none."""
        return next((node.folder for node in self.graph.nodes if node.folder is not None), None)
