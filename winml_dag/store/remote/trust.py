"""Which records of a remote are accepted: their envelope, their signature, and the namespaces that a run may write.

A record lies in a remote as two lines of JSON: the signer, then the signed text. The signature covers the second line
byte for byte, so nothing untrusted reaches the JSON parser. It covers the key, the namespace, the record and its maker:
a record is worthless under another key or in another namespace. HMAC signs and verifies with one secret, so every
verifier could sign. What keeps a pull request out of the trusted namespace is that it may not write there, and that the
namespace does not trust its key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NoReturn, cast

from winml_dag.canonical import JsonObject, JsonValue, canonical_json
from winml_dag.errors import StoreError
from winml_dag.file_reading import nests_deeper
from winml_dag.names import is_safe_part
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.remote.ci import is_of_pull
from winml_dag.store.remote.protocol import DIGEST, KEY, MOST_RECORD_BYTES
from winml_dag.store.remote.settings import SigningKey

ENVELOPE_FORMAT = 1
# The signed text begins with this, so that a signature is void where the same secret signs something else.
_DOMAIN = b"winml_dag record 1"
# A key's name has 64 characters at most, and a signature as many.
_MOST_HEAD_BYTES = 256
_MOST_FILES, _MOST_FILE_BYTES = 20_000, 1 << 40
# Recipes nest eight deep at most. A reader must not reach the limit of Python's stack.
_MOST_DEPTH = 64
_MOST_TEXT = 200
# The limits of file systems for one part of a name, and of Windows for a path, less a folder to put it in.
_MOST_PART_BYTES, _MOST_NAME_CHARACTERS = 255, 200
_TEXTS = ("builder", "run", "revision", "host")
_MOST_CHARACTERS, _MOST_TOOLS = 500, 50
# The first suspects when two machines made different results.
_TOOLS = ("onnx", "onnxruntime", "onnxruntime-qnn", "torch", "transformers", "numpy")


class Refused(StoreError):
    """A record that is not accepted. The message has the reason, and nothing harmful from the record."""


@dataclass(frozen=True)
class Maker:
    """Who made a record. Nothing of this is part of a key; the signature covers all of it.

    Attributes:
        builder: this program with its version, ``winml_dag 0.1.0``.
        run: the CI run, as a URL where the system has one; empty outside of CI.
        revision: the commit that CI builds; empty if unknown.
        host: the class of machine, ``Linux x86_64``, not its name.
        tools: versions of Python and of the packages that matter most often, by name.
    """

    builder: str
    run: str = ""
    revision: str = ""
    host: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        return {**{name: cast(str, getattr(self, name)) for name in _TEXTS}, "tools": self.tools}

    @classmethod
    def from_json(cls, value: JsonValue) -> Maker:
        """Rebuild from :meth:`to_json`.

        Raises:
            StoreError: for anything else, and for texts with control characters.
        """
        if isinstance(value, Mapping) and value.keys() == {*_TEXTS, "tools"}:
            tools = value["tools"]
            if isinstance(tools, Mapping) and len(tools) <= _MOST_TOOLS:
                texts = {name: value[name] for name in _TEXTS}
                if all(_is_printable(text, _MOST_CHARACTERS) for text in [*texts.values(), *tools, *tools.values()]):
                    return cls(**cast(dict[str, str], texts), tools=cast(Mapping[str, str], tools))
        raise StoreError("The maker of a record is malformed.")


def maker_here(builder: str, *, run: str = "", revision: str = "") -> Maker:
    """The maker on this machine; *builder* is this program with its version. Imports none of the packages it names."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    tools = {"python": platform.python_version()}
    for name in _TOOLS:
        with suppress(PackageNotFoundError):
            tools[name] = version(name)
    host = f"{platform.system()} {platform.machine()}".strip()
    maker = Maker(builder, run=run, revision=revision, host=host, tools=tools)
    try:
        return Maker.from_json(maker.to_json())
    except StoreError:
        # A CI variable has control characters: omit it, or readers would refuse the record.
        return replace(maker, run="", revision="")


