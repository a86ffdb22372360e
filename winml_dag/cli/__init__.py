"""``winml-dag``: lists its commands without importing them, runs one, and ends with the exit code of what happened.

Exit codes: 0 done, 1 a stage failed or the cache or output folder cannot be used, 2 usage or recipe error, 3 an input
is missing or unreadable, 130 interrupted.

All commands print with :func:`echo`. Logs, file names, recipes, manifests and models come from others. An escape
sequence in one of them could clear the screen, overwrite earlier output, or set the clipboard. So control characters
are printed as JSON writes them.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import TYPE_CHECKING

import click

from winml_dag import __version__
from winml_dag.errors import ENDING_SIGNALS, Interrupted, WinmlDagError, measured_by

if TYPE_CHECKING:
    from winml_dag.canonical import JsonValue


# All but tabs and ends of lines; with them the characters that turn the direction of text around.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")


def plain(text: str) -> str:
    """*text* with ``\\u001b`` and the like in place of what a terminal would obey."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print *text*, plain, to stdout or stderr."""
    click.echo(plain(str(text)), err=err, nl=nl)


def few(names: Sequence[str], most: int) -> str:
    """The first of *names* as one text, which thousands do not flood: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def print_object(value: Mapping[str, object]) -> None:
    """Print *value* to stdout as JSON, in one line."""
    import json  # here, since the list of commands needs none

    echo(json.dumps(value, ensure_ascii=False))


@contextmanager
def errors_as_object(as_json: bool, **fields: JsonValue) -> Iterator[None]:
    """With the format json, an error is printed as the one object on stdout, after *fields*, and raised again: its
    sentence still goes to stderr.
    """
    try:
        yield
    except WinmlDagError as error:
        if as_json:
            print_object({**fields, "errors": [str(error)], **measured_by(error)})
        raise


# name -> (module, the line in the list of commands); a command's module is imported only to run it or to show its help.
COMMANDS = {
    "build": ("winml_dag.cli.build", "Bring a model's output folder up to date."),
    "export": ("winml_dag.cli.export", "Export a PyTorch model into one ONNX file."),
    "optimize": ("winml_dag.cli.optimize", "Optimize an ONNX model into one file."),
    "analyze": ("winml_dag.cli.analyze", "Tell what a target can do with the operators of a model."),
    "calibrate": ("winml_dag.cli.calibrate", "Write down the ranges of a model's activations."),
    "quantize": ("winml_dag.cli.quantize", "Quantize an ONNX model into one file."),
    "compile": ("winml_dag.cli.compile", "Compile an ONNX model ahead of time into one file."),
    "validate": ("winml_dag.cli.validate", "Run a finished model and hold it against what it was made from."),
    "perf": ("winml_dag.cli.perf", "Measure how fast a finished model loads and runs."),
    "eval": ("winml_dag.cli.eval", "Evaluate a finished model on labelled data, or beside its float model."),
    "report": ("winml_dag.cli.report", "Tell what became of a sweep or of builds, and what has changed."),
    "inspect": ("winml_dag.cli.inspect", "Tell what an ONNX model is, and which build made it."),
    "verify": ("winml_dag.cli.verify", "Check that an output folder is as it was built."),
    "provenance": ("winml_dag.cli.provenance", "Tell others of a finished build: as SLSA provenance, as CycloneDX."),
    "plan": ("winml_dag.cli.plan", "Show what a build would run, and why."),
    "catalog": ("winml_dag.cli.catalog", "List the recipes that come with winml_dag."),
    "config": ("winml_dag.cli.config", "Write a recipe in which everything is decided."),
    "why": ("winml_dag.cli.why", "Explain one stage of a build."),
    "reproduce": ("winml_dag.cli.reproduce", "Run stages of a finished build again and compare every byte."),
    "graph": ("winml_dag.cli.graph", "Draw the graph of builds: as text, or as a page."),
    "clean": ("winml_dag.cli.clean", "Remove what a build put into its output folder."),
    "worker": ("winml_dag.cli.worker", "Let builds on other machines run stages on this one."),
    "sys": ("winml_dag.cli.sys", "Tell what this machine has: versions, execution providers, devices."),
    "cache": ("winml_dag.cli.cache", "Look after the cache."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Build deployment-ready ONNX models: say what you want, and only what is not already known runs.",
)
@click.version_option(__version__, "--version", prog_name="winml-dag")
def cli() -> None: ...


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    code = run(arguments)
    # What is left to do is the interpreter's own.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code. Errors go to stderr as sentences, never as tracebacks."""
    # Looking for pydantic plug-ins costs 20 ms at every start, and recipes need none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        _hear_signals()
        result = cli.main(arguments, prog_name="winml-dag", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        _print_refused(sys.argv[1:] if arguments is None else arguments, error.format_message())
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        echo("Interrupted: what had finished is in the cache, nothing half done was kept.", err=True)
        return Interrupted.exit_code
    except WinmlDagError as error:
        echo(f"error: {error}", err=True)
        return error.exit_code
    except OSError as error:  # such as a full disk where stdout goes: what we read and write has its own sentences
        what = error.strerror or str(error)
        echo(f"error: {what}{f' ({error.filename})' if error.filename else ''}.", err=True)
        return WinmlDagError.exit_code


def _print_refused(arguments: list[str], sentence: str) -> None:
    """With the format json, what is refused before a command begins is the one object on stdout, as what it refuses
    itself: `build`, `plan` and `why` have their own.
    """
    if not any(
        name in ("--format=json", "-fjson") or (name in ("-f", "--format") and value == "json")
        for name, value in pairwise([*arguments, ""])
    ):
        return
    if arguments[0] in ("build", "plan", "why", "reproduce"):
        from winml_dag.cli.buildreport import print_json

        print_json([], 0.0, error=sentence)
        return
    print_object({"success": False, "errors": [sentence]})


def _hear_signals() -> None:
    """Have whatever asks this process to end do what Ctrl-C does: children are ended, and scratch is removed.

    A CI system ends its jobs with SIGTERM, a terminal that is closed with SIGHUP, Windows with SIGBREAK. A signal that
    whoever started us has switched off, as nohup does, stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ENDING_SIGNALS:
        if number != signal.SIGINT and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
