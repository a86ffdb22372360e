"""A command as somebody would type it: with the options that were given now, and others in their place."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from winml_dag.cli.parameters import CATALOG, Address, Recipe


def given_words(context: click.Context, but: Collection[str] = ()) -> tuple[str, ...]:
    """The options that were given on the command line of *context*, word for word, without those named *but*."""
    return tuple(
        word
        for parameter in context.command.params
        if isinstance(parameter, click.Option) and parameter.name and parameter.name not in but
        if context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
        for word in _words(parameter, context.params[parameter.name])
    )


def as_typed(words: Sequence[str]) -> str:
    """*words* as one line for a shell."""
    return shlex.join(words)


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
        return _recipe(value)
    if isinstance(option.type, Address):
        # These words go into files and logs, where a password does not belong.
        from winml_dag.store.remote.places import shown

        return shown(str(value))
    return str(value)


def _recipe(path: Path) -> str:
    """*path* as it was written: where the catalog lies is another place on every machine."""
    if not path.is_absolute():
        return str(path)
    # Imported here: it needs the schema of a recipe.
    from winml_dag.recipe.load import shipped_name

    name = shipped_name(path)
    return str(path) if name is None else f"{CATALOG}{name}"