@dataclass(frozen=True)
class Trust:
    """Signs and verifies records.

    Attributes:
        keys: the first signs, each is accepted; without any, nothing is signed.
        maker: who makes records here.
        accept_unsigned: accept records that are not signed, or signed with an unknown key.
        key_of: computes the cache key of key inputs; a record with another key is refused. None: no check.
    """

    keys: tuple[SigningKey, ...]
    maker: Maker
    accept_unsigned: bool = False
    key_of: Callable[[KeyInputs], str] | None = field(default=None, repr=False)

    def sign(self, record: Record, namespace: str) -> bytes:
        """The envelope of *record* for *namespace*. A record from elsewhere keeps its maker.

        Raises:
            Refused: for a record that :meth:`verify` would refuse; for one of a pull request that would get into
                another namespace; and for one that came from a remote unsigned, which others must not accept because
                of this machine's signature.
        """
        if self.keys and record.origin.get("signed_by", "") is None:
            _refuse("nobody known here had signed it where it comes from, and so it does not get our signature")
        made_in = record.origin.get("namespace")
        if isinstance(made_in, str) and is_of_pull(made_in) and made_in != namespace:
            _refuse(f"it comes from the namespace {made_in!r} of a pull request, and does not get into another one")
        here = replace(self.maker, builder=record.made_by or self.maker.builder).to_json()
        maker = record.origin.get("maker") or here
        body = _body(record, maker, namespace)
        if len(body) > MOST_RECORD_BYTES - _MOST_HEAD_BYTES:
            # They only serve to explain why a stage runs.
            body = _body(replace(record, input_files={}), maker, namespace)
        self._read(body, record.cache_key, namespace)
        head: dict[str, JsonValue] = {"format": ENVELOPE_FORMAT}
        if self.keys:
            head |= {"signed_by": self.keys[0].id, "hmac_sha256": _signature(self.keys[0], body)}
        return canonical_json(head).encode() + b"\n" + body + b"\n"

    def verify(self, data: bytes, key: str, namespace: str, trusted: frozenset[str] | None = None) -> Record:
        """The record in *data*, found under *key* of *namespace*.

        Its ``origin`` has the ``maker``, the ``namespace``, and the id of the key as ``signed_by``, or null.

        Args:
            trusted: ids of the keys that may have signed it, which requires a signature; None: any of our keys.

        Raises:
            Refused: for anything but a complete record of this key and namespace that is signed as required.
        """
        if len(data) > MOST_RECORD_BYTES:
            raise Refused(f"it has {len(data)} bytes, and no record has more than {MOST_RECORD_BYTES}")
        head, newline, rest = data[: _MOST_HEAD_BYTES + 1].partition(b"\n")
        body = data[len(head) + 1 : -1]
        if not newline or not rest or data[-1:] != b"\n" or b"\n" in body:
            raise Refused("it is not two lines of JSON, as records in a remote are")
        signed_by = self._check_signature(head, body, trusted)
        record, maker = self._read(body, key, namespace)
        return replace(record, origin={"maker": maker, "namespace": namespace, "signed_by": signed_by})

    def _check_signature(self, head: bytes, body: bytes, trusted: frozenset[str] | None) -> str | None:
        """The id of the key that signed *body*; None when no signature is required and none can be checked."""
        needs_none = self.accept_unsigned and trusted is None
        signed_by, signature = _read_head(head)
        if signed_by is None:
            return None if needs_none else _refuse("nobody has signed it")
        if trusted is not None and signed_by not in trusted:
            _refuse(f"it is signed with the key {signed_by!r}, which this remote is not trusted with")
        signer = next((each for each in self.keys if each.id == signed_by), None)
        if signer is None:
            return None if needs_none else _refuse(f"it is signed with the key {signed_by!r}, which is not here")
        if not hmac.compare_digest(signature.encode(), _signature(signer, body).encode()):
            _refuse(f"its signature does not match the key {signed_by!r}: it was changed, or signed with another key")
        return signed_by

    def _read(self, body: bytes, key: str, namespace: str) -> tuple[Record, JsonObject]:
        """The record in *body* and its maker, each field checked."""
        value = _parse(body)
        if value.keys() != {"key", "maker", "namespace", "record"}:
            _refuse("its fields are not those of a record in a remote")
        if value["key"] != key or not KEY.fullmatch(key):
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
        made = record.key_inputs
        if self.key_of is not None and (self.key_of(made) != key or record.config_hash != made.config_hash):
            _refuse("its key is not made from what it says that it was made from")
        return record, maker


