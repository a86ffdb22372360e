"""A record as it lies in a remote: two lines of JSON, first who signed, then what is signed, byte for byte.

The signature is over the second line as it is, so nothing that we do not trust is even parsed: no nesting, no number
and no repeated name of a stranger's reaches the JSON reader. It covers the key, the namespace, the whole record and who
made it, so that a record is worth nothing under another key or in another namespace. HMAC signs and checks with one
secret: whoever can check could sign. What keeps a pull request out of the trusted namespace is that it may not write
there, and that its key is none of those that the namespace trusts.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NoReturn, cast

from winml_dag.canonical import JsonObject, JsonValue, canonical_json
from winml_dag.errors import StoreError
from winml_dag.names import is_safe_part
from winml_dag.store.artifact import FileEntry
from winml_dag.store.record import Ingredients, Record
from winml_dag.store.remote.maker import Maker
from winml_dag.store.remote.namespace import is_of_pull
from winml_dag.store.remote.remote import MOST_RECORD_BYTES
from winml_dag.store.remote.settings import SigningKey

ENVELOPE_FORMAT = 1
# Nothing else that is ever signed with the same secret begins like this.
_DOMAIN = b"winml_dag record 1"
# Enough for the name of a key of 64 characters and its signature.
_MOST_HEAD_BYTES = 256
_MOST_FILES = 20_000
_MOST_FILE_BYTES = 1 << 40
# Recipes are nested by hand: eight levels at most; a reader of ours must not reach the limit of Python's stack.
_MOST_DEPTH = 64
_MOST_TEXT = 200
# What file systems take in one part of a name, and what Windows takes as a whole, less a folder to put it in.
_MOST_PART_BYTES, _MOST_NAME_CHARACTERS = 255, 200

_KEY = re.compile(r"[0-9a-f]{64}")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


class Refused(StoreError):
    """A record that is not believed; the message says why, and never what it holds."""


@dataclass(frozen=True)
class Trust:
    """Who signs here and who is believed.

    Attributes:
        keys: the first signs, each is accepted; without any, nothing is signed.
        maker: who makes records here.
        accept_unsigned: believe what is not signed, or signed with a key that is not here.
        key_of: makes a key of ingredients; a record whose own do not make its key is refused. None: not looked at.
    """

    keys: tuple[SigningKey, ...]
    maker: Maker
    accept_unsigned: bool = False
    key_of: Callable[[Ingredients], str] | None = field(default=None, repr=False)

    def seal(self, record: Record, namespace: str) -> bytes:
        """What to put into *namespace* under the key of *record*; what came from elsewhere keeps its maker.

        Raises:
            Refused: for a record that :meth:`open` would refuse, such as one whose digests are not sha256; for one of a
                pull request that would get into another namespace, with our word for it; and for one that came from a
                remote with nobody's, which ours would make everybody believe.
        """
        if self.keys and record.origin.get("signed_by", "") is None:
            _refuse("nobody known here had signed it where it comes from, and so it does not get our signature")
        made_in = record.origin.get("namespace")
        if isinstance(made_in, str) and is_of_pull(made_in) and made_in != namespace:
            _refuse(f"it comes from the namespace {made_in!r} of a pull request, and does not get into another one")
        maker = (
            record.origin.get("maker") or replace(self.maker, builder=record.made_by or self.maker.builder).to_json()
        )
        body = _body(record, maker, namespace)
        if len(body) > MOST_RECORD_BYTES - _MOST_HEAD_BYTES:
            # Only reasons need them.
            body = _body(replace(record, input_files={}), maker, namespace)
        self._read(body, record.cache_key, namespace)
        head: JsonObject = {"format": ENVELOPE_FORMAT}
        if self.keys:
            head = {**head, "signed_by": self.keys[0].id, "hmac_sha256": _signature(self.keys[0], body)}
        return canonical_json(head).encode() + b"\n" + body + b"\n"

    def open(self, data: bytes, key: str, namespace: str, trusted: frozenset[str] | None = None) -> Record:
        """The record in *data*, which lay under *key* of *namespace*.

        Its ``origin`` has the ``maker``, the ``namespace``, and under ``signed_by`` the id of the key, or null.

        Args:
            trusted: ids of the keys that may have signed it; None: any of ours. Given, a signature is needed always.

        Raises:
            Refused: for everything else than a whole record, signed as it has to be, of this key and namespace.
        """
        if len(data) > MOST_RECORD_BYTES:
            raise Refused(f"it has {len(data)} bytes, and no record has more than {MOST_RECORD_BYTES}")
        head, newline, rest = data[: _MOST_HEAD_BYTES + 1].partition(b"\n")
        body = data[len(head) + 1 : -1]
        if not newline or not rest or data[-1:] != b"\n" or b"\n" in body:
            raise Refused("it is not two lines of JSON, as records in a remote are")
        signed_by = self._check_signature(_read_head(head), body, trusted)
        record, maker = self._read(body, key, namespace)
        return replace(record, origin={"maker": maker, "namespace": namespace, "signed_by": signed_by})

    def _check_signature(self, head: _Head, body: bytes, trusted: frozenset[str] | None) -> str | None:
        """Who signed *body*, made sure of; None when that is not known and need not be."""
        needs_none = self.accept_unsigned and trusted is None
        if head.signed_by is None:
            return None if needs_none else _refuse("nobody has signed it")
        if trusted is not None and head.signed_by not in trusted:
            _refuse(f"it is signed with the key {head.signed_by!r}, which this remote is not trusted with")
        signer = next((each for each in self.keys if each.id == head.signed_by), None)
        if signer is None:
            return None if needs_none else _refuse(f"it is signed with the key {head.signed_by!r}, which is not here")
        if not hmac.compare_digest(head.signature.encode(), _signature(signer, body).encode()):
            _refuse(f"its signature is not one of the key {head.signed_by!r}: it was changed, or signed with another")
        return head.signed_by

    def _read(self, body: bytes, key: str, namespace: str) -> tuple[Record, JsonObject]:
        """The record in *body* and its maker, every field of them looked at."""
        value = _parse(body)
        if value.keys() != {"key", "maker", "namespace", "record"}:
            _refuse("its fields are not those of a record in a remote")
        if value["key"] != key or not _KEY.fullmatch(key):
            _refuse(f"it is that of another key, {str(value['key'])[:16]!r}")
        if value["namespace"] != namespace:
            _refuse(f"it was made for the namespace {str(value['namespace'])[:64]!r}, not for {namespace!r}")
        try:
            record = Record.from_json(value["record"])
            maker = Maker.from_json(value["maker"]).to_json()
        except StoreError as error:
            why = "".join(letter if letter.isprintable() else "?" for letter in error.message[:300])
            raise Refused(f"a field of it is not what it should be: {why}") from None
        _check(record, key)
        made = record.ingredients
        if self.key_of is not None and (self.key_of(made) != key or record.config_hash != made.config_hash):
            _refuse("its key is not made from what it says that it was made from")
        return record, maker


@dataclass(frozen=True)
class _Head:
    signed_by: str | None
    signature: str


def _body(record: Record, maker: JsonValue, namespace: str) -> bytes:
    told = replace(record, origin={}).to_json()
    whole: JsonObject = {"key": record.cache_key, "maker": maker, "namespace": namespace, "record": told}
    try:
        return canonical_json(whole).encode()
    except (ValueError, RecursionError):
        raise Refused("it holds something that JSON cannot say") from None


def _signature(key: SigningKey, body: bytes) -> str:
    # The id is among it, with its length: no two of (id, body) give one text.
    named = key.id.encode()
    return hmac.new(key.secret, b"%s\n%d %s\n%s" % (_DOMAIN, len(named), named, body), hashlib.sha256).hexdigest()


def _read_head(head: bytes) -> _Head:
    value = _parse(head)
    if value.get("format") != ENVELOPE_FORMAT:
        _refuse(f"its format is {str(value.get('format'))[:20]!r}, and this version knows {ENVELOPE_FORMAT} only")
    if value.keys() == {"format"}:
        return _Head(None, "")
    signed_by, signature = value.get("signed_by"), value.get("hmac_sha256")
    if len(value) != 3 or not isinstance(signed_by, str) or not isinstance(signature, str):
        _refuse("what it says of its signature is not readable")
    return _Head(signed_by, signature)


def _parse(text: bytes) -> JsonObject:
    """The object that *text* is the canonical JSON of: so it has no name twice, no NaN and nothing that is no text."""
    try:
        value = json.loads(text)
        # Walking through it takes as long as all the rest, and few records have so many objects and lists at all.
        may_be_deep = text.count(b"{") + text.count(b"[") > _MOST_DEPTH
        if (may_be_deep and _is_deeper(value, _MOST_DEPTH)) or canonical_json(value).encode() != text:
            raise ValueError
    except (ValueError, RecursionError):
        raise Refused("it is not JSON as we write it") from None
    return cast(JsonObject, value) if isinstance(value, dict) else _refuse("it is no JSON object")


def _is_deeper(value: JsonValue, levels: int) -> bool:
    if isinstance(value, str) or not isinstance(value, list | dict):
        return False
    within = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in within)


def _check(record: Record, key: str) -> None:
    """Refuse what a record of our own would not say, but its fields allow."""
    if record.cache_key != key:
        _refuse("the record within is that of another key")
    if not (math.isfinite(record.elapsed_seconds) and record.elapsed_seconds >= 0):
        _refuse("it took less than no time")
    if record.origin:
        _refuse("it says itself where it comes from")
    if not all(text.isprintable() and len(text) <= _MOST_TEXT for text in (record.made_at, record.made_by)):
        _refuse("when and by whom it was made cannot be shown")
    files = list(_files(record))
    if len(files) > _MOST_FILES or sum(file.size for file in files) > _MOST_FILE_BYTES:
        _refuse(f"it has more than {_MOST_FILES} files, or more than {_MOST_FILE_BYTES >> 40} TiB")
    for slot in record.outputs:
        if not is_safe_part(slot):
            _refuse(f"{slot[:64]!r} is no name of an output")
    for file in files:
        if not _SHA256.fullmatch(file.digest):
            _refuse(f"the digest of {file.name[:64]!r} is not a sha256, and another would prove nothing")
        if len(file.name) > _MOST_NAME_CHARACTERS or max(map(_bytes, file.name.split("/"))) > _MOST_PART_BYTES:
            _refuse(f"the name {file.name[:64]!r}… is longer than file systems take")


def _files(record: Record) -> Iterator[FileEntry]:
    yield from record.files()
    if record.log is not None:
        yield record.log


def _bytes(part: str) -> int:
    return len(part.encode())


def _refuse(why: str) -> NoReturn:
    raise Refused(why)
