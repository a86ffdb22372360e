"""What was asked for: a recipe, the options of one run, and the model that the two name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonValue
from winml_dag.errors import RecipeError
from winml_dag.pipeline.request import Overrides
from winml_dag.pipeline.sources import ModelFolder, OnnxFile
from winml_dag.recipe.assessment import Validate
from winml_dag.recipe.optim import OPTIM_FLAGS
from winml_dag.recipe.schema import Export, RandomWeights, Recipe, section_of
from winml_dag.recipe.spelling import known_instead


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


def with_settings(recipe: Recipe, settings: Mapping[str, Mapping[str, JsonValue]] | None) -> Recipe:
    """*recipe* with the fields of ``export``, ``optim`` and ``validate`` that this run asks for otherwise, by section.
    Paths among them are absolute.

    Raises:
        RecipeError: for a field or value that is none.
    """
    update: dict[str, object] = {}
    for name, given in (settings or {}).items():
        if not given:
            continue
        if name == "optim":
            update["optim"] = {**recipe.optim, **_flags(given)}
        elif name == "export":
            update["export"] = section_of(Export, {**_written(recipe.export), **given}, name)
        else:
            update["validation"] = section_of(Validate, {**_written(recipe.validation), **given}, name)
    return recipe.model_copy(update=update) if update else recipe


def _flags(given: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    if unknown := next((name for name in given if name not in OPTIM_FLAGS), None):
        raise RecipeError(f"optim: {unknown!r} is no optimization{known_instead(unknown, OPTIM_FLAGS)}")
    return given


def _written(section: Export | Validate | None) -> dict[str, JsonValue]:
    if section is None:
        return {}
    plain: dict[str, JsonValue] = section.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return plain


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
