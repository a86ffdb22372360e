"""The settings of remotes: URLs, what may be done with them, and the keys that sign records. Connects to nothing.

Keys come from the environment or a file, never from a project, and are never shown. Both hold ``name:base64``: the
variable separated by commas, a file one per line. The first key signs and each is accepted, so that a key can be
replaced without a gap.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from winml_dag.errors import UsageError

if TYPE_CHECKING:
    from winml_dag.store.remote.protocol import Remote

TOKEN = "WINML_DAG_REMOTE_TOKEN"
TOKEN_HOST_VARIABLE = "WINML_DAG_REMOTE_TOKEN_HOST"
KEYS_VARIABLE = "WINML_DAG_REMOTE_KEYS"
KEYS_FILE_VARIABLE = "WINML_DAG_REMOTE_KEYS_FILE"
# As long as the output of HMAC-SHA256: a shorter secret is easier to guess than a signature.
SECRET_BYTES = 32

_KEY_FORM = "name:base64"
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# The packages that each scheme needs.
_MODULES = {
    "http": ("urllib3",),
    "https": ("urllib3",),
    "s3": ("obstore", "urllib3"),
    "az": ("obstore", "urllib3"),
    "gs": ("obstore", "urllib3"),
    "file": ("obstore",),
}
_SCHEMES_ADVICE = "Say " + ", ".join(f"{scheme}://" for scheme in _MODULES) + " with what follows."
_PATH_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
PATH_ADVICE = "It is made of letters, digits, '.', '_' and '-', with '/' between segments"


class Mode(StrEnum):
    """What may be done with a remote. ``OFF``: nothing, but cache keys are the same as with it."""

    READ = "read"
    READ_WRITE = "read-write"
    OFF = "off"


@dataclass(frozen=True)
class SigningKey:
    """A secret of at least 32 bytes that signs records. Signatures name it by its *id*, which is not secret."""

    id: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class TierSettings:
    """One remote.

    Attributes:
        url: ``http(s)://``, ``s3://``, ``az://``, ``gs://`` or ``file://``, without the namespace.
        mode: what may be done with it.
        namespace: what is shared under one trust, such as ``main`` or ``pull/12``: a path below *url*, and part of the
            signed text. Empty: directly at *url*.
        trusted: ids of the keys that may have signed its records; None: any of our keys.
        is_back_filled: whether what a farther remote had is also stored here, if it is writable.
        gets_token: whether it is sent the token of this machine; not if only a project names it.
    """

    url: str
    mode: Mode = Mode.READ
    namespace: str = ""
    trusted: frozenset[str] | None = None
    is_back_filled: bool = True
    gets_token: bool = False


@dataclass(frozen=True)
class RemoteSettings:
    """All remotes, the nearest first, and how records are verified.

    Attributes:
        tiers: asked in this order.
        keys: the first signs, all are accepted.
        accept_unsigned: accept unsigned records, for a folder that only its owner writes to.
    """

    tiers: tuple[TierSettings, ...]
    keys: tuple[SigningKey, ...] = ()
    accept_unsigned: bool = False


def open_remote(url: str, namespace: str = "", *, gets_token: bool = False) -> Remote:
    """The remote below *namespace* of *url*. With *gets_token*, an HTTP server is sent the token in the environment
    unless *url* has a password.

    Raises:
        UsageError: for an unknown scheme, a URL without a host, bucket or path, a namespace that leaves the URL, or an
            extra that is not installed.
    """
    parts = parts_of(url)
    if parts.query or parts.fragment:
        raise UsageError(
            f"The URL of the remote {shown(url)} goes on after its path",
            advice=f"Leave that out; a token belongs into the environment variable {TOKEN}.",
        )
    if not is_path(namespace):
        raise UsageError(f"{namespace!r} is not a namespace of a remote", advice=f"{PATH_ADVICE}, such as pull/12.")
    scheme = parts.scheme.lower()
    for module in _MODULES[scheme]:
        if find_spec(module) is None:
            raise UsageError(
                f"A remote needs the package {module}, which is not installed", advice="pip install winml_dag[remote]"
            )
    if scheme == "file":
        return _open_folder(parts, namespace)
    return _open_http(parts, namespace, gets_token) if "http" in scheme else _open_bucket(parts, namespace)


def parts_of(url: str) -> SplitResult:
    """The components of *url*. Raises UsageError for an unknown scheme."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # Not parsed before it is asked for.
    except ValueError as error:
        raise UsageError(f"{shown(url)!r} is no URL of a remote: {error}", advice=_SCHEMES_ADVICE) from error
    if parts.scheme.lower() not in _MODULES:
        scheme_text = f"{parts.scheme}://" if parts.scheme else shown(url)
        raise UsageError(f"No remote is reached by {scheme_text!r}", advice=_SCHEMES_ADVICE)
    return parts


