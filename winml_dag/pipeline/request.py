"""What one call of ours asks for, as it comes from the command line or from Python, and the graph that it leads to."""

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
    """What was asked for on the command line or in a call; None and False leave the decision to the recipe.

    ``settings``: by section (``loader``, ``export``, ``optim``, ``quant``, ``compile``, ``validate``), the fields that
    take the place of the recipe's, and of those that the precision decides; ``provider_options`` are added one by one.
    Paths among them are absolute.
    ``sensitivity``: rank the nodes besides. ``submodel``: the one component that is meant, of a composite model.
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
        """The fields of one section."""
        return (self.settings or {}).get(name, {})


@dataclass(frozen=True)
class Request:
    """A recipe (its file, or loaded already) and the options of this run.

    ``output_dir`` None with ``use_cache`` means a folder in the cache. With ``command``, only the stage of that name
    is asked for, whose result is put into ``output_file``, and activation ranges into the file ``save_ranges``.
    ``also``: further models that are compiled into one binary with the first, each put beside it. ``item``: the place
    of the recipe in the list that its file has. ``remote``: what was said of remotes. ``final_only``: of the
    models, only the finished one is put into the folder.
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
        """The recipe, read from its file if need be. Raises InputError and RecipeError as reading does."""
        if not isinstance(self.recipe, Path):
            return self.recipe
        from winml_dag.recipe.load import load_recipe

        return load_recipe(self.recipe, self.item)

    @property
    def words(self) -> str | None:
        """What was asked for, word for word, and from where. A recipe that was loaded already is told by what it says,
        so that nothing else needs to tell that it has changed. None where not even JSON can say that.
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
    """Its file, or what it says and where it says so, for the paths in it. Raises ValueError for what is no JSON."""
    if recipe is None or isinstance(recipe, Path):
        return None if recipe is None else str(recipe)
    return {"file": str(recipe.path), "format": recipe.format, "says": json_hash(recipe.recipe.to_dict())}


# What is put behind the name of a model for what a command makes of it, when nobody says where that goes. For optimize
# and quantize it is as with winml-cli.
_ENDINGS = {
    "optimize": "_opt.onnx",
    "calibrate": "_ranges.json",
    "quantize": "_quantized.onnx",
    "compile": "_compiled.onnx",
}


def beside(model: Path, command: str) -> Path:
    """Where the result of *command* goes when nobody says: beside the model."""
    return model.parent / f"{model.stem}{_ENDINGS[command]}"
