"""The texts of a command: what its placeholders stand for, and which files of the project it names besides.

A command that names its script in plain words reads it all the same, so that it is an input whether it is declared or
not; otherwise an edit of the script would not be noticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from winml_dag.engine.command import PLACEHOLDER

_WORD = re.compile(r"[^\s'\"`();|&<>=,:$\[\]{}*?!#]+")


def placeholders(argument: str) -> Iterator[tuple[str, str]]:
    """(section, name) of each placeholder in *argument*."""
    if "{" in argument:
        for match in PLACEHOLDER.finditer(argument):
            if match[1]:
                yield match[1], match[2]


def plain_words(arguments: Iterable[str]) -> Iterator[str]:
    """Whatever in *arguments* might name a file: words between white space and what shells divide words by.

    Placeholders are none of them. An argument is also taken whole, since a name may have blanks in it.
    """
    for argument in arguments:
        yield from _words(argument)


@cache
def _words(argument: str) -> tuple[str, ...]:
    text = PLACEHOLDER.sub("\0 \0", argument)
    words = [word for word in _WORD.findall(text) if "\0" not in word and word[0] != "-"]
    return (*words, argument) if "\0" not in text and argument not in words and len(argument) < 256 else tuple(words)
