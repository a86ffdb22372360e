"""``winml-dag``: lists the commands without importing them, runs one and sets the exit code.

All commands print with :func:`echo`. Logs, file names, recipes, manifests and models come from untrusted sources. An
escape sequence in them could clear the screen, overwrite earlier output, or set the clipboard. So control characters
are printed as JSON escapes.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
import sys as system  # importing the command sys binds its name in this package
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from winml_dag import __version__
from winml_dag.errors import ENDING_SIGNALS, Interrupted, UsageError, WinmlDagError, known_instead

if TYPE_CHECKING:
    from winml_dag.canonical import JsonObject


# All control characters except tabs and line ends, and the characters that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")


def plain(text: str) -> str:
    """Replace characters in *text* that a terminal would interpret with ``\\u001b`` and the like."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable(line: str) -> str:
    """Escape characters in *line* that a terminal interprets or a reader cannot see: names in a model are untrusted."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in line)


class Note(str):
    """The line ``note: TEXT`` or ``warning: TEXT``, which is also among the warnings of the JSON object."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str, kind: str = "note") -> Note:
        line = super().__new__(cls, f"{kind}: {text}")
        line.text = text
        return line


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print *text* to stdout or stderr, with control characters escaped."""
    click.echo(plain(str(text)), err=err, nl=nl)
    if isinstance(text, Note):
        _document.warnings.append(text.text)


@dataclass
class _Document:
    """The JSON object of a run. Any thread may add warnings."""

    command: list[str] = field(default_factory=list)
    fields: dict[str, object] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    is_wanted: bool = False


_document = _Document()


def set_result(value: Mapping[str, object]) -> None:
    """Set the command's own fields of the JSON object that is printed to stdout when the command ends.

    Paths in it are printed as text.
    """
    _document.fields.update(value)


def set_format(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Note what ``--format`` asks for."""
    _document.is_wanted = value == "json"
    return value


def as_json() -> bool:
    """Return whether the command ends with a JSON object."""
    return _document.is_wanted


def show(value: Mapping[str, object], lines: Iterable[str]) -> None:
    """Print the result of a command: *value* as the fields of its JSON object, or *lines* for people."""
    if as_json():
        set_result(value)
    else:
        for line in lines:
            echo(line)


