"""What was asked for: a recipe, the options of one run, and the model that the two name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from winml_dag.pipeline.request import Overrides
from winml_dag.pipeline.sources import ModelFolder, OnnxFile
from winml_dag.recipe.schema import RandomWeights, Recipe


@dataclass(frozen=True)
class Asked:
    """A recipe together with the options of this run: what all decisions are made from. ``base``: its folder."""

    recipe: Recipe
    base: Path
    has_recipe: bool
    overrides: Overrides

    def wrote(self, section: str) -> bool:
        """Whether the recipe has *section*, if only as null."""
        return section in self.recipe.model_fields_set

    @property
    def random_weights(self) -> RandomWeights | None:
        written = self.recipe.loader.random_weights
        return RandomWeights() if written is None and self.overrides.random_weights else written

    @property
    def trusts_code(self) -> bool:
        return self.recipe.loader.trust_remote_code or self.overrides.trust_remote_code


@dataclass(frozen=True)
class Model:
    """The model that a build starts from: a folder, an ONNX file, or (neither) random weights."""

    name: str
    folder: ModelFolder | None = None
    onnx: OnnxFile | None = None
    model_type: str | None = None

    @property
    def looked_at(self) -> tuple[Path, ...]:
        """Paths outside of its own files that decided which model this is."""
        return () if self.folder is None else self.folder.looked_at
