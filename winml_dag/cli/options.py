"""The options of build commands, the types of their values, the request they form, and the way back to arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from winml_dag.canonical import JsonObject
from winml_dag.cli import echo
from winml_dag.pipeline.request import Overrides, RemoteOptions, Request

if TYPE_CHECKING:
    from winml_dag.pipeline.buildgraph import BuildGraph
    from winml_dag.store.store import Store


CATALOG = "catalog:"


class _NotEmpty(click.ParamType[Any]):
    """Rejects empty values, which come from unset script variables and mean no default and no current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("must not be empty", param, ctx)
        return super().convert(value, param, ctx)


class _Text(_NotEmpty, click.types.StringParamType):
    pass


class _Path(_NotEmpty, click.Path):
    pass


class Address(_Text):
    """The URL of a remote, possibly with a password."""


class Recipe(_Path):
    """A recipe file, or the name of a bundled recipe."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.startswith(CATALOG):
            # Lazy import: loading the recipe modules costs more than everything else in a build with nothing to do.
            from winml_dag.errors import UsageError
            from winml_dag.recipe.load import shipped_path

            try:
                value = str(shipped_path(value.removeprefix(CATALOG)))
            except UsageError as error:
                self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


class _Json(_Path):
    """A file with a JSON object, or the object itself."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if str(value).lstrip().startswith("{") else super().convert(value, param, ctx)


class _Memory(click.ParamType[Any]):
    """Bytes for everything that runs at the same time; ``none`` means no limit."""

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from winml_dag.engine.resources import UNLIMITED
        from winml_dag.errors import UsageError
        from winml_dag.store.quantities import parse_size

        if isinstance(value, int):
            return value
        if str(value).strip().lower() == "none":
            return UNLIMITED
        try:
            found = parse_size(str(value), "--memory")
        except UsageError as error:
            self.fail(str(error).removeprefix("--memory: "), param, ctx)
        if found == 0:
            self.fail("nothing runs without memory; no limit is none.", param, ctx)
        return found


TEXT = _Text()
ADDRESS = Address()
RECIPE = Recipe(path_type=Path)
FILE = _Path(path_type=Path)
JSON = _Json(path_type=Path)
MEMORY = _Memory()


F = TypeVar("F", bound=Callable[..., Any])


def cache_option(function: F) -> F:
    """Add the options for the cache folder and its remotes."""
    return click.option("--cache-dir", type=FILE, help="The cache folder [WINML_DAG_CACHE_DIR].")(
        remote_option(function)
    )


def remote_option(function: F) -> F:
    """Add the options for the remotes, and whether to read and write them."""
    modes = click.Choice(["read", "read-write", "off"])
    function = click.option(
        "--remote-mode", type=modes, help="What may be done there [WINML_DAG_REMOTE_MODE, or as configured]."
    )(function)
    return click.option(
        "--remote",
        type=ADDRESS,
        multiple=True,
        metavar="URL",
        help="Where results are shared; again for more, nearest first [WINML_DAG_REMOTE, or as configured].",
    )(function)


_RECIPE = click.option(
    "-c", "--config", "recipe", type=RECIPE, help="The recipe: JSON, YAML or catalog:NAME; winml-cli's configs work."
)
_RECIPES = click.option(
    "-c",
    "--config",
    "recipes",
    type=RECIPE,
    multiple=True,
    help="The recipe, as for build. Again, a folder or a pattern: several, as one graph.",
)
_FOLDER = (
    click.option("-o", "--output-dir", type=FILE, help="Where the result goes."),
    click.option("--use-cache", is_flag=True, help="Keep the result in the cache folder instead of -o."),
    click.option(
        "--final-only", is_flag=True, help="Put the finished model there, and none of those that it was made from."
    ),
)
_OPTIONS = (
    click.option("-m", "--model", type=TEXT, help="A hub id, a model folder or an .onnx file."),
    click.option("--onnx", type=FILE, help="A model that is ONNX already."),
    cache_option,
    click.option("-t", "--task", type=TEXT, help="What the model is for, such as text-classification."),
    click.option("--submodel", type=TEXT, help="One component of a composite model alone, such as encoder."),
    click.option("--ep", type=TEXT, help="Execution provider: qnn, cpu, openvino, ..."),
    click.option("-d", "--device", type=TEXT, help="npu, gpu, cpu or auto; an execution provider's name works too."),
    click.option("-p", "--precision", type=TEXT, help="fp32, fp16, int8, int16, w8a8, w8a16, ... or auto."),
    click.option("--quant/--no-quant", default=None, help="Quantize, whatever the recipe says."),
    click.option("--compile/--no-compile", default=None, help="Compile, whatever the recipe says."),
    click.option("--optimize/--no-optimize", default=None, help="Optimize, whatever the recipe says."),
    click.option("--validate/--no-validate", default=None, help="Validate, whatever the recipe says."),
    click.option("--analyze/--no-analyze", default=None, help="Analyze, whatever the recipe says."),
    click.option(
        "--max-optim-iterations",
        type=click.IntRange(0, 20),
        help="How often what analyze discovers may lead to another optimize [3].",
    ),
    click.option(
        "--allow-unsupported-nodes", is_flag=True, help="Build also a model with operators that the target cannot run."
    ),
    click.option("--random-weights", is_flag=True, help="Make the weights up; no model files are needed."),
    click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with a model."),
)

_CELL_OPTIONS = (
    click.option(
        "--filter",
        "filters",
        type=TEXT,
        multiple=True,
        help="Of a sweep, these cells: model=bert,res*, precision!=fp32, or names; of several, all hold.",
    ),
    click.option("--shard", type=TEXT, help="Of a sweep, a part for one of several machines: 3/8 is the third of 8."),
)


def request_options(function: F) -> F:
    """Add the options. The command receives them as ``**options``."""
    return _with_options(function, _RECIPE, *_FOLDER)


def shared_options(function: F) -> F:
    """Add the options of a build, without the output folder."""
    return _with_options(function, _RECIPE)


def several_request_options(function: F) -> F:
    """Add the same options for a command that takes several recipes, which it receives as ``recipes``."""
    return _with_options(function, _RECIPES, *_FOLDER)


def _with_options(function: F, *first: Callable[[Any], Any]) -> F:
    # Lazy imports here and below: commands with only --format do not need them.
    from winml_dag.cli.settings import COMPILE, VALIDATION, input_options

    options: tuple[Callable[[Any], Any], ...] = (*first, *_OPTIONS, input_options, COMPILE, VALIDATION)
    for option in reversed(options):
        function = option(function)
    return function


def cell_options(function: F) -> F:
    """Add the options. The command receives them as ``filters`` and ``shard``."""
    for option in reversed(_CELL_OPTIONS):
        function = option(function)
    return function


def are_a_sweep(recipes: Sequence[Path]) -> bool:
    """Return whether *recipes* are several, or one with a matrix or a list of modules.

    A folder or pattern is a sweep, regardless of the number of recipes in it.
    """
    from winml_dag.recipe.reading import is_sweep, module_items, recipe_files

    if len(recipes) != 1 or not recipes[0].is_file():
        return len(recipes) > 1 or recipe_files(recipes) != tuple(recipes)
    return is_sweep(recipes[0]) or module_items(recipes[0]) is not None


def rebuild_option(function: F) -> F:
    return click.option("--rebuild", is_flag=True, help="Run every stage, known or not.")(function)


def format_option(function: F) -> F:
    choice = click.Choice(["text", "json"])
    return click.option("-f", "--format", "format_", type=choice, default="text", help="text or json.")(function)


def output_options(function: F) -> F:
    """Add the options for the amount and format of output; see :class:`Output`."""
    verbose = "Say the reason of every stage, and show logs of failures whole."
    function = click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and the last line.")(
        format_option(function)
    )
    return click.option("-v", "--verbose", is_flag=True, help=verbose)(function)


