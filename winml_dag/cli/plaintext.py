"""Output of the command line: text without control characters, and JSON as one object.

Logs, file names, recipes, manifests and models come from untrusted sources. An escape sequence in them could clear the
screen, overwrite earlier output, or set the clipboard. So control characters are printed as JSON escapes.
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

# All control characters except tabs and line ends, and the characters that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")


def plain(text: str) -> str:
    """Replace characters in *text* that a terminal would interpret with ``\\u001b`` and the like."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print *text* to stdout or stderr, with control characters escaped."""
    click.echo(plain(str(text)), err=err, nl=nl)


def few(names: Sequence[str], most: int) -> str:
    """Join the first *most* of *names*: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def print_object(value: Mapping[str, object]) -> None:
    """Print *value* to stdout as JSON, on one line."""
    import json  # lazy: the list of commands does not need it

    echo(json.dumps(value, ensure_ascii=False))


@contextmanager
def errors_as_object(as_json: bool, **fields: JsonValue) -> Iterator[None]:
    """With *as_json*, print an error as the single object on stdout, after *fields*, and raise it again.

    The message still goes to stderr.
    """
    try:
        yield
    except WinmlDagError as error:
        if as_json:
            print_object({**fields, "errors": [str(error)], **measured_by(error)})
        raise
