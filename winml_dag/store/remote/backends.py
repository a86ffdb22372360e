"""From the URL of a remote to what speaks with it. Nothing is connected to here."""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from winml_dag.errors import UsageError
from winml_dag.store.remote.places import folder_of, shown
from winml_dag.store.remote.remote import Remote

TOKEN = "WINML_DAG_REMOTE_TOKEN"

_NAMESPACE_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def open_remote(url: str, namespace: str = "", *, gets_token: bool = False) -> Remote:
    """The remote at *url*, and of it what lies below *namespace*. With *gets_token*, a server of HTTP is told the token
    in the environment, unless *url* has a password.

    Raises:
        UsageError: nothing speaks this scheme, the URL has no host, bucket or path, the namespace leaves the URL, or
            the extra that is needed is not installed.
    """
    parts = parts_of(url)
    if parts.query or parts.fragment:
        raise UsageError(
            f"The URL of the remote {shown(url)} goes on after its path",
            advice=f"Leave that out; a token belongs into the environment variable {TOKEN}.",
        )
    _check_namespace(namespace)
    return _MAKERS[parts.scheme.lower()](parts, namespace, gets_token)


def parts_of(url: str) -> SplitResult:
    """The parts of *url*. Raises UsageError where nothing speaks its scheme."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # Numbers that are none are found out when they are asked for.
    except ValueError as error:
        raise UsageError(f"{shown(url)!r} is no URL of a remote: {error}", advice=_SCHEMES_ADVICE) from error
    if parts.scheme.lower() not in _MAKERS:
        said = f"{parts.scheme}://" if parts.scheme else shown(url)
        raise UsageError(f"No remote is reached by {said!r}", advice=_SCHEMES_ADVICE)
    return parts


def _check_namespace(namespace: str) -> None:
    if namespace and not all(_NAMESPACE_PART.fullmatch(part) for part in namespace.split("/")):
        raise UsageError(
            f"{namespace!r} is no namespace of a remote",
            advice="It is made of letters, digits, '.', '_' and '-', with '/' between its parts, such as pull/12.",
        )


def _http(parts: SplitResult, namespace: str, gets_token: bool) -> Remote:
    _need("urllib3")
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
    """What proves who we are: a password in the URL goes before the token, which may be meant for another server."""
    if parts.username is not None:
        known_by = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return "Basic " + base64.b64encode(known_by.encode()).decode()
    token = os.environ.get(TOKEN, "").strip() if gets_token else ""
    if not (token.isascii() and token.isprintable()):
        raise UsageError(f"{TOKEN} has what no header can have: the end of a line, or letters beyond ASCII")
    return f"Bearer {token}" if token else ""


def _objects(parts: SplitResult, namespace: str, _gets_token: bool) -> Remote:
    _need("obstore")
    _need("urllib3")
    from winml_dag.store.remote.objects import open_bucket

    advice = f"Say {parts.scheme}://bucket/path; credentials come from the environment."
    if "@" in parts.netloc:
        raise UsageError(f"The URL of the remote {shown(parts.geturl())} has a user or a password in it", advice=advice)
    if not parts.netloc:
        raise UsageError(f"{parts.scheme}://{parts.path} names no bucket", advice=advice)
    prefix = _below(parts.path, namespace).strip("/")
    if prefix and not all(_NAMESPACE_PART.fullmatch(part) for part in prefix.split("/")):
        raise UsageError(
            f"{prefix!r} is no path in a bucket",
            advice="It is made of letters, digits, '.', '_' and '-', with '/' between its parts.",
        )
    return open_bucket(parts.scheme.lower(), parts.netloc, prefix)


def _folder(parts: SplitResult, namespace: str, _gets_token: bool) -> Remote:
    _need("obstore")
    from winml_dag.store.remote.objects import open_folder

    if not parts.path.startswith("/") or (sys.platform != "win32" and parts.netloc not in ("", "localhost")):
        raise UsageError(
            f"{parts.geturl()!r} names no folder of this machine",
            advice="Say file:// with the whole path behind it: file:///srv/cache.",
        )
    return open_folder(folder_of(parts), namespace)


def _below(path: str, namespace: str) -> str:
    return "/".join(part for part in (path.rstrip("/"), namespace) if part)


def _need(module: str) -> None:
    if find_spec(module) is None:
        raise UsageError(
            f"A remote needs the package {module}, which is not installed", advice="pip install winml_dag[remote]"
        )


_MAKERS: dict[str, Callable[[SplitResult, str, bool], Remote]] = {
    "http": _http,
    "https": _http,
    "s3": _objects,
    "az": _objects,
    "gs": _objects,
    "file": _folder,
}
_SCHEMES_ADVICE = "Say " + ", ".join(f"{scheme}://" for scheme in _MAKERS) + " with what follows."
