"""The request of one call, from the command line or from Python: what to build, and with which remotes.

Whether any remote is configured is determined at the start of every build from options, a variable, and two files that
mostly do not exist. ``remoteconfig`` reads the rest of them when a store is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonValue, canonical_json, json_hash
from winml_dag.configuration import config_file
from winml_dag.file_reading import read_bytes
from winml_dag.store.cache_folder import default_cache_dir, store_folder

if TYPE_CHECKING:
    from winml_dag.recipe.load import LoadedRecipe


REMOTE_VARIABLE = "WINML_DAG_REMOTE"
MODE_VARIABLE = "WINML_DAG_REMOTE_MODE"
NAMESPACE_VARIABLE = "WINML_DAG_REMOTE_NAMESPACE"
ACCEPT_UNSIGNED_VARIABLE = "WINML_DAG_REMOTE_ACCEPT_UNSIGNED"

PROJECT_FILE = "winml_dag.toml"

# Every start of a TOML line about remotes: an up-to-date build reads no more. Misspelled ones too: else [[remotes]]
# would be ignored without a message.
_REMOTE = re.compile(rb"^[ \t]*\[?\[?[ \t]*[\"']?remot", re.MULTILINE)
# The file of a project is about nothing else.
_ANYTHING = re.compile(rb"^[ \t]*[^#\s]", re.MULTILINE)


@dataclass(frozen=True)
class RemoteOptions:
    """The options of one call; the environment and the configuration supply the rest.

    Attributes:
        urls: the nearest first.
        mode: of every remote.
        folder: that of the recipe, where the configuration of the project is searched first.
    """

    urls: tuple[str, ...] = ()
    mode: str | None = None
    folder: Path | None = None

    @classmethod
    def of(cls, urls: tuple[str, ...], mode: str | None, recipe: Path | None) -> RemoteOptions:
        """Return the options of a call for *recipe*, a file or a folder of recipes, if it has one."""
        return cls(urls, mode, None if recipe is None else recipe if recipe.is_dir() else recipe.parent)

    @cached_property
    def is_configured(self) -> bool:
        """Whether any remote is configured, even one that is off: then digests are sha256."""
        if self.urls or os.environ.get(REMOTE_VARIABLE, "").strip():
            return True
        files = (self.project_file, config_file())
        return any(path is not None and names_remotes(path) for path in files)

    @property
    def in_use(self) -> bool:
        """Whether a store needs more than its folder."""
        return self.is_configured or self.mode is not None

    def store_folder(self, cache_dir: Path | None) -> Path:
        """Return the store's folder for builds, in the cache folder *cache_dir*, by default the user's."""
        folder = default_cache_dir() if cache_dir is None else cache_dir
        return store_folder(folder, "sha256") if self.is_configured else folder

    @cached_property
    def project_file(self) -> Path | None:
        """The nearest ``winml_dag.toml``.

        It is searched from the recipe's folder up to the root of its repository, then from the current folder in the
        same way.
        """
        for start in (self.folder, Path()):
            for folder in () if start is None else _up_to_the_root(os.path.abspath(start)):  # noqa: PTH100
                if os.path.isfile(path := f"{folder}{os.sep}{PROJECT_FILE}"):  # noqa: PTH113
                    return Path(path)
        return None


def names_remotes(path: Path) -> bool:
    """Whether the configuration file at *path*, which may be missing, mentions remotes. An unreadable one counts: the
    error is reported when the rest is read.
    """
    try:
        pattern = _ANYTHING if path.name == PROJECT_FILE else _REMOTE
        return pattern.search(path.read_bytes()) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _up_to_the_root(start: str) -> Iterator[str]:
    """The folder *start* and its parents up to the root of its repository. Without a repository only *start*: its
    parents may belong to anybody, as in a temporary folder.
    """
    folders = [start]
    while not os.path.lexists(f"{folders[-1]}{os.sep}.git"):
        above = os.path.dirname(folders[-1])  # noqa: PTH120
        if above == folders[-1]:
            return iter([start])
        folders.append(above)
    return iter(folders)


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

    @property
    def may_have_own_stages(self) -> bool:
        """Whether the recipe may have stages of its own: of a file that is not read yet, whether it has that word."""
        if not isinstance(self.recipe, Path):
            return self.recipe is not None and bool(self.recipe.recipe.stages)
        with suppress(OSError):  # reported when the recipe is loaded
            return b"stages" in read_bytes(self.recipe)
        return False

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
            recipe = _recipe_words(self.recipe)
        except ValueError:
            return None
        own, overrides = (
            {name: value if value is None else str(value) for name, value in vars(each).items() if name not in _APART}
            for each in (self, self.overrides)
        )
        folder = os.getcwd()  # noqa: PTH109 - one of the paths that are compared as texts
        return canonical_json({**own, "recipe": recipe, "overrides": overrides, "current_folder": folder})


def _recipe_words(recipe: Path | LoadedRecipe | None) -> JsonValue:
    """Return the recipe's file, or its content and path, which relative paths need. Raises ValueError if not JSON."""
    if recipe is None or isinstance(recipe, Path):
        return None if recipe is None else str(recipe)
    return {"file": str(recipe.path), "format": recipe.format, "says": json_hash(recipe.recipe.to_dict())}


# Fields of a request that are in its text otherwise, or, as the remotes, not at all.
_APART = ("recipe", "overrides", "remote")

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
