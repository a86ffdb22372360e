"""From the URL of a remote to what speaks with it, and what of a URL may be shown. Nothing is connected to here."""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from winml_dag.errors import UsageError
from winml_dag.store.remote.protocol import Remote

TOKEN = "WINML_DAG_REMOTE_TOKEN"

_PATH_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_PATH_ADVICE = "It is made of letters, digits, '.', '_' and '-', with '/' between its parts"


def open_remote(url: str, namespace: str = "", *, gets_token: bool = False) -> Remote:
    """The remote at *url*, and of it what lies below *namespace*. With *gets_token*, a server of HTTP is sent the token
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
    if not _is_path(namespace):
        raise UsageError(f"{namespace!r} is no namespace of a remote", advice=f"{_PATH_ADVICE}, such as pull/12.")
    return _OPENERS[parts.scheme.lower()](parts, namespace, gets_token)


def parts_of(url: str) -> SplitResult:
    """The parts of *url*. Raises UsageError where nothing speaks its scheme."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # Not parsed before it is asked for.
    except ValueError as error:
        raise UsageError(f"{shown(url)!r} is no URL of a remote: {error}", advice=_SCHEMES_ADVICE) from error
    if parts.scheme.lower() not in _OPENERS:
        said = f"{parts.scheme}://" if parts.scheme else shown(url)
        raise UsageError(f"No remote is reached by {said!r}", advice=_SCHEMES_ADVICE)
    return parts


def folder_of(parts: SplitResult) -> Path:
    """``file:///C:/cache`` is a drive on Windows, and ``file://server/share`` a folder of another machine there."""
    from urllib.request import url2pathname  # imports http.client, which only folders would need here

    host = "" if parts.netloc in ("", "localhost") else f"//{parts.netloc}"
    return Path(url2pathname(host + parts.path))


def shown(url: str) -> str:
    """*url* without what may be secret in it: user, password, and all after the path. Of what is no URL next to
    nothing, since any of it may be secret.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{url.partition('://')[0]}://..." if "://" in url else "..."
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _open_http(parts: SplitResult, namespace: str, gets_token: bool) -> Remote:
    _require("urllib3")
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
    """A password in the URL goes before the token, which may be meant for another server."""
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return "Basic " + base64.b64encode(credentials.encode()).decode()
    token = os.environ.get(TOKEN, "").strip() if gets_token else ""
    if not (token.isascii() and token.isprintable()):
        raise UsageError(f"{TOKEN} has what no header can have: the end of a line, or letters beyond ASCII")
    return f"Bearer {token}" if token else ""


def _open_bucket(parts: SplitResult, namespace: str, _gets_token: bool) -> Remote:
    _require("obstore")
    _require("urllib3")
    from winml_dag.store.remote.bucket import open_bucket

    advice = f"Say {parts.scheme}://bucket/path; credentials come from the environment."
    if "@" in parts.netloc:
        raise UsageError(f"The URL of the remote {shown(parts.geturl())} has a user or a password in it", advice=advice)
    if not parts.netloc:
        raise UsageError(f"{parts.scheme}://{parts.path} names no bucket", advice=advice)
    prefix = _below(parts.path, namespace).strip("/")
    if not _is_path(prefix):
        raise UsageError(f"{prefix!r} is no path in a bucket", advice=f"{_PATH_ADVICE}.")
    return open_bucket(parts.scheme.lower(), parts.netloc, prefix)


def _open_folder(parts: SplitResult, namespace: str, _gets_token: bool) -> Remote:
    _require("obstore")
    from winml_dag.store.remote.bucket import open_folder

    if not parts.path.startswith("/") or (sys.platform != "win32" and parts.netloc not in ("", "localhost")):
        raise UsageError(
            f"{parts.geturl()!r} names no folder of this machine",
            advice="Say file:// with the whole path behind it: file:///srv/cache.",
        )
    return open_folder(folder_of(parts), namespace)


def _is_path(text: str) -> bool:
    return not text or all(_PATH_PART.fullmatch(part) for part in text.split("/"))


def _below(path: str, namespace: str) -> str:
    return "/".join(part for part in (path.rstrip("/"), namespace) if part)


def _require(module: str) -> None:
    if find_spec(module) is None:
        raise UsageError(
            f"A remote needs the package {module}, which is not installed", advice="pip install winml_dag[remote]"
        )


_OPENERS: dict[str, Callable[[SplitResult, str, bool], Remote]] = {
    "http": _open_http,
    "https": _open_http,
    "s3": _open_bucket,
    "az": _open_bucket,
    "gs": _open_bucket,
    "file": _open_folder,
}
_SCHEMES_ADVICE = "Say " + ", ".join(f"{scheme}://" for scheme in _OPENERS) + " with what follows."
