"""What the commands for one stage have in common: options on how to go about it, and carrying it out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli.build import carry_out, look, say_up_to_date
from winml_dag.cli.options import cache_option, format_option, rebuild_option
from winml_dag.cli.plaintext import echo
from winml_dag.cli.remotes import remote_options
from winml_dag.errors import StageError, WinmlDagError, measured_by
from winml_dag.pipeline.remoteoptions import RemoteOptions
from winml_dag.store.location import default_cache_dir

if TYPE_CHECKING:
    from winml_dag.pipeline.buildresult import BuildResult
    from winml_dag.pipeline.request import Request

F = TypeVar("F", bound=Callable[..., Any])

_HOW = ("overwrite", "rebuild", "cache_dir", "verbose", "quiet", "format_")


def how_options(function: F) -> F:
    """How to go about it: the same for every command."""
    for option in reversed(
        (
            click.option("--overwrite", is_flag=True, help="Replace a file that is not ours."),
            rebuild_option,
            cache_option,
            click.option(
                "-v", "--verbose", is_flag=True, help="Say the reason of every stage, and show logs of failures whole."
            ),
            click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and the last line."),
            format_option,
        )
    ):
        function = option(function)
    return function


@dataclass(frozen=True)
class How:
    overwrite: bool
    rebuild: bool
    cache_dir: Path | None
    verbose: bool
    quiet: bool
    format_: str
    remote: RemoteOptions

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> How:
        """What the *options* of a call say of it."""
        said = {name: options[name] for name in _HOW}
        return cls(**said, remote=remote_options(options, options.get("recipe")))

    @property
    def as_json(self) -> bool:
        return self.format_ == "json"


@dataclass(frozen=True)
class Telling:
    """What a command tells besides what every build does.

    ``value``: the JSON object of a finished build, stages excepted. ``done``: lines for people on what ran. ``always``:
    lines for people also when all was known and nothing is imported.
    """

    value: Callable[[BuildResult, Request], JsonObject]
    done: Callable[[BuildResult, Request], Iterator[str]] = lambda *_: iter(())
    always: Callable[[Request], Iterator[str]] = lambda _: iter(())


def run_one(options: Mapping[str, Any], request_of: Callable[[Mapping[str, Any]], Request], telling: Telling) -> int:
    """Carry out what the *options* of a call, by the names of the command's parameters, ask for. Returns the exit code.

    With the format json exactly one object is printed, also for what is refused.
    """
    started = time.monotonic()
    how = How.of(options)
    cache_dir = how.cache_dir or default_cache_dir()
    with errors_as_object(how):
        request = replace(request_of(options), remote=how.remote)
    standing = look(request, cache_dir)
    if not (how.rebuild or how.verbose or how.as_json) and say_up_to_date(standing, cache_dir, started):
        _print(telling.always(request), how)
        return 0

    from winml_dag.pipeline.build import BuildOptions

    options_of_build = BuildOptions(rebuild=how.rebuild, overwrite=how.overwrite)
    with errors_as_object(how):
        result = carry_out(
            request,
            cache_dir,
            standing,
            options_of_build,
            verbose=how.verbose,
            quiet=how.quiet,
            format_=how.format_,
            lines=lambda done: telling.done(done, request),
        )
    if not result.failed:
        _print(telling.always(request), how)
    if how.as_json:
        from winml_dag.cli.buildreport import stages_json

        print_object({**telling.value(result, request), "stages": stages_json(result)})
    return StageError.exit_code if result.failed else 0


def _print(lines: Iterator[str], how: How) -> None:
    if not how.quiet:
        for line in lines:
            echo(line, err=how.as_json)


@contextmanager
def errors_as_object(how: How) -> Iterator[None]:
    """With the format json, what is refused is the one object on stdout too; its sentence still goes to stderr."""
    try:
        yield
    except WinmlDagError as error:
        if how.as_json:
            print_object({"success": False, "errors": [str(error)], **measured_by(error)})
        raise


def print_object(value: JsonObject) -> None:
    echo(json.dumps(value, ensure_ascii=False))
