"""The secrets that records are signed with: read from the environment or a file, never shown, never from a project.

Both have ``name:base64``: in the environment with commas between several, in a file one a line. The first signs and
each is accepted, so that one can be replaced by another without a gap.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from winml_dag.errors import UsageError
from winml_dag.store.remote.places import shown
from winml_dag.store.remote.settings import Mode, RemoteSettings, SigningKey

KEYS_VARIABLE = "WINML_DAG_REMOTE_KEYS"
KEYS_FILE_VARIABLE = "WINML_DAG_REMOTE_KEYS_FILE"
# As long as what HMAC-SHA256 puts out: less could be guessed with less work than forging a signature.
SECRET_BYTES = 32
_FORM = "name:base64"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def signing_keys(environment: Mapping[str, str], configured: Path | None = None) -> tuple[SigningKey, ...]:
    """The keys in the environment; else those in the file that it names; else those in *configured*; else none.

    Raises:
        UsageError: for what is no key, saying where; what it says of a secret is its length at most.
    """
    if environment.get(KEYS_VARIABLE, "").strip():
        given = enumerate(environment[KEYS_VARIABLE].split(","), 1)
        return _distinct([_key(text, f"{KEYS_VARIABLE}, key {number}") for number, text in given], KEYS_VARIABLE)
    if environment.get(KEYS_FILE_VARIABLE, "").strip():
        return _in_file(Path(environment[KEYS_FILE_VARIABLE].strip()).expanduser())
    return () if configured is None else _in_file(configured)


def new_key(name: str) -> str:
    """The line of a new key with *name*. Raises UsageError for what cannot be a name."""
    return f"{_checked_name(name, 'A key')}:{base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}"


def check_keys(settings: RemoteSettings) -> None:
    """Make sure that something of what remotes have can be believed.

    Raises:
        UsageError: when there are no keys, or none that a remote is trusted with; it says what to do.
    """
    for level in settings.levels:
        if level.mode is Mode.OFF:
            continue
        if level.trusted is not None and not any(key.id in level.trusted for key in settings.keys):
            trusted = ", ".join(sorted(level.trusted)) or "none"
            raise UsageError(
                f"Of the keys that {shown(level.url)} is trusted with ({trusted}) none is here, so no record from there"
                " could be believed.",
                advice=f"Give one in {KEYS_VARIABLE} or {KEYS_FILE_VARIABLE}, or use --remote-mode off.",
            )
        if not settings.keys and not settings.accept_unsigned:
            raise UsageError(
                f"There is no key to check the records of {shown(level.url)} with, and nothing unsigned is believed.",
                advice=f"Give one in {KEYS_VARIABLE} or {KEYS_FILE_VARIABLE} (`winml-dag cache remote key` makes one),"
                " or use --remote-mode off.",
            )


def _in_file(path: Path) -> tuple[SigningKey, ...]:
    try:
        with open(path, encoding="utf-8") as opened:
            if os.name != "nt" and os.fstat(opened.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UsageError(
                    f"{path} has keys that sign records, and other users may read or change it.",
                    advice=f"Run `chmod 600 {path}`; if others had the time to read it, make new keys.",
                )
            lines = list(enumerate(opened, 1))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"The file of keys {path} cannot be read: {why}.") from None
    kept = [(number, text) for number, text in lines if text.strip() and not text.lstrip().startswith("#")]
    if not kept:
        raise UsageError(f"{path} has no key.", advice=f"It has one a line, as {_FORM}.")
    return _distinct([_key(text, f"{path}, line {number}") for number, text in kept], str(path))


def _key(text: str, where: str) -> SigningKey:
    name, colon, coded = text.strip().partition(":")
    if not colon:
        raise UsageError(f"{where} is no key: it has no colon.", advice=f"Write it as {_FORM}.")
    _checked_name(name, where)
    try:
        secret = base64.b64decode(coded.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{where}: what follows {name!r} is not base64.", advice=f"Write it as {_FORM}.") from None
    if len(secret) < SECRET_BYTES:
        raise UsageError(
            f"{where}: the secret of {name!r} has {len(secret)} bytes, and fewer than {SECRET_BYTES} can be guessed.",
            advice="`winml-dag cache remote key` makes one.",
        )
    return SigningKey(name, secret)


def _checked_name(name: str, where: str) -> str:
    if not _NAME.fullmatch(name):
        # Not shown: where the colon is missing or in the wrong place, it may be the secret.
        raise UsageError(
            f"{where} has a name that cannot be one.",
            advice="It has up to 64 letters, digits, '.', '_' and '-', and begins with a letter or a digit.",
        )
    return name


def _distinct(keys: Iterable[SigningKey], where: str) -> tuple[SigningKey, ...]:
    by_name: dict[str, SigningKey] = {}
    for key in keys:
        if key.id in by_name:
            raise UsageError(f"{where} has two keys that are called {key.id!r}.", advice="Give each a name of its own.")
        by_name[key.id] = key
    return tuple(by_name.values())
