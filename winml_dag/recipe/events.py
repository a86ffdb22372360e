"""Values with their positions, from the events of PyYAML's parser, or from the tokens of JSON as the same events.

YAML is read with YAML 1.2's core schema, so that a recipe means the same as in JSON. In YAML 1.1, PyYAML's own, ``no``
is false, ``1e-3`` is text and ``2024-01-01`` is a date. PyYAML does not assemble the values: its composer recurses in C
(200,000 brackets end the process), it keeps the last of two equal keys, and a few lines of nested aliases can expand to
gigabytes. Its parser does not read all JSON: it refuses halves of characters and long keys.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NoReturn

import yaml

from winml_dag.recipe.document import (
    HALF_CHARACTER,
    MAX_DEPTH,
    MAX_DIGITS,
    Document,
    Location,
    Position,
    Positions,
    decimal_number,
    unreadable,
    whole_number,
)

# The limit for all aliases together; the size of the file limits what is written out.
MAX_VALUES = 20_000
_TOO_DEEP = "nested too deeply"

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
    r"|0o[0-7]+|0x[0-9a-fA-F]+"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]|[^][{}:,"\s]+', re.DOTALL)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def read_yaml(text: str, name: str) -> Document:
    """Parse *text*. Raises RecipeError if it is not one YAML document of JSON's values, with line and column."""
    reader = _Reader(yaml.parse(text, Loader=_LOADER))
    try:
        value = reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
        context = f" {error.context}" if error.context else ""
        raise unreadable(name, [*reader.findings, (position, f"{error.problem or 'malformed'}{context}")]) from None
    except yaml.YAMLError:
        match = _UNPRINTABLE.search(text)
        before = text[: match.start()] if match else ""
        position = Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise unreadable(name, [(position, "control characters are not allowed")]) from None
    if reader.findings:
        raise unreadable(name, reader.findings)
    return Document(name, value, lambda: reader.positions)


def refuse_json(text: str, name: str) -> None:
    """Raise RecipeError, with line and column, for what a valid JSON *text* has that a recipe cannot have."""
    if findings := _scanned(text).findings:
        raise unreadable(name, findings)


def positions_in_json(text: str) -> Positions:
    """Return the positions of everything in a valid JSON *text*."""
    return _scanned(text).positions


def _scanned(text: str) -> _Reader:
    reader = _Reader(_json_events(text), is_json=True)
    reader.document()
    return reader


def _json_events(text: str) -> Iterator[yaml.Event]:
    line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for match in _JSON_TOKEN.finditer(text):
        token, at = match.group(), match.start()
        line = bisect_right(line_starts, at) - 1
        mark = yaml.Mark("", at, line, at - line_starts[line], None, 0)
        if token == "{":
            yield yaml.MappingStartEvent(None, None, True, mark)
        elif token == "[":
            yield yaml.SequenceStartEvent(None, None, True, mark)
        elif token in "]}":
            yield yaml.SequenceEndEvent(mark) if token == "]" else yaml.MappingEndEvent(mark)
        else:
            is_text = token[0] == '"'
            value = json.loads(token) if is_text else token
            yield yaml.ScalarEvent(None, None, (not is_text, is_text), value, mark)


class _CannotGoOn(Exception):
    """A finding makes further reading useless."""


