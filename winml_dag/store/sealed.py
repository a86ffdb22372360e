"""JSON text that carries a checksum over its value and its name: ``["<16 hex>",<value>]``.

One flipped bit in a database or a file can leave perfectly good JSON, with a wrong digest, size or name in it. The name
is covered too, so that a row or a file that ends up under another's name is noticed. It protects from damage, not
from malice: whoever can write the text can write the checksum.
"""

from __future__ import annotations

import json
from typing import cast

import xxhash

from winml_dag.canonical import JsonValue, canonical_json

_HEAD = len('["0123456789abcdef",')


def seal(name: str, value: JsonValue) -> str:
    """The text of *value*, to be kept under *name*."""
    return seal_text(name, canonical_json(value))


def seal_text(name: str, body: str) -> str:
    """The same for a value that is canonical JSON already."""
    return f'["{_checksum(name, body)}",{body}]'


def unseal(name: str, text: str) -> JsonValue:
    """The value that :func:`seal` was given.

    Raises:
        ValueError: for any other text or name.
    """
    body = text[_HEAD:-1]
    if text != f'["{_checksum(name, body)}",{body}]':
        raise ValueError(f"{name} does not match its checksum.")
    try:
        return cast(JsonValue, json.loads(body))
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply.") from None


def _checksum(name: str, body: str) -> str:
    # "surrogatepass": damaged text must come out as a wrong checksum, not as an encoding error.
    return xxhash.xxh3_64_hexdigest(f"{name}\n{body}".encode("utf-8", "surrogatepass"))
