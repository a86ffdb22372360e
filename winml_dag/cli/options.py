"""The options of build commands, the request they form, and the way back to arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from winml_dag.canonical import JsonValue
from winml_dag.cli import as_json, echo, set_format
from winml_dag.cli.command import ADDRESS, FILE, RECIPE, TEXT, folder_option, pairs, with_options
from winml_dag.cli.settings import COMPILE, VALIDATION, input_options, sections_from
from winml_dag.pipeline.request import Overrides, RemoteOptions, Request

if TYPE_CHECKING:
    from winml_dag.pipeline.buildgraph import BuildGraph
    from winml_dag.store.store import Store

remote_option = with_options(
    click.option(
        "--remote",
        type=ADDRESS,
        multiple=True,
        metavar="URL",
        help="A shared cache. Repeat it for more, nearest first [WINML_DAG_REMOTE, or the configuration].",
    ),
    click.option(
        "--remote-mode",
        type=click.Choice(["read", "read-write", "off"]),
        help="How to use the shared caches [WINML_DAG_REMOTE_MODE, or the configuration].",
    ),
)
cache_option = with_options(
    click.option("--cache-dir", type=FILE, help="The cache folder [WINML_DAG_CACHE_DIR]."), remote_option
)
target_options = with_options(
    click.option("--ep", type=TEXT, help="Execution provider: cpu, qnn, openvino, ..."),
    click.option("-d", "--device", type=TEXT, help="npu, gpu, cpu or auto, or the name of an execution provider."),
)
task_option = click.option("-t", "--task", type=TEXT, help="The model's task, such as text-classification.")
submodel_option = click.option("--submodel", type=TEXT, help="One component of a composite model, such as encoder.")
random_weights_option = click.option(
    "--random-weights", is_flag=True, help="Use random weights. No checkpoint is read."
)
trust_option = click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the model.")
rebuild_option = click.option("--rebuild", is_flag=True, help="Run every stage, even if its result is cached.")
format_option = click.option(
    "-f",
    "--format",
    "format_",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Output format [text].",
    callback=set_format,
    expose_value=False,
)
F = TypeVar("F", bound=Callable[..., Any])
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace files that winml-dag did not write.")
output_options = with_options(
    click.option("-v", "--verbose", is_flag=True, help="Print the reason of every stage, and whole logs of failures."),
    click.option("-q", "--quiet", is_flag=True, help="Print only errors and the summary."),
    format_option,
)
# The options of :class:`How`, for commands that are no builds.
how_options = with_options(overwrite_option, rebuild_option, cache_option, output_options)
cell_options = with_options(
    click.option(
        "--filter",
        "filters",
        type=TEXT,
        multiple=True,
        help="Only these cells of a sweep: model=bert,res*, precision!=fp32, or names. Repeated filters are combined"
        " with AND.",
    ),
    click.option("--shard", type=TEXT, help="One part of a sweep: 3/8 is the third of eight."),
)


set_option = click.option(
    "--set",
    "set_",
    type=TEXT,
    metavar="SECTION.FIELD=VALUE",
    multiple=True,
    callback=pairs,
    help="Set a field of the recipe, such as quant.samples=20. VALUE is JSON or text. Repeatable.",
)
_FOLDER = with_options(
    folder_option("Write the results to this folder."),
    click.option("--use-cache", is_flag=True, help="Keep the results in the cache folder instead of -o."),
    click.option("--final-only", is_flag=True, help="Write only the final model, not the intermediate ones."),
)


def _build_options(*first: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds the options of a build, which the command receives as ``**options``."""
    return with_options(
        *first,
        click.option("-m", "--model", type=TEXT, help="A hub id, a model folder or an .onnx file."),
        click.option("--onnx", type=FILE, help="An ONNX model."),
        cache_option,
        task_option,
        submodel_option,
        target_options,
        click.option("-p", "--precision", type=TEXT, help="auto, fp32, fp16, int8, int16, w8a8, w8a16, ..."),
        *(
            click.option(f"--{stage}/--no-{stage}", default=None, help=f"Run or skip {what}.")
            for stage, what in _SWITCHES.items()
        ),
        click.option(
            "--max-optim-iterations",
            type=click.IntRange(0, 20),
            help="Rounds of optimize after the first, for findings of analyze [3].",
        ),
        click.option(
            "--allow-unsupported-nodes", is_flag=True, help="Build even if the target cannot run some operators."
        ),
        random_weights_option,
        trust_option,
        input_options,
        COMPILE,
        VALIDATION,
        set_option,
    )


