"""An attacker's tools: envelopes with any key and content, built without the code under attack."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

from winml_dag.canonical import canonical_json
from winml_dag.store.records import Record

MAKER = {"builder": "winml_dag 0.1.0", "run": "", "revision": "", "host": "", "tools": {}}


def place(namespace: str, record: Record) -> str:
    """Return the path of *record* on the server."""
    return f"/{namespace}/ac/{record.cache_key}"


def envelope(record: Record, namespace: str, *, key: str) -> bytes:
    """Return *record* signed for *namespace* with *key*, ``name:base64``; unsigned without a key."""
    return _signed(_told(record), record.cache_key, namespace, key)


def forge(record: Record, namespace: str, *, key: str, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return the same after *change* of the record's content."""
    told = _told(record)
    change(told)
    return _signed(told, record.cache_key, namespace, key)


def _told(record: Record) -> dict[str, Any]:
    told = json.loads(canonical_json(record.to_json()))
    told.pop("origin", None)
    return dict(told)


def _signed(told: dict[str, Any], cache_key: str, namespace: str, key: str) -> bytes:
    body = canonical_json({"key": cache_key, "maker": MAKER, "namespace": namespace, "record": told}).encode()
    head: dict[str, Any] = {"format": 1}
    if key:
        name, _, secret = key.partition(":")
        text = f"winml_dag record 1\n{len(name)} {name}\n".encode() + body
        head |= {"signed_by": name, "hmac_sha256": hmac.digest(base64.b64decode(secret), text, "sha256").hex()}
    return canonical_json(head).encode() + b"\n" + body + b"\n"
