"""What the command line prints: text as text, whoever wrote it.

Logs, names of files, recipes, manifests and models come from others. An escape sequence in one of them would clear the
screen, overwrite what was said before, or set the clipboard. So control characters are printed as JSON writes them,
which they stay in JSON too.
"""

from __future__ import annotations

import re

import click

# All but tabs and ends of lines; with them the characters that turn the direction of text around.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")


def plain(text: str) -> str:
    """*text* with ``\\u001b`` and the like in place of what a terminal would obey."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print *text*, plain, to stdout or stderr."""
    click.echo(plain(str(text)), err=err, nl=nl)
