"""The request of one call, from the command line or from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonValue, canonical_json, json_hash
from winml_dag.pipeline.remoteoptions import RemoteOptions

if TYPE_CHECKING:
    from winml_dag.recipe.load import LoadedRecipe


@dataclass(frozen=True)
class Overrides:
    """The options of a command or call; None and False leave the decision to the recipe.

    Attributes:
        settings: fields by section (``loader``, ``export``, ``optim``, ``quant``, ``compile``, ``validate``) that
            override those of the recipe and those that the precision decides; ``provider_options`` are merged one by
            one. Paths in it are absolute.
        sensitivity: also rank the nodes.
        submodel: the one component to build of a composite model.
    """

    model: str | None = None
    onnx: Path | None = None
    task: str | None = None
    ep: str | None = None
    device: str | None = None
    precision: str | None = None
    settings: Mapping[str, Mapping[str, JsonValue]] | None = None
    quant: bool | None = None
    compile: bool | None = None
    optimize: bool | None = None
    analyze: bool | None = None
    max_optim_iterations: int | None = None
    allow_unsupported_nodes: bool = False
    validate: bool | None = None
    sensitivity: bool = False
    submodel: str | None = None
    random_weights: bool = False
    trust_remote_code: bool = False

    def section(self, name: str) -> Mapping[str, JsonValue]:
        """Return the overridden fields of one section."""
        return (self.settings or {}).get(name, {})


@dataclass(frozen=True)
class Request:
    """A recipe (its file, or already loaded) and the options of this run.

    Attributes:
        output_dir: the output folder; None with ``use_cache`` means a folder in the cache.
        command: request only the stage of this name, whose result goes to ``output_file``.
        save_ranges: the file for activation ranges.
        also: further models to compile into one binary with the first, each written next to it.
        item: the index of the recipe in its file's list.
        remote: options for remotes.
        final_only: write only the final model to the folder.
    """

    recipe: Path | LoadedRecipe | None
    overrides: Overrides
    output_dir: Path | None = None
    use_cache: bool = False
    command: str | None = None
    output_file: Path | None = None
    save_ranges: Path | None = None
    also: tuple[Path, ...] = ()
    item: int | None = None
    remote: RemoteOptions = field(default_factory=RemoteOptions)
    final_only: bool = False

    def loaded(self) -> LoadedRecipe | None:
        """Return the recipe, loaded from its file if necessary. Raises InputError and RecipeError as loading does."""
        if not isinstance(self.recipe, Path):
            return self.recipe
        from winml_dag.recipe.load import load_recipe

        return load_recipe(self.recipe, self.item)

    @property
    def words(self) -> str | None:
        """The exact request as text, with the current folder.

        A loaded recipe is identified by its content, so that no file has to be checked for changes. None if the request
        cannot be represented as JSON.
        """
        try:
            recipe = _told(self.recipe)
        except ValueError:
            return None
        overrides = {name: value if value is None else str(value) for name, value in asdict(self.overrides).items()}
        return canonical_json(
            {
                "recipe": recipe,
                "item": self.item,
                "overrides": overrides,
                "output_dir": None if self.output_dir is None else str(self.output_dir),
                "use_cache": self.use_cache,
                "command": self.command,
                "output_file": None if self.output_file is None else str(self.output_file),
                "save_ranges": None if self.save_ranges is None else str(self.save_ranges),
                "also": [str(path) for path in self.also],
                "current_folder": os.getcwd(),  # noqa: PTH109 - one of the paths that are compared as texts
                **({"final_only": True} if self.final_only else {}),
            }
        )


def _told(recipe: Path | LoadedRecipe | None) -> JsonValue:
    """Return the recipe's file, or its content and path, which relative paths need. Raises ValueError if not JSON."""
    if recipe is None or isinstance(recipe, Path):
        return None if recipe is None else str(recipe)
    return {"file": str(recipe.path), "format": recipe.format, "says": json_hash(recipe.recipe.to_dict())}


# Suffixes for the output name of a command when none is given. Those of optimize and quantize match winml-cli.
_ENDINGS = {
    "optimize": "_opt.onnx",
    "calibrate": "_ranges.json",
    "quantize": "_quantized.onnx",
    "compile": "_compiled.onnx",
}


def beside(model: Path, command: str) -> Path:
    """Return the default output path of *command*: next to the model."""
    return model.parent / f"{model.stem}{_ENDINGS[command]}"