# name -> (module, line in the list of commands). A command's module is imported only to run it or to show its help.
COMMANDS = {
    "init": ("winml_dag.cli.config", "Write a commented recipe for a model."),
    "build": ("winml_dag.cli.build", "Build a model, or bring its output folder up to date."),
    "plan": ("winml_dag.cli.plan", "Show what a build would run, and why."),
    "why": ("winml_dag.cli.plan", "Explain why a stage would run or not."),
    "graph": ("winml_dag.cli.graph", "Draw the graph of one or more builds."),
    "export": ("winml_dag.cli.stages", "Export a PyTorch model to ONNX."),
    "optimize": ("winml_dag.cli.stages", "Optimize an ONNX model."),
    "analyze": ("winml_dag.cli.analyze", "Check which operators of a model a target supports."),
    "calibrate": ("winml_dag.cli.stages", "Compute the activation ranges of an ONNX model."),
    "quantize": ("winml_dag.cli.stages", "Quantize an ONNX model."),
    "compile": ("winml_dag.cli.stages", "Compile an ONNX model ahead of time."),
    "validate": ("winml_dag.cli.validate", "Run a model and compare it with its float model."),
    "perf": ("winml_dag.cli.perf", "Measure load time and latency of a model."),
    "eval": ("winml_dag.cli.eval", "Measure the accuracy of a model on labelled data."),
    "report": ("winml_dag.cli.report", "Report on a sweep or on builds, and compare them."),
    "inspect": ("winml_dag.cli.inspect", "Describe an ONNX model and the build that made it."),
    "verify": ("winml_dag.cli.verify", "Check that an output folder is as it was built."),
    "reproduce": ("winml_dag.cli.reproduce", "Run stages of a build again and compare the bytes."),
    "provenance": ("winml_dag.cli.provenance", "Write the provenance of a build as SLSA or CycloneDX."),
    "catalog": ("winml_dag.cli.catalog", "List the bundled recipes."),
    "config": ("winml_dag.cli.config", "Write a recipe with every decision made."),
    "clean": ("winml_dag.cli.clean", "Remove the files of a build from its output folder."),
    "cache": ("winml_dag.cli.cache", "Inspect and manage the cache."),
    "worker": ("winml_dag.cli.worker", "Run stages for builds on other machines."),
    "sys": ("winml_dag.cli.sys", "Show versions, execution providers and devices."),
}
# What similar tools call a command, and the command to use.
_SYNONYMS = {
    "run": "winml-dag build",
    "make": "winml-dag build",
    "status": "winml-dag plan",
    "ls": "winml-dag cache list, or winml-dag catalog for the bundled recipes",
    "list": "winml-dag cache list, or winml-dag catalog for the bundled recipes",
    "diff": "winml-dag report --against, or winml-dag why for what changed before a build",
    "repro": "winml-dag build, or winml-dag reproduce to run stages again and compare the bytes",
    "explain": "winml-dag why",
    "show": "winml-dag inspect",
    "info": "winml-dag inspect",
    "gc": "winml-dag cache gc",
    "help": "winml-dag --help",
}
_RECIPES = (".yaml", ".yml", ".json")
EXIT_CODES = (
    "Exit codes: 0 success, 1 a stage failed or a check did not pass, 2 wrong usage or recipe, 3 an input is missing or"
    " unreadable, 130 interrupted."
)
# The fields of a failed command that scripts may read without looking at the exit code.
_WITHOUT_RESULT: Mapping[str, Mapping[str, object]] = {
    **{name: {"builds": [], "elapsed_seconds": 0.0} for name in ("build", "plan", "why", "reproduce")},
    "verify": {"sound": False, "folders": []},
}
_AS_JSON = re.compile(r"(--format[= ]|-[a-z]*f ?)json")