def _body(record: Record, maker: JsonValue, namespace: str) -> bytes:
    content = replace(record, origin={}).to_json()
    try:
        return canonical_json(
            {"key": record.cache_key, "maker": maker, "namespace": namespace, "record": content}
        ).encode()
    except (ValueError, RecursionError):
        raise Refused("it holds something that JSON cannot say") from None


def _signature(key: SigningKey, body: bytes) -> str:
    # The length of the id makes the text of each pair of id and body unique.
    named = key.id.encode()
    return hmac.new(key.secret, b"%s\n%d %s\n%s" % (_DOMAIN, len(named), named, body), hashlib.sha256).hexdigest()


def _read_head(head: bytes) -> tuple[str | None, str]:
    """The id of the signing key, None without one, and the signature."""
    value = _parse(head)
    if value.get("format") != ENVELOPE_FORMAT:
        _refuse(f"its format is {str(value.get('format'))[:20]!r}, and this version knows {ENVELOPE_FORMAT} only")
    if value.keys() == {"format"}:
        return None, ""
    signed_by, signature = value.get("signed_by"), value.get("hmac_sha256")
    if len(value) != 3 or not isinstance(signed_by, str) or not isinstance(signature, str):
        _refuse("what it says of its signature is not readable")
    return signed_by, signature


def _parse(text: bytes) -> JsonObject:
    """The object in *text*, which has to be canonical JSON: no name twice, no NaN, no broken Unicode."""
    try:
        value = json.loads(text)
        # The walk takes as long as everything else, and few records have this many objects and lists.
        may_be_deep = text.count(b"{") + text.count(b"[") > _MOST_DEPTH
        if (may_be_deep and nests_deeper(value, _MOST_DEPTH)) or canonical_json(value).encode() != text:
            raise ValueError
    except (ValueError, RecursionError):
        raise Refused("it is not JSON as we write it") from None
    return cast(JsonObject, value) if isinstance(value, dict) else _refuse("it is not a JSON object")


def _check(record: Record, key: str) -> None:
    """Refuse values that fit the types of the fields, but that no valid record has."""
    if record.cache_key != key:
        _refuse("the record within is that of another key")
    if not (math.isfinite(record.elapsed_seconds) and record.elapsed_seconds >= 0):
        _refuse("it took less than no time")
    if record.origin:
        _refuse("it says itself where it comes from")
    if not all(_is_printable(text, _MOST_TEXT) for text in (record.made_at, record.made_by)):
        _refuse("when and by whom it was made cannot be shown")
    files = [*record.files(), *filter(None, [record.log])]
    if len(files) > _MOST_FILES or sum(file.size for file in files) > _MOST_FILE_BYTES:
        _refuse(f"it has more than {_MOST_FILES} files, or more than {_MOST_FILE_BYTES >> 40} TiB")
    for slot in record.outputs:
        if not is_safe_part(slot):
            _refuse(f"{slot[:64]!r} is not a name of an output")
    for file in files:
        if not DIGEST.fullmatch(file.digest):
            _refuse(f"the digest of {file.name[:64]!r} is not a sha256, and another would prove nothing")
        longest_part = max(len(part.encode()) for part in file.name.split("/"))
        if len(file.name) > _MOST_NAME_CHARACTERS or longest_part > _MOST_PART_BYTES:
            _refuse(f"the name {file.name[:64]!r}… is longer than file systems take")


def _is_printable(text: object, most_characters: int) -> bool:
    return isinstance(text, str) and text.isprintable() and len(text) <= most_characters


def _refuse(why: str) -> NoReturn:
    raise Refused(why)