@dataclass(frozen=True)
class Output:
    """The values of :func:`output_options`."""

    verbose: bool
    quiet: bool
    as_json: bool

    def say(self, line: str) -> None:
        """Print a line for people: to stderr if stdout has a JSON object."""
        echo(line, err=self.as_json)


def request_from(
    options: dict[str, Any], *, loader: JsonObject | None = None, first: Path | None = None
) -> tuple[Request, Path]:
    """Return the request and the cache folder for *options*.

    *loader*: fields of that section. *first*: of several recipes, the one whose project configuration applies.
    """
    from winml_dag.cli.settings import COMPILE, VALIDATION, taken_inputs

    sections = {
        "loader": loader or {},
        "export": taken_inputs(options),
        "compile": COMPILE.taken(options),
        "validate": VALIDATION.taken(options),
    }
    remote = remote_options(options, first or options["recipe"])
    cache_dir = remote.store_folder(options.pop("cache_dir"))
    del options["remote"], options["remote_mode"]
    request = Request(
        recipe=options.pop("recipe"),
        output_dir=options.pop("output_dir"),
        use_cache=options.pop("use_cache"),
        final_only=options.pop("final_only", False),
        overrides=Overrides(
            **options,
            settings={name: given for name, given in sections.items() if given} or None,
        ),
        remote=remote,
    )
    return request, cache_dir