_SWITCHES = {
    "quant": "quantization",
    "compile": "compilation",
    "optimize": "optimization",
    "validate": "validation",
    "analyze": "the search for optimizations that the target needs",
}
_RECIPE = click.option("-c", "--config", "recipe", type=RECIPE, help="A recipe: a JSON or YAML file, or catalog:NAME.")
_RECIPES = click.option(
    "-c",
    "--config",
    "recipes",
    type=RECIPE,
    multiple=True,
    help="A recipe or sweep: a file, a folder, a pattern, or catalog:NAME. Several are built as one graph.",
)
shared_options = _build_options(_RECIPE)
request_options = _build_options(_RECIPE, _FOLDER)
several_request_options = _build_options(_RECIPES, _FOLDER)


def are_a_sweep(recipes: Sequence[Path]) -> bool:
    """Return whether *recipes* are several, or one with a matrix or a list of modules.

    A folder or pattern is a sweep, regardless of the number of recipes in it.
    """
    if not recipes:
        return False
    from winml_dag.recipe.reading import is_sweep, module_items, recipe_files

    if len(recipes) != 1 or not recipes[0].is_file():
        return len(recipes) > 1 or recipe_files(recipes) != tuple(recipes)
    return is_sweep(recipes[0]) or module_items(recipes[0]) is not None


def are_cells(recipes: Sequence[Path], *, selects: bool) -> bool:
    """Return whether *recipes* are :func:`a sweep <are_a_sweep>`.

    Raises:
        UsageError: when they are not and an option *selects* cells.
    """
    if are_a_sweep(recipes):
        return True
    if selects:
        from winml_dag.errors import UsageError

        raise UsageError(
            "--filter, --shard, --retry-failed and --matrix are for a sweep, and this is not one.",
            advice="Leave them out, or give a recipe with a matrix, or several recipes.",
        )
    return False


@dataclass(frozen=True)
class How:
    """How a command runs: its cache and remotes, what it prints, and what it replaces and runs again."""

    cache_dir: Path
    remote: RemoteOptions
    verbose: bool = False
    quiet: bool = False
    as_json: bool = False
    overwrite: bool = False
    rebuild: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> How:
        """Read the *options* of a call, by the names of the command's parameters.

        Of several recipes, the project configuration of the first applies.
        """
        remote = remote_options(options, options.get("recipe") or next(iter(options.get("recipes", ())), None))
        flags = {name: options.get(name, False) for name in ("verbose", "quiet", "overwrite", "rebuild")}
        folder = remote.store_folder(options["cache_dir"])
        return cls(folder, remote, as_json=as_json(), **flags)

    def say(self, line: str) -> None:
        """Print a line for people: to stderr if stdout has a JSON object."""
        echo(line, err=self.as_json)


def request_from(options: Mapping[str, Any], remote: RemoteOptions) -> Request:
    """Return the request for *options*, which may have more than those of a build: for the only recipe, if any."""
    recipes = options.get("recipes", ())
    return Request(
        recipe=recipes[0] if len(recipes) == 1 else options.get("recipe"),
        output_dir=options.get("output_dir"),
        use_cache=options.get("use_cache", False),
        final_only=options.get("final_only", False),
        overrides=overrides_from(options),
        remote=remote,
    )


def overrides_from(
    options: Mapping[str, Any], sections: Mapping[str, Mapping[str, JsonValue]] | None = None
) -> Overrides:
    """Return what *options* change in a recipe: those named like a field of ``Overrides``, and *sections*.

    *sections* are by default the fields that *options* set.
    """
    named = {name: options[name] for name in _OVERRIDES if options.get(name) is not None}
    given = sections_from(options) if sections is None else sections
    return Overrides(**named, settings={name: fields for name, fields in given.items() if fields} or None)


_OVERRIDES = tuple(field.name for field in fields(Overrides))


def remote_options(options: Mapping[str, Any], recipe: object = None) -> RemoteOptions:
    """The remotes in the *options* of a command, by their names; *recipe*: what is built, if that is a file."""
    return RemoteOptions.of(
        tuple(options["remote"]), options["remote_mode"], recipe if isinstance(recipe, Path) else None
    )


def planned_build(options: Mapping[str, Any]) -> tuple[BuildGraph, Store]:
    """Return the build graph of *options*, and the store, for commands that only inspect a build.

    They download nothing and need no output folder. Without one, they plan the build as with ``--use-cache``.
    """
    from winml_dag.pipeline.plan_cache import plan_request

    how = How.of(options)
    store = opened(how.cache_dir, how.remote)
    return plan_request(request_from(options, how.remote), store, download=False, needs_folder=False), store


def opened(cache_dir: Path, remote: RemoteOptions) -> Store:
    """The store of a command, closed when the command ends in any way."""
    if not remote.in_use:
        from winml_dag.store.store import Store

        return Store(cache_dir)
    from winml_dag.cli.remotes import Transfers, say
    from winml_dag.pipeline.remotes import close_store, open_store

    context = click.get_current_context(silent=True)
    is_quiet = context is not None and context.params.get("quiet")
    store = open_store(cache_dir, remote, warn=say, watcher=None if is_quiet else Transfers())
    if store.has_remotes and context is not None:
        context.call_on_close(lambda: close_store(store))
    return store
