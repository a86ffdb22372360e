"""The input of resolving: a recipe, the options of a run, and the model that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from winml_dag.canonical import JsonValue
from winml_dag.engine.stage import Source, SourceFile
from winml_dag.errors import InputError, RecipeError, UsageError
from winml_dag.pipeline.request import Overrides
from winml_dag.pipeline.sources import ModelFolder, OnnxFile, find_model_folder
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.recipe.document import known_instead
from winml_dag.recipe.fields import Section
from winml_dag.recipe.paths import resolve_path
from winml_dag.recipe.schema import Export, Loader, RandomWeights, Recipe, Validate
from winml_dag.stages import kinds
from winml_dag.stages.export.detect import TASKS, model_type_of, task_of

S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class ResolveContext:
    """A recipe with the options of this run: the input of all decisions. ``base``: the recipe's folder."""

    recipe: Recipe
    base: Path
    has_recipe: bool
    overrides: Overrides

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


def merged(kind: type[S], written: S | None, given: Mapping[str, JsonValue], name: str = "") -> S:
    """Return the section *written*, called *name* in a recipe, with its fields overridden by *given*.

    Raises:
        RecipeError: for an unknown field or invalid value.
    """
    if written is not None and not given:
        return written
    return kind.from_dict({**(written or kind()).to_dict(), **given}, name)


def with_settings(recipe: Recipe, overrides: Overrides) -> Recipe:
    """Return *recipe* with its sections overridden by this run, except ``quant`` and ``compile``.

    Those two need the target.

    Raises:
        RecipeError: as :func:`merged`.
    """
    update: dict[str, object] = {}
    if given := overrides.section("loader"):
        update["loader"] = merged(Loader, recipe.loader, given)
    if given := overrides.section("export"):
        update["export"] = merged(Export, recipe.export, given)
    if given := overrides.section("optim"):
        update["optim"] = {**recipe.optim, **_flags(given)}
    if given := overrides.section("validate"):
        update["validation"] = merged(Validate, recipe.validation, given)
    return recipe.model_copy(update=update) if update else recipe


def _flags(given: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    if unknown := next((name for name in given if name not in CATALOG), None):
        raise RecipeError(f"optim: {unknown!r} is no optimization{known_instead(unknown, CATALOG)}")
    return given


# Fields of ``export`` that also apply to an ONNX model.
OF_ONNX = ("batch_size", "shape_config", "input_tensors")

# The task of a model without a head: enough to find the modules of an architecture.
_BARE = "feature-extraction"


@dataclass(frozen=True)
class Model:
    """The model that a build starts from: a folder, an ONNX file, or (if neither) random weights."""

    name: str
    folder: ModelFolder | None = None
    onnx: OnnxFile | None = None
    model_type: str | None = None

    @property
    def task(self) -> str | None:
        """The task that it was trained for, according to its folder."""
        return None if self.folder is None else task_of(self.folder.config)

    @property
    def looked_at(self) -> tuple[Path, ...]:
        """Paths other than its own files that influenced which model this is."""
        return () if self.folder is None else self.folder.looked_at


def find_model(context: ResolveContext, *, download: bool) -> Model:
    """Find the model that *context* names; *download* allows fetching it from the hub.

    Raises:
        UsageError, RecipeError: when none is named, or the names contradict each other.
        InputError: for a model that is missing or damaged.
    """
    overrides, loader = context.overrides, context.recipe.loader
    if overrides.random_weights and (named := overrides.model or overrides.onnx) is not None:
        raise UsageError(f"--random-weights makes weights up, and {named} has its own.", advice="Give one of them.")
    if overrides.onnx is not None:
        if overrides.model is not None:
            raise UsageError("--model and --onnx name two models.", advice="Give one of them.")
        return _onnx_model(context, str(overrides.onnx), overrides.onnx)
    # An argument's path is relative to the current folder, a path in a recipe to the recipe.
    base = Path.cwd() if overrides.model is not None else context.base
    name = overrides.model or loader.path or context.recipe.model
    if context.random_weights is not None:
        return _random_model(context, name)
    if name is not None and name.casefold().endswith(".onnx"):
        return _onnx_model(context, name, resolve_path(base, name))
    if name is None and loader.user_script is not None:
        return Model(Path(loader.user_script).name, model_type=loader.model_type)
    if name is None:
        raise UsageError(
            "No model is named.", advice="Give -m/--model, --onnx, `model:` in the recipe, or loader.random_weights."
        )
    if context.recipe.export is None:
        raise RecipeError(f"export is null, which means that the model is ONNX already, but {name!r} is no .onnx file.")
    folder = find_model_folder(name, base, loader.revision, download=download)
    return Model(name, folder=folder, model_type=loader.model_type or model_type_of(folder.config))


def _onnx_model(context: ResolveContext, name: str, path: Path) -> Model:
    if other := sorted({*context.overrides.section("export")} - {*OF_ONNX}):
        raise UsageError(
            f"{name} is ONNX already, so nothing is exported, and export.{other[0]} could change nothing.",
            advice="Leave it out, or give the PyTorch model. The sizes of inputs can be given.",
        )
    return Model(name, onnx=OnnxFile.at(path))


def _random_model(context: ResolveContext, named: str | None) -> Model:
    """Return a model with random weights; *named*, the recipe's model, is neither read nor used as a name."""
    is_onnx = named is not None and named.casefold().endswith(".onnx")
    if context.recipe.export is None or is_onnx:
        why = f"{named} is ONNX" if is_onnx else "export is null, which means that the model is ONNX"
        raise RecipeError(f"{why} already, but random weights are for a model that is exported.")
    model_type = context.recipe.loader.model_type
    if model_type is None:
        raise RecipeError(
            "Random weights need loader.model_type, which says what architecture to make.",
            advice="Set it, for example to bert or resnet.",
        )
    return Model(f"{model_type} with random weights", model_type=model_type)


def user_script(context: ResolveContext, model: Model) -> Source | None:
    """Return the Python file that makes the model, if the recipe names one.

    Raises:
        InputError: when it does not exist.
        RecipeError: when the model is already ONNX.
    """
    written = context.recipe.loader.user_script
    if written is None:
        return None
    path = resolve_path(context.base, written)
    if model.onnx is not None:
        raise RecipeError(
            f"loader.user_script is {written!r}, but the model is ONNX already, so nothing is to be made."
        )
    if path.suffix != ".py" or not path.is_file():
        raise InputError(
            f"loader.user_script: {path} is not a Python file.", advice="Paths are relative to the recipe."
        )
    return Source("user script", kinds.USER_SCRIPT, (SourceFile(path.name, path),))


def task_for(context: ResolveContext, model: Model) -> str | None:
    """Return the task of *model*, as requested, else as the model declares; None for an ONNX model.

    Raises:
        RecipeError: when neither names a task.
    """
    task = context.task or model.task
    if task is None and context.recipe.loader.model_class is not None and model.onnx is None:
        task = task_of({"architectures": [context.recipe.loader.model_class]})
    if task is None and context.recipe.loader.module_path is not None:
        return _BARE  # enough to load the class that contains the module
    if task is None and model.onnx is None:
        raise RecipeError(
            f"What is {model.name!r} for? Neither the recipe nor the model says.",
            advice=f"Set loader.task or give --task, for example feature-extraction. There are: {', '.join(TASKS)}.",
        )
    return task
