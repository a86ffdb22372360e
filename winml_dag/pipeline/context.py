"""A recipe with the options of this run: the input of everything that is decided of a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from winml_dag.canonical import JsonValue
from winml_dag.ep.providers.qnn import NPU_SETTINGS, option_of
from winml_dag.ep.registry import Target
from winml_dag.errors import RecipeError
from winml_dag.pipeline.request import Overrides
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.recipe.document import known_instead
from winml_dag.recipe.fields import Section
from winml_dag.recipe.load import LoadedRecipe
from winml_dag.recipe.schema import Compile, Export, Loader, RandomWeights, Recipe, Validate

S = TypeVar("S", bound=Section)

_CHIP = {"soc_model", "htp_arch"}


@dataclass(frozen=True)
class ResolveContext:
    """What a build is resolved from.

    Attributes:
        recipe: that of the file *loaded* as it applies to this build, or an empty one.
        output_dir: the folder for its results.
        only: the stages that are wanted, whose prerequisites have to be there; None for all.
        runs: whether the build is to run; if it is only planned, its prerequisites may be missing here.
        download: whether a model or data may be fetched from the hub.
    """

    recipe: Recipe
    loaded: LoadedRecipe | None
    overrides: Overrides
    output_dir: Path
    only: frozenset[str] | None = None
    runs: bool = True
    download: bool = False

    @classmethod
    def of(cls, loaded: LoadedRecipe | None, overrides: Overrides, output_dir: Path, **settings: Any) -> ResolveContext:
        return cls(Recipe() if loaded is None else loaded.recipe, loaded, overrides, output_dir, **settings)

    @property
    def base(self) -> Path:
        """The folder that paths are relative to."""
        return Path.cwd() if self.loaded is None else self.loaded.path.parent

    def wants(self, stage: str) -> bool:
        return self.only is None or stage in self.only

    def wrote(self, section: str) -> bool:
        """Whether the recipe has *section*, even as null."""
        return section in self.recipe.model_fields_set

    @property
    def random_weights(self) -> RandomWeights | None:
        """None if this run names a model: its weights replace the recipe's random weights."""
        if self.overrides.model is not None or self.overrides.onnx is not None:
            return None
        written = self.recipe.loader.random_weights
        return RandomWeights() if written is None and self.overrides.random_weights else written

    @property
    def task(self) -> str | None:
        return self.overrides.task or self.recipe.loader.task

    @property
    def trusts_code(self) -> bool:
        return self.recipe.loader.trust_remote_code or self.overrides.trust_remote_code

    def with_settings(self) -> ResolveContext:
        """Return the context with the recipe's sections overridden by this run, except ``quant`` and ``compile``.

        Those two need the target.

        Raises:
            RecipeError: for an unknown field or invalid value.
        """
        recipe, given = self.recipe, self.overrides.section
        update: dict[str, object] = {}
        if given("export"):
            update["export"] = merged(Export, recipe.export, given("export"))
        if given("optim"):
            update["optim"] = {**recipe.optim, **_flags(given("optim"))}
        if given("validate"):
            update["validation"] = merged(Validate, recipe.validation, given("validate"))
        return self.with_loader()._updated(update)

    def with_loader(self) -> ResolveContext:
        """Return the context with the section loader overridden: it decides the model and its components."""
        given = self.overrides.section("loader")
        return self._updated({"loader": merged(Loader, self.recipe.loader, given)} if given else {})

    def with_compile_settings(self, target: Target) -> ResolveContext:
        """Return the context with the fields of ``compile`` overridden by this run.

        Provider options are merged one by one. This run's choice of chip overrides both forms in which the recipe can
        give it. Paths of this run are relative to the current folder.

        Raises:
            RecipeError: for an unknown field or invalid value.
        """
        settings = self.overrides.section("compile")
        if not settings:
            return self
        section = self.recipe.compile
        if section is None:
            # Null disables compiling, whatever the session options; a missing section does not.
            section = Compile(enable_ep_context=False) if self.wrote("compile") else Compile()
        given = Compile.from_dict(settings)
        said = _said(given)
        written = {name: value for name, value in section.to_dict().items() if option_of(name) not in said}
        kept = {name: value for name, value in section.provider_options.items() if name not in said}
        options = {
            name: str(Path(value).absolute()) if name in target.ep.file_options else value
            for name, value in given.provider_options.items()
        }
        changed = {**written, **settings, "provider_options": {**kept, **options}}
        if given.qnn_sdk_root is not None:
            changed["qnn_sdk_root"] = str(Path(given.qnn_sdk_root).absolute())
        return self._updated({"compile": Compile.from_dict(changed)})

    def _updated(self, sections: Mapping[str, object]) -> ResolveContext:
        return replace(self, recipe=self.recipe.model_copy(update=sections)) if sections else self


def merged(kind: type[S], written: S | None, given: Mapping[str, JsonValue], name: str = "") -> S:
    """Return the section *written*, called *name* in a recipe, with its fields overridden by *given*.

    Raises:
        RecipeError: for an unknown field or invalid value.
    """
    if written is not None and not given:
        return written
    return kind.from_dict({**(written or kind()).to_dict(), **given}, name)


def _flags(given: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    if unknown := next((name for name in given if name not in CATALOG), None):
        raise RecipeError(f"optim: {unknown!r} is not an optimization{known_instead(unknown, CATALOG)}")
    return given


def _said(section: Compile) -> frozenset[str]:
    """Return the NPU options that *section* sets in either form; a chip and its architecture count as both."""
    fields = {option_of(name) for name in NPU_SETTINGS if getattr(section, name) is not None}
    said = fields | section.provider_options.keys()
    return frozenset(said | _CHIP if said & _CHIP else said)
