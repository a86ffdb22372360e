"""What commands are made of: the types of option values, and a command whose help shows its options in panels."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from winml_dag.cli import EXIT_CODES
from winml_dag.errors import InputError, UsageError
from winml_dag.file_reading import parse_json

CATALOG = "catalog:"


class _NotEmpty(click.ParamType[Any]):
    """Rejects empty values: they come from unset variables of a script."""

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
            from winml_dag.recipe.load import shipped_path

            try:
                value = str(shipped_path(value.removeprefix(CATALOG)))
            except UsageError as error:
                self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


class _Folder(_Path):
    """A folder, which may not exist yet: a name of a file is probably one by mistake."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if path.suffix in (".onnx", ".json", ".yaml") and not path.is_dir():
            self.fail(f"{path} is the name of a file. Give a folder.", param, ctx)
        return path


class _Json(_Path):
    """A JSON object, or a file with one. The value is the object.

    Raises:
        InputError: for a file that cannot be read or contains no JSON object.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name = "" if param is None else f"{param.opts[0]}: "
        text = str(value)
        path: Path | None = None if text.lstrip().startswith("{") else super().convert(value, param, ctx)
        try:
            found = parse_json(text if path is None else path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise InputError(f"{name}{path} cannot be read: {error.strerror or error}.") from error
        except ValueError as error:
            raise InputError(f"{name}{value} is not JSON: {error}.") from error
        if not isinstance(found, dict):
            raise InputError(f"{name}{value} is not a JSON object.")
        return found


class _Memory(click.ParamType[Any]):
    """Bytes for everything that runs at the same time; ``none`` means no limit."""

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from winml_dag.engine.resources import UNLIMITED
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


class _Seconds(click.FloatRange):
    """A range that rejects "nan", for which every comparison with a bound is false."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return seconds


TEXT = _Text()
ADDRESS = Address()
RECIPE = Recipe(path_type=Path)
FILE = _Path(path_type=Path)
FOLDER = _Folder(path_type=Path)
JSON = _Json(path_type=Path)
MEMORY = _Memory()
SECONDS = _Seconds(min=0.1)


F = TypeVar("F", bound=Callable[..., Any])


def with_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds *options* in this order."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def folder_option(text: str) -> Callable[[Any], Any]:
    """Return ``-o`` of a command that writes several files."""
    return click.option("-o", "--output-dir", "--output", "output_dir", type=FOLDER, help=text)


def file_option(text: str, **more: Any) -> Callable[[Any], Any]:
    """Return ``-o`` of a command that writes one file. See :func:`output_file`."""
    return click.option("-o", "--output", type=FILE, help=text, **more)


def output_file(path: Path, usual: str) -> Path:
    """Return the file that ``-o`` means by *path*: a folder, or a name without suffix, is where *usual* goes."""
    return path / usual if path.is_dir() or not path.suffix else path


def pairs(_context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str] | None:
    """Parse repeated ``NAME=VALUE`` options into a mapping."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE.", param=parameter)
        if found.setdefault(name, value) != value:
            raise click.BadParameter(f"{name} is given twice, as {found[name]} and {value}.", param=parameter)
    return found or None


class FieldOption(click.Option):
    """An option that sets a field of *section* of a recipe."""

    def __init__(self, *args: Any, section: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.section = section


class Command(click.Command):
    """A command whose help shows its options in panels, and the exit codes.

    *panel*: the title of the command's own options; without it, they are those of a build.
    """

    def __init__(self, *args: Any, panel: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._panel = panel

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        panels: dict[str, list[tuple[str, str]]] = {panel: [] for panel in _PANELS}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                panels[self._panel_of(parameter)].append(record)
        for panel, records in panels.items():
            if records:
                with formatter.section(f"{panel or self._panel} options".strip().capitalize()):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write_paragraph()
        formatter.write_text(EXIT_CODES)

    def _panel_of(self, option: click.Option) -> str:
        name = "help" if "--help" in option.opts else option.name
        for panel, names in _PANELS.items():
            if name in names.split() and (panel in _SHARED or not self._panel):
                return panel
        return "" if self._panel else _SECTIONS.get(getattr(option, "section", ""), "")


_WORDS = "winml_dag.words"


def given_words(context: click.Context, but: Collection[str] = ()) -> Iterator[str]:
    """Yield the options given on the command line of *context*, as they were written, except those in *but*."""
    given, _, _ = context.command.make_parser(context).parse_args([*context.meta[_WORDS]])
    for option in context.command.params:
        if not isinstance(option, click.Option) or option.name not in given or option.name in but:
            continue
        value = given[option.name]
        if option.is_flag:
            yield option.opts[0] if value else option.secondary_opts[0]
            continue
        for each in value if option.multiple else (value,):
            yield option.opts[0]
            yield _without_password(each) if isinstance(option.type, Address) else str(each)


def _without_password(url: str) -> str:
    """Return *url* for files and logs, where a password does not belong."""
    from winml_dag.store.remote.settings import shown

    return shown(url)


_SHARED = ("Model", "Target", "Output", "Run", "Cache", "Global")
# The parameters of each panel; those of a section's fields follow from the section.
_PANELS = {
    "Model": "model onnx recipe recipes task submodel model_type model_class module random_weights trust_remote_code",
    "Target": "ep device precision compile ep_option",
    "": "",  # the others
    "Optimize": "optimize analyze max_optim_iterations allow_unsupported_nodes enable disable",
    "Quantize": "quant sensitivity save_calibration",
    "Export": "batch_size shape_config input_specs dynamic_axes export_config",
    "Validate": "validate",
    "Sweep": "filters shard retry_failed matrix shards",
    "Output": "output output_dir use_cache final_only overwrite link format_ html",
    "Run": "set_ rebuild jobs memory keep_going stage_timeout executor scheduler workers worker_tags sandbox"
    " check_inputs runs",
    "Cache": "cache_dir remote remote_mode",
    "Global": "verbose quiet help",
}
_SECTIONS = {"quant": "Quantize", "export": "Export", "compile": "Target", "validate": "Validate"}