def folder_of(parts: SplitResult) -> Path:
    """The folder of a ``file:`` URL. On Windows ``file:///C:/cache`` is on a drive, ``file://server/share`` remote."""
    from urllib.request import url2pathname  # imports http.client, which only folders would need here

    host = "" if parts.netloc in ("", "localhost") else f"//{parts.netloc}"
    return Path(url2pathname(host + parts.path))


def shown(url: str) -> str:
    """*url* without its secrets: user, password, query and fragment. An invalid URL loses nearly everything, since any
    part of it may be secret.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{url.partition('://')[0]}://..." if "://" in url else "..."
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _open_http(parts: SplitResult, namespace: str, gets_token: bool) -> Remote:
    from winml_dag.store.remote.http import HttpRemote

    if not parts.hostname:
        raise UsageError(f"{shown(parts.geturl())} names no host", advice="Say http://host:port/path.")
    address = urlunsplit((parts.scheme.lower(), parts.netloc.rpartition("@")[2], _below(parts.path, namespace), "", ""))
    authorization = _authorization(parts, gets_token)
    try:
        return HttpRemote(address, authorization)
    except ValueError as error:
        raise UsageError(f"{address!r} is no URL of a remote: {error}", advice=_SCHEMES_ADVICE) from error


def _authorization(parts: SplitResult, gets_token: bool) -> str:
    """A password in the URL takes precedence over the token, which may be meant for another server."""
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return "Basic " + base64.b64encode(credentials.encode()).decode()
    token = os.environ.get(TOKEN, "").strip() if gets_token else ""
    if not (token.isascii() and token.isprintable()):
        raise UsageError(f"{TOKEN} has what no header can have: the end of a line, or letters beyond ASCII")
    return f"Bearer {token}" if token else ""


def _open_bucket(parts: SplitResult, namespace: str) -> Remote:
    from winml_dag.store.remote.bucket import open_bucket

    advice = f"Say {parts.scheme}://bucket/path; credentials come from the environment."
    if "@" in parts.netloc:
        raise UsageError(f"The URL of the remote {shown(parts.geturl())} has a user or a password in it", advice=advice)
    if not parts.netloc:
        raise UsageError(f"{parts.scheme}://{parts.path} names no bucket", advice=advice)
    prefix = _below(parts.path, namespace).strip("/")
    if not is_path(prefix):
        raise UsageError(f"{prefix!r} is not a path in a bucket", advice=f"{PATH_ADVICE}.")
    return open_bucket(parts.scheme.lower(), parts.netloc, prefix)


def _open_folder(parts: SplitResult, namespace: str) -> Remote:
    from winml_dag.store.remote.bucket import open_folder

    if not parts.path.startswith("/") or (sys.platform != "win32" and parts.netloc not in ("", "localhost")):
        raise UsageError(
            f"{parts.geturl()!r} names no folder of this machine",
            advice="Say file:// with the whole path behind it: file:///srv/cache.",
        )
    return open_folder(folder_of(parts), namespace)


def is_path(text: str) -> bool:
    """Whether *text* can be a namespace: it leaves no folder."""
    return not text or all(_PATH_PART.fullmatch(part) for part in text.split("/"))


def _below(path: str, namespace: str) -> str:
    return "/".join(part for part in (path.rstrip("/"), namespace) if part)


def signing_keys(environment: Mapping[str, str], configured: Path | None = None) -> tuple[SigningKey, ...]:
    """The keys in the environment; else those in the file that it names; else those in *configured*; else none.

    Raises:
        UsageError: for an invalid key, with its location. The message contains at most the length of a secret.
    """
    if environment.get(KEYS_VARIABLE, "").strip():
        given = enumerate(environment[KEYS_VARIABLE].split(","), 1)
        return _parse_keys([(f"{KEYS_VARIABLE}, key {number}", text) for number, text in given], KEYS_VARIABLE)
    if environment.get(KEYS_FILE_VARIABLE, "").strip():
        return keys_in_file(Path(environment[KEYS_FILE_VARIABLE].strip()).expanduser())
    return () if configured is None else keys_in_file(configured)


def new_key(name: str) -> str:
    """The line of a new key with *name*. Raises UsageError for a name that is not allowed."""
    return f"{_checked_name(name, 'A key')}:{base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}"


def check_keys(settings: RemoteSettings) -> None:
    """Check that records of each remote in use can be verified.

    Raises:
        UsageError: when there are no keys, or none that a remote trusts.
    """
    for tier in settings.tiers:
        if tier.mode is Mode.OFF:
            continue
        if tier.trusted is not None and not any(key.id in tier.trusted for key in settings.keys):
            trusted = ", ".join(sorted(tier.trusted)) or "none"
            here = ", ".join(key.id for key in settings.keys) or "no key"
            raise UsageError(
                f"Of the keys that {shown(tier.url)} is trusted with ({trusted}) none is here ({here}), so no record"
                " from there could be believed.",
                advice=f"Give one in {KEYS_VARIABLE} or {KEYS_FILE_VARIABLE}, or use --remote-mode off.",
            )
        if not settings.keys and not settings.accept_unsigned:
            raise UsageError(
                f"There is no key to check the records of {shown(tier.url)}, and unsigned records are not accepted.",
                advice=f"Give one in {KEYS_VARIABLE} or {KEYS_FILE_VARIABLE} (`winml-dag cache remote key` makes one),"
                " or use --remote-mode off.",
            )


def keys_in_file(path: Path) -> tuple[SigningKey, ...]:
    """The keys in the file *path*, one a line. Raises UsageError if it is invalid, or others may read it."""
    try:
        with open(path, encoding="utf-8") as opened:
            if os.name != "nt" and os.fstat(opened.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UsageError(
                    f"{path} has keys that sign records, and other users may read or change it.",
                    advice=f"Run `chmod 600 {path}`; if others had the time to read it, make new keys.",
                )
            lines = list(enumerate(opened, 1))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"The file of keys {path} cannot be read: {why}.") from None
    kept = [(f"{path}, line {number}", text) for number, text in lines if text.partition("#")[0].strip()]
    if not kept:
        raise UsageError(f"{path} has no key.", advice=f"It has one a line, as {_KEY_FORM}.")
    return _parse_keys(kept, str(path))


def _parse_keys(texts: Sequence[tuple[str, str]], source: str) -> tuple[SigningKey, ...]:
    """The keys in *texts*, each with its location; their names must be distinct."""
    keys: dict[str, SigningKey] = {}
    form = f"Write it as {_KEY_FORM}."
    for where, text in texts:
        name, colon, coded = text.strip().partition(":")
        if not colon:
            raise UsageError(f"{where} is not a key: it has no colon.", advice=form)
        _checked_name(name, where)
        try:
            secret = base64.b64decode(coded.strip(), validate=True)
        except ValueError:
            raise UsageError(f"{where}: what follows {name!r} is not base64.", advice=form) from None
        if len(secret) < SECRET_BYTES:
            raise UsageError(
                f"{where}: the secret of {name!r} has {len(secret)} bytes, and fewer than {SECRET_BYTES} can be"
                " guessed.",
                advice="`winml-dag cache remote key` makes one.",
            )
        if name in keys:
            raise UsageError(f"{source} has two keys that are called {name!r}.", advice="Give each a name of its own.")
        keys[name] = SigningKey(name, secret)
    return tuple(keys.values())


def _checked_name(name: str, where: str) -> str:
    if not _KEY_NAME.fullmatch(name):
        # Not shown: where the colon is missing or in the wrong place, it may be the secret.
        raise UsageError(
            f"{where} has a name that cannot be one.",
            advice="It has up to 64 letters, digits, '.', '_' and '-', and begins with a letter or a digit.",
        )
    return name