class _Reader:
    """Assembles values from events, and records the position of each."""

    def __init__(self, events: Iterator[yaml.Event], *, is_json: bool = False) -> None:
        self.positions = Positions()
        self.findings: list[tuple[Position, str]] = []
        self._events = events
        self._is_json = is_json
        self._anchors: dict[str, object] = {}
        self._aliased = 0

    def document(self) -> object:
        """Return the value of the only document; None for an empty text, and after a finding that ends the reading."""
        value = None
        documents = 0
        try:
            for event in self._events:
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        self._give_up(event, "a recipe is one document; there is a second one here")
                elif isinstance(event, yaml.NodeEvent):
                    value = self._value(event, ())
        except _CannotGoOn:
            return None
        return value

    def _value(self, event: yaml.NodeEvent, location: Location) -> object:
        self.positions.values[location] = _start(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, len(location))
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            self._find(event, "tags (a word that begins with !) are not supported")
        if len(location) > MAX_DEPTH:
            self._give_up(event, _TOO_DEEP)
        value: object
        if isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(location)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = [
                self._value(item, (*location, index)) for index, item in enumerate(self._until(yaml.SequenceEndEvent))
            ]
        else:
            assert isinstance(event, yaml.ScalarEvent)
            value = self._scalar(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _alias(self, event: yaml.AliasEvent, depth: int) -> object:
        if event.anchor not in self._anchors:
            self._find(event, f"the alias *{event.anchor} does not refer to a complete value before it")
            return None
        value = self._anchors[event.anchor]
        for inner_depth in _depths(value, depth):
            self._aliased += 1
            if self._aliased > MAX_VALUES:
                self._give_up(event, f"more than {MAX_VALUES} values by way of aliases")
            if inner_depth > MAX_DEPTH:
                self._give_up(event, _TOO_DEEP)
        return value

    def _mapping(self, location: Location) -> dict[str, object]:
        found: dict[str, object] = {}
        for event in self._until(yaml.MappingEndEvent):
            key = self._key(event, location)
            here = (*location, key)
            if key in found:
                first = self.positions.keys[here].line
                self._find(event, f"the key {key!r} is there twice, first on line {first}")
            self.positions.keys.setdefault(here, _start(event))
            found[key] = self._value(self._next(), here)
        return found

    def _key(self, event: yaml.NodeEvent, location: Location) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            self._find(event, "a key must be text")
            self._value(event, (*location, "?"))
            return "?"
        key: str = event.value
        is_plain = event.implicit[0]
        if is_plain and key == "<<":
            self._find(event, "merge keys (<<) are not supported; write the keys out")
        # A whole number is used as its text, as in JSON, where a key is always text.
        elif not (is_plain and _WHOLE_NUMBER.fullmatch(key)) and not isinstance(self._scalar(event), str):
            self._find(event, "a key must be text; put it in quotes")
        return key

    def _scalar(self, event: yaml.ScalarEvent) -> str | int | float | None:
        text: str = event.value
        if not event.implicit[0]:
            if HALF_CHARACTER.search(text):
                self._find(event, "the text has half of a character")
            return text
        if text in _WORDS:
            return _WORDS[text]
        if not _NUMBER.fullmatch(text) and not self._is_json:
            return text
        number = _number(text) if _NUMBER.fullmatch(text) else None
        if number is None:
            advice = "" if self._is_json else "; put quotes around it if it is text"
            self._find(event, f"{text[:MAX_DIGITS]} is not a number that can be used here{advice}")
        return number

    def _until(self, end: type[yaml.Event]) -> Iterator[yaml.NodeEvent]:
        while not isinstance(event := next(self._events), end):
            assert isinstance(event, yaml.NodeEvent)
            yield event

    def _next(self) -> yaml.NodeEvent:
        event = next(self._events)
        assert isinstance(event, yaml.NodeEvent)
        return event

    def _find(self, event: yaml.Event, what: str) -> None:
        self.findings.append((_start(event), what))

    def _give_up(self, event: yaml.Event, what: str) -> NoReturn:
        self._find(event, what)
        raise _CannotGoOn


def _depths(value: object, depth: int) -> Iterator[int]:
    """Yield the depth of *value*, which is at *depth*, and of everything in it."""
    yield depth
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for inner in inside:
        yield from _depths(inner, depth + 1)


def _number(text: str) -> int | float | None:
    """Return the number in *text*, which has the form of one; None for one that a recipe cannot use."""
    if _WHOLE_NUMBER.fullmatch(text):
        return whole_number(text)
    if text.startswith(("0o", "0x")):
        return int(text, 0) if len(text) <= MAX_DIGITS else None
    return None if text[-1].isalpha() and "." in text else decimal_number(text)


def _start(event: yaml.Event) -> Position:
    assert event.start_mark is not None
    return Position(event.start_mark.line + 1, event.start_mark.column + 1)
