"""Canonical JSON: one text for one value, so that equal configurations have equal hashes.

Keys are sorted, there is no white space, and text is UTF-8. NaN and infinities are rejected, because other JSON readers
do not support them. A whole float keeps its ``.0`` (``1.0`` and ``1`` are different values of a field).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias, Union

# A recursive alias cannot be a PEP 604 expression at run time: the forward references are only for the type checker.
JsonValue: TypeAlias = Union[bool, int, float, str, Sequence["JsonValue"], Mapping[str, "JsonValue"], None]
JsonObject: TypeAlias = Mapping[str, JsonValue]

# Created once: json.dumps creates one per call.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def mapping(value: JsonValue) -> JsonObject:
    """*value* if it is an object, else an empty one: for JSON from elsewhere, or of another version."""
    return value if isinstance(value, Mapping) else {}


def canonical_json(value: JsonValue) -> str:
    """The canonical text of *value*.

    Raises:
        ValueError: for NaN or an infinity.
        TypeError: for anything that is not JSON.
    """
    return _ENCODER.encode(value)


def json_hash(value: JsonValue) -> str:
    """64 hex digits (sha256) over the canonical JSON of *value*. Raises as :func:`canonical_json` does."""
    # Imported here: it takes 3 ms, and a build with nothing to do needs no key.
    from hashlib import sha256

    return sha256(_ENCODER.encode(value).encode()).hexdigest()