def remote_options(options: Mapping[str, Any], recipe: object = None) -> RemoteOptions:
    """The remotes in the *options* of a command, by their names; *recipe*: what is built, if that is a file."""
    folder = None
    if isinstance(recipe, Path):
        folder = recipe if recipe.is_dir() else recipe.parent
    return RemoteOptions(tuple(options["remote"]), options["remote_mode"], folder)


def planned_build(options: dict[str, Any]) -> tuple[BuildGraph, Store]:
    """Return the build graph of *options*, and the store, for commands that only inspect a build.

    They download nothing and need no output folder. Without one, they plan the build as with ``--use-cache``.
    """
    from winml_dag.cli.remotes import opened
    from winml_dag.pipeline.plan_cache import plan_request

    request, cache_dir = request_from(options)
    store = opened(cache_dir, request.remote)
    return plan_request(request, store, download=False, needs_folder=False), store


def given_words(context: click.Context, but: Collection[str] = ()) -> tuple[str, ...]:
    """Return the options given on the command line of *context*, verbatim, except those in *but*."""
    return tuple(
        word
        for parameter in context.command.params
        if isinstance(parameter, click.Option) and parameter.name and parameter.name not in but
        if context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
        for word in _words(parameter, context.params[parameter.name])
    )


def _words(option: click.Option, value: object) -> Iterator[str]:
    name = option.opts[0]
    if option.is_flag:
        yield name if value else option.secondary_opts[0]
        return
    if option.multiple and isinstance(value, Mapping):
        value = tuple(f"{key}={each}" for key, each in value.items())
    for each in value if option.multiple and isinstance(value, tuple) else (value,):
        yield name
        yield _written(option, each)


def _written(option: click.Option, value: object) -> str:
    if isinstance(option.type, Recipe) and isinstance(value, Path):
        return _recipe_word(value)
    if isinstance(option.type, Address):
        # These words go into files and logs, where a password does not belong.
        from winml_dag.store.remote.settings import shown

        return shown(str(value))
    return str(value)


def _recipe_word(path: Path) -> str:
    """Return *path* as it was written: the location of the catalog differs between machines."""
    if not path.is_absolute():
        return str(path)
    # Lazy import: it needs the recipe schema.
    from winml_dag.recipe.load import shipped_name

    name = shipped_name(path)
    return str(path) if name is None else f"{CATALOG}{name}"