class Group(click.Group):
    """A group whose help names the exit codes."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write_paragraph()
        formatter.write_text(EXIT_CODES)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        _document.command.append(str(name))
        return name, command, rest


class LazyGroup(Group):
    """A group that imports its commands on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        commands: Mapping[str, click.Command] = getattr(module, "COMMANDS", {})
        return commands.get(cmd_name) or module.command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and _model_or_recipe(args[0]):
            args = ["build", *args]
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            instead = f". Use {_SYNONYMS[args[0]]}." if args[0] in _SYNONYMS else known_instead(args[0], COMMANDS)
            raise click.UsageError(f"There is no command {args[0]!r}{instead}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, rest if command is None else _with_flags(ctx, name, command, rest)


def _model_or_recipe(word: str) -> str:
    """Return the option for *word* if it is obviously a model or a recipe, else an empty text."""
    name = word.casefold()
    if name.endswith(_RECIPES) or name.startswith("catalog:"):
        return "-c"
    return "-m" if name.endswith(".onnx") or Path(word, "config.json").is_file() else ""


class _Word(str):
    """A word of the command line that the parser returns as this object."""

    __slots__ = ()


def _with_flags(context: click.Context, name: str | None, command: click.Command, words: list[str]) -> list[str]:
    """Return *words* with ``-c`` or ``-m`` before models and recipes that stand alone: ``build -o out r.yaml``."""
    if isinstance(command, click.Group) or any(isinstance(each, click.Argument) for each in command.params):
        return words
    flags = {flag for parameter in command.params for flag in parameter.opts}
    # Resilient while a shell completes unfinished words.
    inner = click.Context(command, context, name, resilient_parsing=context.resilient_parsing)
    given = [*map(_Word, words)]
    alone = {id(word) for word in command.make_parser(inner).parse_args([*given])[1]}
    found = []
    for word in given:
        if id(word) in alone and (flag := _model_or_recipe(word)) in flags:
            found.append(flag)
        elif id(word) in alone and {"-m", "-c"} <= flags and not inner.resilient_parsing:
            raise click.UsageError(
                f"{word!r} is not a recipe, an .onnx file or a model folder. Give a model with -m, recipes with -c.",
                inner,
            )
        found.append(word)
    return found


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Build deployment-ready ONNX models. Only stages that are not cached run.",
)
@click.version_option(__version__, "--version", prog_name="winml-dag")
@click.pass_context
def cli(context: click.Context) -> None:
    if context.invoked_subcommand is None:
        echo(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit the process with its exit code."""
    # Most of what a command creates lives until it ends: collections find nothing, and took 8 % of a plan.
    gc.set_threshold(500_000, 20, 100)
    code = run(arguments)
    # From here on only the interpreter's own shutdown runs.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    system.exit(code)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code. Errors go to stderr as sentences, never as tracebacks.

    With ``--format json``, one JSON object goes to stdout, also for errors.
    """
    # The search for pydantic plug-ins costs 20 ms per start. Recipes need none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    global _document
    _document = _Document()
    words = [*map(str, system.argv[1:] if arguments is None else arguments)]
    try:
        _hear_signals()
        try:
            result = cli.main(words, prog_name="winml-dag", standalone_mode=False)
        except click.exceptions.Exit as error:
            return error.exit_code
        except click.ClickException as error:
            message = error.format_message()
            context = error.ctx if isinstance(error, click.UsageError) else None
            advice = "" if context is None else f"See {context.command_path} --help."
            echo(f"error: {UsageError(message, advice=advice)}", err=True)
            return _failed(words, error.exit_code, message)
        except (KeyboardInterrupt, click.Abort):
            message = "Interrupted. Finished stages are cached; partial results were removed."
            echo(message, err=True)
            return _failed(words, Interrupted.exit_code, message)
        except WinmlDagError as error:
            echo(f"error: {error}", err=True)
            return _failed(words, error.exit_code, str(error), error.metrics)
        code = result if isinstance(result, int) else 0
        if _document.fields:
            _print_document(code)
        return code
    except UnicodeEncodeError as error:
        if error.encoding == "utf-8":  # Linux allows any bytes in names; JSON, SQLite and ONNX need text
            name = error.object[error.object.rfind("/", 0, error.start) + 1 : error.end]
            message = f"A path contains {name!a}, which is not valid UTF-8. Rename that file or folder."
        else:
            lost = error.object[error.start : error.end]
            message = f"The encoding of the output has no {lost!a}. Set PYTHONIOENCODING=utf-8."
        echo(f"error: {message}", err=True)
        return _failed(words, UsageError.exit_code, message)
    except OSError as error:  # e.g. stdout on a full disk; the tool's own file accesses raise errors of their own
        what = error.strerror or str(error)
        echo(f"error: {what}{f' ({error.filename})' if error.filename else ''}.", err=True)
        return WinmlDagError.exit_code


def _failed(words: Sequence[str], code: int, sentence: str, measured: JsonObject | None = None) -> int:
    """Print the JSON object of a command that failed, if one was requested, and return *code*."""
    if any(_AS_JSON.fullmatch(text) for text in (*words, *map(" ".join, pairwise(words)))):
        own = _WITHOUT_RESULT.get(" ".join(_document.command), {})
        # A command may have reported more before it failed, such as each error.
        set_result({**own, "errors": [sentence], **(measured or {}), **_document.fields, "success": False})
        _print_document(code, sentence)
    return code


def _print_document(code: int, error: str | None = None) -> None:
    import json  # lazy: the list of commands does not need it

    head = {"command": " ".join(_document.command), "exit_code": code, "error": error, "warnings": []}
    value: dict[str, Any] = {**head, **_document.fields}
    value["warnings"] = [*dict.fromkeys((*value["warnings"], *_document.warnings))]
    echo(json.dumps(value, default=os.fspath))


def _hear_signals() -> None:
    """Make every termination signal act like Ctrl-C, so that children end and scratch is removed.

    CI systems end jobs with SIGTERM, a closed terminal sends SIGHUP, Windows SIGBREAK. A signal that the parent process
    ignores, as nohup does, stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ENDING_SIGNALS:
        if number != signal.SIGINT and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
