"""How the command line prints: text as text, whoever wrote it, and JSON as one object.

Logs, file names, recipes, manifests and models come from others. An escape sequence in one of them could clear the
screen, overwrite earlier output, or set the clipboard. So control characters are printed as JSON writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from winml_dag.errors import WinmlDagError, measured_by

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
