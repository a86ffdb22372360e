"""Where a record and a blob lie in every remote, which folder a URL is, and what of one may be shown."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

# The folders of all records and of all blobs.
FOLDERS = ("ac", "cas")

_KEY = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def record_place(key: str) -> str:
    """Raises ValueError for what is no key: nothing else may become part of a path."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"no key of a record: {key!r}")
    return f"ac/{key}"


def blob_place(digest: str) -> str:
    """Raises ValueError for what is no sha256: no remote knows blobs by anything else."""
    if not (match := _DIGEST.fullmatch(digest)):
        raise ValueError(f"no sha256 of a blob: {digest!r}")
    return f"cas/{match[1]}"


def folder_of(parts: SplitResult) -> Path:
    """``file:///C:/cache`` is a drive on Windows, and ``file://server/share`` a folder of another machine there."""
    from urllib.request import url2pathname  # with all of http, for remotes that are folders alone

    host = "" if parts.netloc in ("", "localhost") else f"//{parts.netloc}"
    return Path(url2pathname(host + parts.path))


def shown(url: str) -> str:
    """*url* without what may be secret in it: user, password, and all after the path. Of what is no URL, next to
    nothing: nobody knows what in it is secret.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{url.partition('://')[0]}://..." if "://" in url else "..."
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
